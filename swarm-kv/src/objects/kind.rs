//! What a key holds: the first eight bytes of an object's value name its kind.

use std::fmt;

/// How an object's value begins: no text does, in any encoding.
const MARK: [u8; 6] = *b"\xffswarm";
/// The only version of what follows.
const VERSION: u8 = 1;
/// Bytes of a value before its state.
pub(crate) const HEADER: usize = 8;

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ObjectKind {
    /// A [lock](crate::Client::lock).
    Lock,
    /// An [`RwLock`](crate::objects::RwLock).
    RwLock,
    /// A [`Semaphore`](crate::objects::Semaphore).
    Semaphore,
    /// A [`Once`](crate::objects::Once).
    Once,
    /// A [`Latch`](crate::objects::Latch).
    Latch,
    /// A [`Barrier`](crate::objects::Barrier).
    Barrier,
    /// An `Atomic`, which the feature `zerocopy` has.
    Atomic,
    /// A `Guarded`, which the feature `serde` has.
    Guarded,
}

impl ObjectKind {
    const ALL: [Self; 8] = [
        Self::Lock,
        Self::RwLock,
        Self::Semaphore,
        Self::Once,
        Self::Latch,
        Self::Barrier,
        Self::Atomic,
        Self::Guarded,
    ];

    /// Returns its name, in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::RwLock => "rwlock",
            Self::Semaphore => "semaphore",
            Self::Once => "once",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
            Self::Atomic => "atomic",
            Self::Guarded => "guarded",
        }
    }

    /// Whether its state is a [turnstile](crate::objects::turnstile).
    pub(crate) fn is_queued_for(self) -> bool {
        matches!(self, Self::Lock | Self::RwLock | Self::Semaphore | Self::Once)
    }

    fn number(self) -> u8 {
        // Never another one: it stands in pools.
        match self {
            Self::Lock => 1,
            Self::RwLock => 2,
            Self::Semaphore => 3,
            Self::Once => 4,
            Self::Latch => 5,
            Self::Barrier => 6,
            Self::Atomic => 7,
            Self::Guarded => 8,
        }
    }

    /// Returns the kind of the object whose value this is; `None` if it is none.
    #[must_use]
    pub fn of(value: &[u8]) -> Option<Self> {
        let header = value.first_chunk()?;
        Self::ALL.into_iter().find(|kind| kind.header() == *header)
    }

    /// Returns how the value of such an object begins.
    pub(crate) fn header(self) -> [u8; HEADER] {
        let [a, b, c, d, e, f] = MARK;
        [a, b, c, d, e, f, self.number(), VERSION]
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "a lock",
            Self::RwLock => "a readers-writer lock",
            Self::Semaphore => "a semaphore",
            Self::Once => "a once",
            Self::Latch => "a latch",
            Self::Barrier => "a barrier",
            Self::Atomic => "an atomic value",
            Self::Guarded => "a guarded value",
        })
    }
}

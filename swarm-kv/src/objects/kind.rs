//! What a key holds: the first eight bytes of an object's value say its kind.

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
    /// A [`Lock`](crate::objects::Lock).
    Lock,
}

impl ObjectKind {
    const ALL: [Self; 1] = [Self::Lock];

    /// Returns its name, in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Lock => 1,
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
        write!(f, "a {}", self.name())
    }
}

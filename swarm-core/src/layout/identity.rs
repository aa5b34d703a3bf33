//! Which register it is, for ever.

use crate::words::WriteNumber;

/// Words of an identity.
pub const IDENTITY_WORDS: usize = 2;

/// A register's name for ever: memory that is used again holds another identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Nanoseconds since the pool's creation; timestamps count from here.
    pub birth: u64,
    /// Number of the write that bore it, which no other register has.
    pub number: WriteNumber,
}

impl Identity {
    /// The words at [`register::IDENTITY`](super::register::IDENTITY).
    #[inline]
    pub fn encode(self) -> [u64; IDENTITY_WORDS] {
        [self.birth, self.number.0]
    }
}

//! The permanent identity of a register.

use crate::words::WriteNumber;

/// Words of an identity.
pub const IDENTITY_WORDS: usize = 2;

/// A register's permanent name: memory that is reused holds another identity (I6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Creation time in nanoseconds since the pool's creation; timestamps count from here.
    pub created_at: u64,
    /// Number of the write that created it, which no other register has.
    pub number: WriteNumber,
}

impl Identity {
    /// Returns the words at [`register::IDENTITY`](super::register::IDENTITY).
    #[inline]
    pub fn encode(self) -> [u64; IDENTITY_WORDS] {
        [self.created_at, self.number.0]
    }
}

//! Why an operation on a replicated object failed.

use core::fmt;

/// Why an operation on a replicated object failed.
///
/// A write that ends in an error may or may not have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Too few memory nodes answered before the deadline.
    NoMajority {
        /// How many answered.
        answered: usize,
        /// How many were needed.
        needed: usize,
    },
    /// The cell's ballots are used up.
    Exhausted,
    /// The register is being relocated, or must be: its key has, or gets, another one.
    Moved,
    /// Other clients' changes went first until the deadline, or there were more of them than an
    /// operation can keep track of. A change may or may not take effect.
    Contended,
    /// No node has the object at this location: the location is stale.
    Gone,
    /// What the nodes hold contradicts the protocol: their memory is damaged.
    Damaged,
}

impl Error {
    /// The only node that was asked does not answer.
    pub const NO_ANSWER: Self = Self::NoMajority { answered: 0, needed: 1 };
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoMajority { answered, needed } => write!(
                f,
                "too few memory nodes answer: {answered}, where {needed} must; bring nodes back, or \
                 wait longer"
            ),
            Self::Exhausted => f.write_str(
                "an object has been changed as often as one can be; export the pool's keys and \
                 import them into a new one",
            ),
            Self::Moved => f.write_str("the key is being moved; look it up again"),
            Self::Contended => f.write_str(
                "other clients' changes went first for too long; a change that this ends may or may not \
                 have taken effect: see what is there, and try again, or wait longer",
            ),
            Self::Gone => f.write_str("the object is no longer where it was"),
            Self::Damaged => f.write_str(
                "what the memory nodes hold contradicts the protocol: their memory is damaged; end all \
                 clients, export what can still be read, and import it into a new pool",
            ),
        }
    }
}

impl core::error::Error for Error {}

//! Why an operation on a replicated object did not end.

use core::fmt;

/// Why an operation on a replicated object did not end.
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
    /// The register's or the cell's timestamps or ballots are used up.
    Exhausted,
    /// The register is being moved, which this version does not do.
    Frozen,
    /// Other clients' changes went first until the deadline.
    Contended,
    /// No node shows the object that was looked for: the location is out of date.
    Gone,
    /// What the nodes hold contradicts the protocol: their memory is damaged.
    Damaged,
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
                "the key's timestamps are used up; delete it and insert it again to go on",
            ),
            Self::Frozen => f.write_str(
                "the key is marked as being moved, which this version never does: a newer version \
                 uses the memory nodes, or their memory is damaged",
            ),
            Self::Contended => f.write_str(
                "other clients' changes went first until the deadline; try again, or wait longer",
            ),
            Self::Gone => f.write_str("the object is no longer where it was"),
            Self::Damaged => f.write_str(
                "what the memory nodes hold makes no sense: their memory is damaged; end all \
                 clients and bring back an undamaged copy of it",
            ),
        }
    }
}

impl core::error::Error for Error {}

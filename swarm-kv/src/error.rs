//! Why an operation of the store did not end.

use swarm_core::layout::{MAX_KEY, MAX_VALUE};

/// Why an operation of the store did not end.
///
/// After [`Error::Replication`] and [`Error::Contended`] a write may or may not have taken effect; after all others it has
/// not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty or too long.
    #[error("a key has 1 to {MAX_KEY} bytes, not {0}")]
    Key(usize),
    /// The value is too long.
    #[error("a value has at most {MAX_VALUE} bytes, not {0}")]
    Value(usize),
    /// No memory is left.
    #[error(
        "the pool is full: no chunk is free for an object of {0} bytes; \
         make a larger pool and move the data there with export and import"
    )]
    Full(usize),
    /// A client's write numbers are used up: open another client.
    #[error("this client has written as often as one client can; open another")]
    Spent,
    /// Other clients' changes got in the way too often.
    #[error("other clients changed the same key or bucket again and again; try again")]
    Contended,
    /// Too many keys with one hash.
    #[error("more keys share one hash than a bucket holds")]
    Crowded,
    /// The replicas could not carry the operation out.
    #[error(transparent)]
    Replication(#[from] swarm_core::error::Error),
}

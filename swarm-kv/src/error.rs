//! Why an operation of the store did not end.

use swarm_core::layout::{MAX_KEY, MAX_VALUE};

/// Why an operation of the store did not end.
///
/// After [`Error::Replication`], [`Error::Contended`], [`Error::Unsettled`] and [`Error::UnsettledSpent`] a write may or
/// may not have taken effect; after all others it has not. (Of one that was begun before a fork, [`Error::Forked`] says
/// so in the child alone: it is the parent's to go on with.)
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
        "the pool is full: no room for an object of {} bytes in the {} bytes of each memory node; \
         delete keys, which makes room while every memory node answers, or move the data to a larger \
         pool with export and import",
        .0.object, .0.capacity
    )]
    Full(Shortage),
    /// A write met its key on the move to other memory, and there is none for that. Whoever uses the
    /// key next goes on with the move.
    #[error(
        "the pool is full, and the key was on the move: no room for an object of {} bytes in the {} bytes \
         of each memory node; whether the write took effect is not known: get the key, and delete \
         others, which makes room while every memory node answers",
        .0.object, .0.capacity
    )]
    Unsettled(Shortage),
    /// A client's write numbers are used up, and for a long time nobody has given it others: no daemon
    /// answers, or it is on no board.
    #[error(
        "this client's write numbers are used up, and whoever gives out more does not answer; bring the \
         pool's daemons or etcd back, or open another client"
    )]
    Spent,
    /// A write met its key on the move to other memory, and for what that takes this client's write numbers are used
    /// up, as in [`Error::Spent`]. Whoever uses the key next goes on with the move.
    #[error(
        "this client's write numbers are used up, and whoever gives out more does not answer; the key was on the \
         move: whether the write took effect is not known: get the key, and bring the pool's daemons or etcd \
         back, or open another client"
    )]
    UnsettledSpent,
    /// Other clients' changes got in the way too often.
    #[error(
        "other clients changed the same key or bucket again and again; whether a write took effect is not known: \
         get the key, and try again"
    )]
    Contended,
    /// The client is another process's, of which this one is a forked copy. Nothing that clients share was touched.
    #[error(
        "this client is that of the process that forked this one: both would act under one identity; open \
         another client in this process"
    )]
    Forked,
    /// Too many keys with one hash.
    #[error("more keys share one hash than a bucket holds")]
    Crowded,
    /// The replicas could not carry the operation out.
    #[error(transparent)]
    Replication(swarm_core::error::Error),
}

/// What there was no memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes of the object, as large as its size class.
    pub object: u64,
    /// Bytes of each memory node.
    pub capacity: u64,
}

impl From<swarm_core::error::Error> for Error {
    fn from(error: swarm_core::error::Error) -> Self {
        use swarm_core::error::Error as Core;
        // Who looks for an object goes by the index in the end. If that is what names an object
        // which no node has, the location is not out of date.
        Self::Replication(if error == Core::Gone { Core::Damaged } else { error })
    }
}

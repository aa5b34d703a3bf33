//! Why an operation of the store failed.

use std::fmt;

use swarm_core::fabric::{Laggard, LaggardState};
use swarm_core::layout::{MAX_KEY, MAX_VALUE};

/// Why an operation of the store failed.
///
/// After [`Error::Replication`], [`Error::Contended`], [`Error::Unsettled`],
/// [`Error::UnsettledNumbersExhausted`], [`Error::UnsettledUnfinished`] and [`Error::CutShort`] a write may or
/// may not have taken effect; after all others it has not. (For an operation that began before a
/// fork, [`Error::Forked`] says so in the child alone: the parent continues it.) After
/// [`Error::Destroyed`] and [`Error::Gone`] the effect of a write is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty or too long.
    #[error("a key has 1 to {MAX_KEY} bytes, not {0}")]
    Key(usize),
    /// The value is too long.
    #[error("a value has at most {MAX_VALUE} bytes, not {0}")]
    Value(usize),
    /// The value, of so many bytes, is none of the type that it was asked for as.
    #[error(
        "the value, of {0} bytes, is none of the type that it is asked for as; get its bytes, and see what they are"
    )]
    Type(usize),
    /// The value that was to be added to, of so many bytes, is no number.
    #[error(
        "the value, of {0} bytes, is no decimal number from {min} to {max}, so nothing can be added to it",
        min = i64::MIN,
        max = i64::MAX
    )]
    Number(usize),
    /// The sum is beyond the numbers that are counted with.
    #[error(
        "the sum would not be from {min} to {max}, so nothing was added; add less, or put another number",
        min = i64::MIN,
        max = i64::MAX
    )]
    Overflow,
    /// The value, of so many bytes, has no room in a cell, so it can have neither a time to live nor a version.
    #[error(
        "a value of {0} bytes can have neither a time to live nor a version: that takes one of at most {max} bytes",
        max = swarm_core::layout::MAX_IN_PLACE - 8
    )]
    TooLongForCell(usize),
    /// The pool was created without keyed cells: its keys can have neither lives nor versions.
    #[error(
        "keys of this pool can have neither a time to live nor a version: it was created without keyed cells; back it \
         up, and restore that into a new pool"
    )]
    NoCells,
    /// No memory is left, or this client [can claim](Shortage::cannot_claim) none.
    #[error("{0}")]
    Full(Shortage),
    /// A write met a move of its key, and there is no memory for that, as in [`Error::Full`]. The
    /// next client that uses the key continues the move (V4).
    #[error(
        "{0}; the key was being moved, so the write may or may not have taken effect: get the key first"
    )]
    Unsettled(Shortage),
    /// This client's write numbers are used up, and none were granted for a long time: no daemon
    /// answers, or the client has no epoch domain.
    #[error(
        "this client has no write numbers left, and neither a daemon nor etcd granted more; restart \
         them, or open a new client"
    )]
    NumbersExhausted,
    /// A write met a move of its key, and this client has no write numbers for that, as in
    /// [`Error::NumbersExhausted`]. The next client that uses the key continues the move (V4).
    #[error(
        "this client has no write numbers left, and neither a daemon nor etcd granted more; the key \
         was being moved, so the write may or may not have taken effect: get the key, and restart \
         them, or open a new client"
    )]
    UnsettledNumbersExhausted,
    /// Other clients' changes came first too often.
    #[error(
        "other clients kept changing the same key or bucket; a write may or may not have taken \
         effect: get the key, and try again"
    )]
    Contended,
    /// The client belongs to another process, of which this one is a forked copy. Nothing that
    /// clients share was touched (S7).
    #[error(
        "this client belongs to the process that forked this one, and both would act under one \
         identity; open another client in this process"
    )]
    Forked,
    /// The pool was destroyed by force under this client, or its destruction has begun. All later
    /// operations of the client end this way (S8).
    #[error(
        "the pool was destroyed, or its destruction has begun, while this client had it open; open \
         the pool that is there now, if any"
    )]
    Destroyed,
    /// The pool's control file was removed or replaced under this client. An active client checks
    /// for that within a second (on shared memory). What it wrote since the removal is lost,
    /// acknowledged or not. All later operations of the client end this way (S8).
    #[error(
        "the pool's control file was removed or replaced, or a node's file replaced, while this client had it open; what was \
         written since then may be lost; open the pool that is there now, if any"
    )]
    Gone,
    /// The pool's control file was cut short under this client, or its memory failed. All later operations of the client
    /// end so, without effect.
    #[error(
        "the pool's control file was cut short, or its memory failed, while this client had it open; the pool cannot be \
         used before that file is whole: end all its clients, then repair the pool (swarm repair)"
    )]
    CutShort,
    /// The operation waited for another one of this client that makes no progress: a write of the
    /// same key, or one that reclaims memory or raises a high-water mark. It had no effect itself.
    #[error(
        "an earlier operation of this client (a write of the same key, or one that allocates or \
         reclaims memory) makes no progress, and this one waited for it in vain; poll the earlier \
         one's future to its end, or drop it, then try again"
    )]
    Unfinished,
    /// A write met a move of its key, and for that waited in vain for another operation of this
    /// client, as in [`Error::Unfinished`]. The next client that uses the key continues the move
    /// (V4).
    #[error(
        "an earlier operation of this client, which allocates or reclaims memory, makes no progress, \
         and this one waited for it in vain; the key was being moved, so the write may or may not \
         have taken effect: poll the earlier one's future to its end, or drop it, then get the key"
    )]
    UnsettledUnfinished,
    /// Too many keys share one hash.
    #[error("more keys share one hash than a bucket holds")]
    TooManyCollisions,
    /// The replicas could not carry the operation out.
    #[error(transparent)]
    Replication(swarm_core::error::Error),
}

/// An allocation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes of the object, rounded up to its size class. (A `u32`, as an operation's result should
    /// stay small.)
    pub object: u32,
    /// Bytes of each memory node.
    pub capacity: u64,
    /// The client whose operation blocks reclamation, if that was waited for in vain.
    pub held_up: Option<Laggard>,
    /// Whether the pool has room of which this client cannot claim any. A claim takes a chunk-map
    /// record, which is the object here, and other clients' claims came first as often as the slot
    /// has bootstrap records.
    pub cannot_claim: bool,
}

/// Says what there was no memory for, and what to do.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, capacity, cannot_claim, .. } = *self;
        if cannot_claim {
            f.write_str(
                "this client cannot claim memory, though the pool has room: other clients' claims \
                 came first until it had no record left for another claim; ",
            )?;
        } else {
            write!(
                f,
                "the pool is full: no room for an object of {object} bytes in the {capacity} bytes \
                 of each memory node; "
            )?;
        }
        let Some(laggard) = self.held_up else {
            return f.write_str(if cannot_claim {
                "records are reclaimed while every memory node answers: bring nodes back, or open \
                 another client"
            } else {
                "delete keys, which makes room while every memory node answers, or move the data to a larger \
                 pool with export and import"
            });
        };
        f.write_str("no memory is reclaimed, as ")?;
        if laggard.is_own {
            f.write_str("an operation of this client itself")?;
        } else {
            write!(f, "an operation of client {}", laggard.slot)?;
        }
        if let Some(process) = laggard.process {
            let elsewhere = match laggard.state {
                LaggardState::Elsewhere => " of another pid namespace",
                _ => "",
            };
            write!(f, ", process {process}{elsewhere},")?;
        }
        write!(f, " has been under way since epoch {}", laggard.since)?;
        if let Some(nanoseconds) = laggard.nanoseconds {
            write!(f, ", for {} s at least", nanoseconds / 1_000_000_000)?;
        }
        let slot = laggard.slot;
        match (laggard.state, laggard.process) {
            _ if laggard.is_own => f.write_str("; poll its future to the end, or drop it"),
            (LaggardState::Stopped, Some(process)) => write!(
                f,
                "; the process is stopped: let it continue (kill -CONT {process}), or evict its \
                 client (swarm evict, client {slot})"
            ),
            (LaggardState::Frozen, _) => write!(
                f,
                "; the process is frozen with its control group: let it continue (swarm info says \
                 what thaws it), or evict its client (swarm evict, client {slot})"
            ),
            (LaggardState::StoppedInPart, _) => write!(
                f,
                "; some of its threads are stopped, as by a debugger, and others go on: let those continue, \
                 or evict the client (swarm evict, client {slot})"
            ),
            (LaggardState::Elsewhere, _) => write!(
                f,
                "; its process cannot be seen from here: run swarm info in the outermost pid namespace, or in its \
                 own, to learn whether it is stopped, and let it continue or evict the client there (swarm evict, \
                 client {slot})"
            ),
            (LaggardState::Running, _) => write!(
                f,
                "; its program has to poll the operation's future to its end, or drop it; otherwise \
                 evict the client (swarm evict, client {slot})"
            ),
            _ => write!(
                f,
                "; let its process continue if it is stopped or frozen (swarm info says so); otherwise its \
                 program has to poll the operation's future to its end, or drop it; otherwise evict the \
                 client (swarm evict, client {slot})"
            ),
        }
    }
}

impl Error {
    /// The nodes' memory holds what no step of the protocol can produce.
    pub(crate) const DAMAGED: Self = Self::Replication(swarm_core::error::Error::Damaged);
}

impl From<swarm_core::error::Error> for Error {
    fn from(error: swarm_core::error::Error) -> Self {
        use swarm_core::error::Error as Core;
        // A search for an object goes by the index in the end. If the index itself names an object
        // that no node has, the location is not stale.
        Self::Replication(if error == Core::Gone { Core::Damaged } else { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What helps depends on which client blocks reclamation; deleting keys does not.
    #[test]
    fn a_full_pool_says_what_helps() {
        let (process, nanoseconds) = (Some(71), Some(12_900_000_000));
        let state = LaggardState::Stopped;
        let laggard = Laggard { slot: 3, is_own: false, process, state, since: 5, nanoseconds };
        let of = |state| Some(Laggard { state, ..laggard });
        let shortage = Shortage { object: 64, capacity: 4096, held_up: None, cannot_claim: false };
        let message = |held_up| Error::Full(Shortage { held_up, ..shortage }).to_string();
        for (held_up, helps) in [
            (None, "delete keys"),
            (
                Some(laggard),
                "client 3, process 71, has been under way since epoch 5, for 12 s at least",
            ),
            (Some(laggard), "kill -CONT 71"),
            (of(LaggardState::Running), "its program has to poll"),
            (of(LaggardState::Frozen), "client 3, process 71, has"),
            (of(LaggardState::Frozen), "says what thaws it"),
            (of(LaggardState::Elsewhere), "process 71 of another pid namespace"),
            (of(LaggardState::Elsewhere), "cannot be seen from here"),
            (of(LaggardState::StoppedInPart), "some of its threads are stopped"),
            (
                Some(Laggard { process: None, state: LaggardState::Unknown, ..laggard }),
                "if it is stopped",
            ),
            (Some(Laggard { is_own: true, ..laggard }), "poll its future to the end, or drop it"),
        ] {
            let message = message(held_up);
            assert!(message.contains(helps), "{message}");
            assert_eq!(message.contains("delete keys"), held_up.is_none(), "{message}");
            let evict = held_up.is_some_and(|laggard| !laggard.is_own);
            assert_eq!(message.contains("swarm evict, client 3"), evict, "{message}");
        }
        let shortage = Shortage { cannot_claim: true, ..shortage };
        for error in [Error::Full(shortage), Error::Unsettled(shortage)] {
            let message = error.to_string();
            assert!(
                message.contains("the pool has room") && message.contains("another client"),
                "{message}"
            );
            assert!(!message.contains("is full") && !message.contains("delete keys"), "{message}");
        }
        let held = Error::Unsettled(Shortage { held_up: Some(laggard), ..shortage }).to_string();
        assert!(held.contains("kill -CONT 71") && held.contains("get the key"), "{held}");
    }
}

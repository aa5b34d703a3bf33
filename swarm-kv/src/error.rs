//! Why an operation of the store did not end.

use std::fmt;

use swarm_core::fabric::Laggard;
use swarm_core::layout::{MAX_KEY, MAX_VALUE};

/// Why an operation of the store did not end.
///
/// After [`Error::Replication`], [`Error::Contended`], [`Error::Unsettled`], [`Error::UnsettledSpent`] and
/// [`Error::UnsettledUnfinished`] a write may or may not have taken effect; after all others it has not. (Of one that was begun before a fork, [`Error::Forked`] says
/// so in the child alone: it is the parent's to go on with.) After [`Error::Destroyed`] and [`Error::Gone`] nobody finds what a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty or too long.
    #[error("a key has 1 to {MAX_KEY} bytes, not {0}")]
    Key(usize),
    /// The value is too long.
    #[error("a value has at most {MAX_VALUE} bytes, not {0}")]
    Value(usize),
    /// No memory is left, or this client [can claim](Shortage::cannot_claim) none.
    #[error("{0}")]
    Full(Shortage),
    /// A write met its key on the move to other memory, and there is none for that, as in [`Error::Full`]. Whoever uses
    /// the key next goes on with the move.
    #[error(
        "{0}; the key was on the move: whether the write took effect is not known: get the key first"
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
    /// The pool was destroyed by force under this client, or its destruction was begun. All later operations of the client end so.
    #[error(
        "the pool was destroyed, or its destruction was begun, while this client had it open; open the pool that \
         is there now, if any"
    )]
    Destroyed,
    /// The pool's control file was removed or replaced under this client, which has looked for it: a client that is at work
    /// does so within a second (on shared memory). What it wrote since the removal is lost, whether it was acknowledged
    /// or not. All later operations of the client end so.
    #[error(
        "the pool's control file was removed or replaced while this client had it open; what was written since \
         then is lost; open the pool that is there now, if any"
    )]
    Gone,
    /// An operation waited for another one of this client that has not gone on: a write of the same key, or one that looks
    /// for memory or sets some aside. It had no effect itself.
    #[error(
        "an earlier operation of this client, a write of the same key or one that looks for memory or sets some aside, \
         does not go on, and this one waited for it in vain: poll the earlier one's future to its end, or drop it, then \
         try again"
    )]
    Unfinished,
    /// A write met its key on the move to other memory, and for what that takes waited in vain for another operation of
    /// this client, as in [`Error::Unfinished`]. Whoever uses the key next goes on with the move.
    #[error(
        "an earlier operation of this client, which sets memory aside, does not go on, and this one waited for it in \
         vain; the key was on the move: whether the write took effect is not known: poll the earlier one's future to \
         its end, or drop it, then get the key"
    )]
    UnsettledUnfinished,
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
    /// Bytes of the object, as large as its size class. (Of four bytes, as what an operation ends in should stay small.)
    pub object: u32,
    /// Bytes of each memory node.
    pub capacity: u64,
    /// The client whose operation keeps what others replace from coming back, where that was waited for in vain.
    pub held_up: Option<Laggard>,
    /// The pool has room, and this client cannot claim any: a claim takes a record of the heap map, which is the
    /// object, and others' claims went first as often as its slot has records to begin with.
    pub cannot_claim: bool,
}

/// What there was no memory for, and what to do.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, capacity, cannot_claim, .. } = *self;
        if cannot_claim {
            f.write_str(
                "this client cannot claim memory, though the pool has room: others' claims went first until it had \
                 no record left to make another one with; ",
            )?;
        } else {
            write!(
                f,
                "the pool is full: no room for an object of {object} bytes in the {capacity} bytes of each memory node; "
            )?;
        }
        let Some(laggard) = self.held_up else {
            return f.write_str(if cannot_claim {
                "those come back while every memory node answers: bring nodes back, or open another client"
            } else {
                "delete keys, which makes room while every memory node answers, or move the data to a larger \
                 pool with export and import"
            });
        };
        f.write_str("what is replaced or deleted does not come back, as ")?;
        if laggard.is_own {
            f.write_str("an operation of this client itself")?;
        } else {
            write!(f, "an operation of client {}", laggard.slot)?;
        }
        if let Some(process) = laggard.process {
            write!(f, ", process {process},")?;
        }
        write!(f, " has been under way since epoch {}", laggard.since)?;
        if let Some(nanoseconds) = laggard.nanoseconds {
            write!(f, ", for {} s at least", nanoseconds / 1_000_000_000)?;
        }
        let slot = laggard.slot;
        match laggard.process {
            _ if laggard.is_own => f.write_str("; poll its future to the end, or drop it"),
            Some(process) if laggard.is_stopped => write!(
                f,
                "; the process is stopped: let it go on (kill -CONT {process}), or end it (swarm evict, \
                 client {slot})"
            ),
            Some(_) => write!(
                f,
                "; its program has to poll the operation's future to the end, or to drop it, or is ended \
                 (swarm evict, client {slot})"
            ),
            None => write!(
                f,
                "; let its process go on if it is stopped; else its program has to poll the operation's \
                 future to the end, or to drop it, or is ended (swarm evict, client {slot})"
            ),
        }
    }
}

impl From<swarm_core::error::Error> for Error {
    fn from(error: swarm_core::error::Error) -> Self {
        use swarm_core::error::Error as Core;
        // Who looks for an object goes by the index in the end. If that is what names an object
        // which no node has, the location is not out of date.
        Self::Replication(if error == Core::Gone { Core::Damaged } else { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What helps depends on who it is, and deleting keys does not.
    #[test]
    fn a_full_pool_says_what_helps() {
        let (process, nanoseconds) = (Some(71), Some(12_900_000_000));
        let laggard =
            Laggard { slot: 3, is_own: false, process, is_stopped: true, since: 5, nanoseconds };
        let shortage = Shortage { object: 64, capacity: 4096, held_up: None, cannot_claim: false };
        let said = |held_up| Error::Full(Shortage { held_up, ..shortage }).to_string();
        for (held_up, helps) in [
            (None, "delete keys"),
            (
                Some(laggard),
                "client 3, process 71, has been under way since epoch 5, for 12 s at least",
            ),
            (Some(laggard), "kill -CONT 71"),
            (Some(Laggard { is_stopped: false, ..laggard }), "its program has to poll"),
            (Some(Laggard { process: None, ..laggard }), "if it is stopped"),
            (Some(Laggard { is_own: true, ..laggard }), "poll its future to the end, or drop it"),
        ] {
            let said = said(held_up);
            assert!(said.contains(helps), "{said}");
            assert_eq!(said.contains("delete keys"), held_up.is_none(), "{said}");
            let evict = held_up.is_some_and(|laggard| !laggard.is_own);
            assert_eq!(said.contains("swarm evict, client 3"), evict, "{said}");
        }
        let shortage = Shortage { cannot_claim: true, ..shortage };
        for error in [Error::Full(shortage), Error::Unsettled(shortage)] {
            let said = error.to_string();
            assert!(
                said.contains("the pool has room") && said.contains("another client"),
                "{said}"
            );
            assert!(!said.contains("is full") && !said.contains("delete keys"), "{said}");
        }
        let held = Error::Unsettled(Shortage { held_up: Some(laggard), ..shortage }).to_string();
        assert!(held.contains("kill -CONT 71") && held.contains("get the key"), "{held}");
    }
}

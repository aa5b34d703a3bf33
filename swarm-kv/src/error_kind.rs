//! What a program can do about an error.

use crate::error::{Error, Shortage};

/// What a program can do where an operation ended in an [`Error`]. The error's text says more.
///
/// Whether a write took effect is another question: [`Error::may_have_taken_effect`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The same operation may do later: others went first, memory nodes did not answer, or a stopped client keeps
    /// memory from coming back. Wait longer from one try to the next, and look at the error's text if it lasts.
    Retry,
    /// The pool has no room for it. Delete keys, or move to a larger pool.
    MakeRoom,
    /// It is this client's or this handle's end, not the data's. Open another one, in this process, of the pool that is there now.
    Reopen,
    /// It ends so each time: the key or the value is none, or the pool is worn out or damaged.
    GiveUp,
}

impl Error {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        use swarm_core::error::Error as Core;
        match self {
            Self::Key(_) | Self::Value(_) | Self::Type(_) | Self::TooManyCollisions => {
                ErrorKind::GiveUp
            }
            Self::Number(_) | Self::Overflow => ErrorKind::GiveUp,
            Self::TooLongForCell(_) | Self::NoCells => ErrorKind::GiveUp,
            Self::Full(shortage) | Self::Unsettled(shortage) => shortage.kind(),
            Self::Contended | Self::Unfinished | Self::UnsettledUnfinished => ErrorKind::Retry,
            Self::NumbersExhausted | Self::UnsettledNumbersExhausted => ErrorKind::Reopen,
            Self::Forked | Self::Destroyed | Self::Gone => ErrorKind::Reopen,
            Self::Replication(Core::NoMajority { .. } | Core::Moved | Core::Contended) => {
                ErrorKind::Retry
            }
            Self::CutShort => ErrorKind::GiveUp,
            // Objects that are worn out, and memory that is damaged, stay so; of what is not known yet, nothing is promised.
            Self::Replication(_) => ErrorKind::GiveUp,
        }
    }

    /// Whether a write that ended so may have taken effect. After all others it has not: what an insert then says of a second try
    /// holds for that try alone.
    #[must_use]
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Replication(_)
            | Self::Contended
            | Self::Unsettled(_)
            | Self::UnsettledNumbersExhausted
            | Self::UnsettledUnfinished
            | Self::Destroyed
            | Self::Gone
            | Self::CutShort => true,
            Self::Key(_)
            | Self::Value(_)
            | Self::Type(_)
            | Self::Number(_)
            | Self::Overflow
            | Self::TooLongForCell(_)
            | Self::NoCells
            | Self::Full(_)
            | Self::NumbersExhausted
            | Self::Forked
            | Self::Unfinished
            | Self::TooManyCollisions => false,
        }
    }
}

impl Shortage {
    fn kind(&self) -> ErrorKind {
        match self {
            // Room comes back with the client that keeps it, and deleting keys makes none before.
            Self { held_up: Some(_), .. } => ErrorKind::Retry,
            Self { cannot_claim: true, .. } => ErrorKind::Reopen,
            _ => ErrorKind::MakeRoom,
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::error::Error as Core;
    use swarm_core::fabric::{Laggard, LaggardState};

    use super::*;

    /// An error of each variant, and of each that it holds.
    fn all() -> Vec<Error> {
        let laggard = Laggard {
            slot: 3,
            is_own: false,
            process: Some(71),
            state: LaggardState::Stopped,
            since: 5,
            nanoseconds: None,
        };
        let full = Shortage { object: 64, capacity: 4096, held_up: None, cannot_claim: false };
        let held_up = Shortage { held_up: Some(laggard), ..full };
        let cannot_claim = Shortage { cannot_claim: true, ..full };
        let cores = [
            Core::NoMajority { answered: 1, needed: 2 },
            Core::Exhausted,
            Core::Moved,
            Core::Contended,
            Core::Gone,
            Core::Damaged,
        ];
        let mut all = vec![
            Error::Key(0),
            Error::Value(1 << 30),
            Error::Type(3),
            Error::Number(5),
            Error::Overflow,
            Error::TooLongForCell(5000),
            Error::NoCells,
            Error::NumbersExhausted,
            Error::UnsettledNumbersExhausted,
            Error::Contended,
            Error::Forked,
            Error::Destroyed,
            Error::Gone,
            Error::CutShort,
            Error::Unfinished,
            Error::UnsettledUnfinished,
            Error::TooManyCollisions,
        ];
        for shortage in [full, held_up, cannot_claim] {
            all.extend([Error::Full(shortage), Error::Unsettled(shortage)]);
        }
        all.extend(cores.map(Error::Replication));
        all
    }

    /// An error says twice what to do, as a kind and in words: they agree.
    #[test]
    fn a_kind_says_what_the_text_says() {
        for error in all() {
            let message = error.to_string();
            let hints: &[&str] = match error.kind() {
                ErrorKind::Retry => {
                    &["try", "wait longer", "get the key", "let it continue", "look it up"]
                }
                ErrorKind::MakeRoom => &["delete keys"],
                ErrorKind::Reopen => {
                    &["open another client", "open a new client", "open the pool that is there now"]
                }
                ErrorKind::GiveUp => &[
                    "bytes",
                    "share one hash",
                    "new one",
                    "new pool",
                    "repair the pool",
                    "no longer",
                    "add less",
                ],
            };
            assert!(
                hints.iter().any(|hint| message.contains(hint)),
                "{:?}: {message}",
                error.kind()
            );
            let unknown = message.contains("may or may not") || message.contains("may be lost");
            let is_local =
                matches!(error, Error::Replication(_) | Error::Destroyed | Error::CutShort);
            assert!(is_local || unknown == error.may_have_taken_effect(), "{message}");
        }
    }

    /// No variant is left out above: the compiler reports one that is added.
    #[test]
    fn each_variant_is_judged() {
        let of = |error: &Error| match error {
            Error::Key(_) => 0,
            Error::Value(_) => 1,
            Error::Type(_) => 2,
            Error::Full(_) => 3,
            Error::Unsettled(_) => 4,
            Error::NumbersExhausted => 5,
            Error::UnsettledNumbersExhausted => 6,
            Error::Contended => 7,
            Error::Forked => 8,
            Error::Destroyed => 9,
            Error::Gone => 10,
            Error::Unfinished => 11,
            Error::UnsettledUnfinished => 12,
            Error::TooManyCollisions => 13,
            Error::Replication(_) => 14,
            Error::CutShort => 15,
            Error::Number(_) => 16,
            Error::Overflow => 17,
            Error::TooLongForCell(_) => 18,
            Error::NoCells => 19,
        };
        let met: std::collections::BTreeSet<_> = all().iter().map(of).collect();
        assert_eq!(met, (0..20).collect());
        let kinds: std::collections::HashSet<_> = all().iter().map(Error::kind).collect();
        assert_eq!(kinds.len(), 4);
    }
}

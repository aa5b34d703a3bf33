//! Why a command failed.

use std::fmt::Display;
use std::io;
use std::path::Path;

use swarm_kv::Error;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The usage was wrong.
    Usage(String),
    /// The command failed.
    Failed(String),
    /// The store failed.
    Store {
        /// The error.
        error: Error,
        /// Where in the input of an import, if it is one.
        at: Option<AtLine>,
    },
    /// A signal ended it; this is the message.
    Interrupted(String),
    /// The reader of the output is gone, as in `swarm export POOL | head`.
    OutputClosed,
}

/// How far an import got.
#[derive(Clone, Copy, Debug)]
pub struct AtLine {
    /// The line that failed, counted from 1.
    pub line: u64,
    /// So many lines from the first on are stored. Others before that line may not be, and others
    /// behind it may be.
    pub stored: u64,
}

impl AtLine {
    /// What is known to be stored after this error; nothing if that is lost with the pool.
    fn stored_after(self, error: &Error) -> String {
        match error {
            Error::Destroyed | Error::Gone => String::new(),
            _ => format!(" (known to be stored: the first {} lines)", self.stored),
        }
    }
}

impl Failure {
    /// Makes the failure of `what` because of `why`.
    pub fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// Names the pool whose store failed.
    pub fn in_pool(self, pool: &Path) -> Self {
        let Self::Store { error, at } = self else { return self };
        let pool = pool.display();
        Self::Failed(match at {
            Some(at) => {
                format!("line {}: {pool}: {error}{}", at.line, at.stored_after(&error))
            }
            None => format!("{pool}: {error}"),
        })
    }

    /// Appends `more` to the message.
    pub fn and(self, more: &str) -> Self {
        match self {
            Self::Usage(message) => Self::Usage(format!("{message} ({more})")),
            Self::Failed(message) => Self::Failed(format!("{message} ({more})")),
            Self::Interrupted(message) => Self::Interrupted(format!("{message} ({more})")),
            Self::Store { error, .. } => Self::Failed(format!("{error} ({more})")),
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// Returns the message. `None` if the output has no reader.
    pub fn message(self) -> Option<String> {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Interrupted(message) => {
                Some(message)
            }
            Self::Store { error, .. } => Some(error.to_string()),
            Self::OutputClosed => None,
        }
    }

    /// Makes the failure of writing output.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::because("cannot write the output", error)
        }
    }
}

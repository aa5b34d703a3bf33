//! Why a command could not be carried out.

use std::fmt::Display;
use std::io;
use std::path::Path;

use swarm_kv::Error;

/// Why a command could not be carried out.
#[derive(Debug)]
pub enum Failure {
    /// It was asked for wrongly.
    Usage(String),
    /// It went wrong.
    Failed(String),
    /// The store failed; at this line of an import's input, if any.
    Store {
        /// Why.
        error: Error,
        /// The line, counted from 1.
        line: Option<u64>,
    },
    /// A signal ended it; what is told of that.
    Interrupted(String),
    /// Nobody reads the output any more, as in `swarm export POOL | head`.
    OutputClosed,
}

impl Failure {
    /// `what` went wrong because of `why`.
    pub fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// Names the pool whose store failed.
    pub fn in_pool(self, pool: &Path) -> Self {
        let Self::Store { error, line } = self else { return self };
        let pool = pool.display();
        Self::Failed(match line {
            Some(line) => {
                format!("line {line}: {pool}: {error} (the lines before it are stored)")
            }
            None => format!("{pool}: {error}"),
        })
    }

    /// The same, and what else there is to know.
    pub fn and(self, more: &str) -> Self {
        match self {
            Self::Usage(message) => Self::Usage(format!("{message} ({more})")),
            Self::Failed(message) => Self::Failed(format!("{message} ({more})")),
            Self::Interrupted(message) => Self::Interrupted(format!("{message} ({more})")),
            Self::Store { error, .. } => Self::Failed(format!("{error} ({more})")),
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// What is told of it; `None` if nobody is there to be told.
    pub fn message(self) -> Option<String> {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Interrupted(message) => {
                Some(message)
            }
            Self::Store { error, .. } => Some(error.to_string()),
            Self::OutputClosed => None,
        }
    }

    /// Output could not be written.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::because("cannot write the output", error)
        }
    }
}

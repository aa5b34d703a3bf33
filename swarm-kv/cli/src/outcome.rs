//! How a command ends, and what the shell is told.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use swarm_kv::Error;

/// How a command ended that could be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Done.
    Yes,
    /// The store's answer is no: absent, exists, or a verdict that does not hold.
    No,
    /// There is no answer, and it was said why.
    Unclear,
}

/// Why a command could not be carried out.
#[derive(Debug)]
pub(crate) enum Failure {
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
    pub(crate) fn because(what: impl Display, why: impl Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }

    /// Names the pool whose store failed.
    pub(crate) fn in_pool(self, pool: &Path) -> Self {
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
    pub(crate) fn and(self, more: &str) -> Self {
        match self {
            Self::Usage(message) => Self::Usage(format!("{message} ({more})")),
            Self::Failed(message) => Self::Failed(format!("{message} ({more})")),
            Self::Interrupted(message) => Self::Interrupted(format!("{message} ({more})")),
            Self::Store { error, .. } => Self::Failed(format!("{error} ({more})")),
            Self::OutputClosed => Self::OutputClosed,
        }
    }

    /// What is told of it; `None` if nobody is there to be told.
    pub(crate) fn message(self) -> Option<String> {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Interrupted(message) => {
                Some(message)
            }
            Self::Store { error, .. } => Some(error.to_string()),
            Self::OutputClosed => None,
        }
    }

    /// Output could not be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::because("cannot write the output", error)
        }
    }
}

/// Tells the user and the shell how it went: 0 done, 1 no, 2 usage, 3 failure, 130 interrupted.
pub(crate) fn report(result: Result<Answer, Failure>, json: bool) -> ExitCode {
    let failure = match result {
        Ok(Answer::Yes) => return ExitCode::SUCCESS,
        Ok(Answer::No) => return ExitCode::from(1),
        Ok(Answer::Unclear) => return ExitCode::from(3),
        Err(failure) => failure,
    };
    let code = match failure {
        Failure::Usage(_) => 2,
        Failure::Interrupted(_) => 130,
        _ => 3,
    };
    let Some(message) = failure.message() else { return ExitCode::SUCCESS };
    tell(format_args!("swarm: {message}"));
    if json {
        // A failure stays one, whether or not it can be told.
        let _ = say(json!({ "error": message }));
    }
    ExitCode::from(code)
}

/// Prints a line on standard output, which may be closed or full.
pub(crate) fn say(line: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{line}").map_err(|error| Failure::output(&error))
}

/// Prints a line on standard error. Where that cannot be written to, nobody wants to know.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

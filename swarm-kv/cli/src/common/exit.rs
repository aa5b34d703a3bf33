//! How a command ends, and what exit status the shell gets.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;
pub(crate) use swarm_worker::{AtLine, Failure};

/// How a command ended that could be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Done.
    Yes,
    /// The store's answer is no: absent, exists, or a verdict that does not hold.
    No,
    /// That of a command that was run.
    Code(u8),
    /// There is no answer, and the reason was printed.
    Unclear,
}

/// Reports to the user and the shell how it went: 0 done, 1 no, 2 usage, 3 failure, 130 interrupted.
pub(crate) fn report(result: Result<Answer, Failure>, json: bool) -> ExitCode {
    let failure = match result {
        Ok(Answer::Yes) => return ExitCode::SUCCESS,
        Ok(Answer::No) => return ExitCode::from(1),
        Ok(Answer::Code(code)) => return ExitCode::from(code),
        Ok(Answer::Unclear) => return ExitCode::from(3),
        Err(failure) => failure,
    };
    let code = match failure {
        Failure::Usage(_) => 2,
        Failure::Interrupted(_) => 130,
        _ => 3,
    };
    let Some(message) = failure.message() else { return ExitCode::SUCCESS };
    eprint_line(format_args!("swarm: {message}"));
    if json {
        // A failure stays one, whether or not it can be reported.
        let _ = print_line(json!({ "error": message }));
    }
    ExitCode::from(code)
}

/// Prints a line on standard output, which may be closed or full.
pub(crate) fn print_line(line: impl Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{line}").map_err(|error| Failure::output(&error))
}

/// Prints a line on standard error. Where that cannot be written to, nobody wants to know.
pub(crate) fn eprint_line(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

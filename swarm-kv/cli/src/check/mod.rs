//! `swarm check`: checks whether a history is linearizable.

pub(crate) mod args;

use std::fs::File;
use std::io::{self, BufReader, Read};

use indicatif::ProgressBar;
use serde_json::Value;
use swarm_worker::history::History;

use crate::check::args::CheckArgs;
use crate::common::exit::{Answer, Failure, print_line};
use crate::common::verdict::{check_history, style};

/// Checks the history in a file.
pub(crate) fn run(args: &CheckArgs, json: bool) -> Result<Answer, Failure> {
    let failed = |error| Failure::because(format!("cannot read {}", args.file.display()), error);
    let (input, size, name): (Box<dyn Read>, _, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin()), None, "standard input".to_owned())
    } else {
        let file = File::open(&args.file).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        (Box::new(file), meta.is_file().then_some(meta.len()), args.file.display().to_string())
    };
    let bar = size.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.set_style(style("reading {wide_bar} {bytes}/{total_bytes} {eta}"));
    let input = BufReader::with_capacity(1 << 16, bar.wrap_read(input));
    let history = History::read(input, &name)?;
    if history.operations.is_empty() {
        // An empty history is linearizable, but it probably was lost.
        return Err(Failure::Failed(format!("{name} holds no operation")));
    }
    bar.finish_and_clear();
    let verdict = check_history(&history)?;
    verdict.answer_once(if json {
        print_line(Value::Object(verdict.json(&history)))
    } else {
        verdict.print_line(&history)
    })
}

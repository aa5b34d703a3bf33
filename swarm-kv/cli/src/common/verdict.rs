//! Whether a history is linearizable.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use swarm_core::history::{BUDGET, Operation, Rejected, Window, check_key, with_expiries};
use swarm_worker::history::{History, Outcome};

use crate::common::counterexample::{show_window, window_json};
use crate::common::exit::{Answer, Failure, print_line};

/// How progress with a history is shown.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}

/// The verdict on a history.
#[derive(Debug)]
pub(crate) struct Verdict {
    keys: usize,
    unknown: usize,
    /// The keys whose histories are not linearizable.
    wrong: Vec<u64>,
    /// The shortest of their counterexamples.
    window: Option<Window>,
}

/// Checks a history whose keys are absent at first.
pub(crate) fn check_history(history: &History) -> Result<Verdict, Failure> {
    let bar = ProgressBar::new(history.operations.len() as u64)
        .with_style(style("judging {wide_bar} {human_pos}/{human_len} {eta}"));
    let verdict = judge_quietly(history, |operations| bar.inc(operations))?;
    bar.finish_and_clear();
    Ok(verdict)
}

/// Does the same; `judged` gets the number of operations checked.
pub(crate) fn judge_quietly(history: &History, judged: impl Fn(u64)) -> Result<Verdict, Failure> {
    let mut keys = BTreeMap::<u64, Vec<Operation>>::new();
    for op in &history.operations {
        keys.entry(op.key).or_default().push(*op);
    }
    let unknown = |op: &&Operation| Outcome::of(op) == Outcome::Unknown;
    let mut verdict = Verdict {
        keys: keys.len(),
        unknown: history.operations.iter().filter(unknown).count(),
        wrong: Vec::new(),
        window: None,
    };
    // A key whose history is too hard to decide. A wrong key decides the verdict regardless of it.
    let mut undecided = None;
    for (key, operations) in keys {
        match check_key(&with_expiries(&operations), None, BUDGET) {
            Ok(()) => {}
            Err(Rejected::Violation(window)) => {
                verdict.wrong.push(key);
                let shortest = verdict.window.as_ref().map_or(usize::MAX, |w| w.operations.len());
                if window.operations.len() < shortest {
                    verdict.window = Some(window);
                }
            }
            Err(Rejected::Undecided { budget, .. }) => {
                undecided = Some((key, budget));
            }
        }
        judged(operations.len() as u64);
    }
    match undecided {
        Some((key, budget)) if verdict.is_good() => Err(Failure::Failed(format!(
            "key {:?}: whether its history is linearizable is not clear after {budget} steps; take a \
             shorter history, or values that are written once",
            history.keys.name(key)
        ))),
        _ => Ok(verdict),
    }
}

impl Verdict {
    /// Returns the exit status; `printed` is the result of printing. The verdict holds even if the
    /// reader of the output is gone, as in `swarm check FILE | head -1`.
    pub(crate) fn answer_once(&self, printed: Result<(), Failure>) -> Result<Answer, Failure> {
        match printed {
            Ok(()) | Err(Failure::OutputClosed) if self.wrong.is_empty() => Ok(Answer::Yes),
            Ok(()) | Err(Failure::OutputClosed) => Ok(Answer::No),
            Err(failure) => Err(failure),
        }
    }

    /// Returns whether no key is wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Returns the verdict as JSON.
    pub(crate) fn json(&self, history: &History) -> Map<String, Value> {
        let mut object = Map::new();
        let wrong: Vec<_> = self.wrong.iter().map(|&key| history.keys.name(key)).collect();
        object.insert("linearizable".into(), json!(self.wrong.is_empty()));
        object.insert("operations".into(), json!(history.operations.len()));
        object.insert("keys".into(), json!(self.keys));
        object.insert("unknown".into(), json!(self.unknown));
        object.insert("wrong_keys".into(), json!(wrong));
        let window = self.window.as_ref().map(|window| window_json(history, window));
        object.insert("window".into(), json!(window));
        object
    }

    /// Prints the verdict as text.
    pub(crate) fn print_line(&self, history: &History) -> Result<(), Failure> {
        if let Some(window) = &self.window {
            print_line(show_window(history, window))?;
        }
        let text = format!(
            "operations {}, keys {}, of unknown outcome {}",
            history.operations.len(),
            self.keys,
            self.unknown
        );
        match self.wrong.len() {
            0 => print_line(format_args!("linearizable: {text}")),
            wrong => {
                print_line(format_args!("NOT linearizable: {text}, keys that are wrong {wrong}"))
            }
        }
    }
}

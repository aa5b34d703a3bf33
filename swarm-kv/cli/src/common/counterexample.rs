//! Prints a counterexample as a table and a timeline.

use serde_json::{Value, json};
use swarm_core::history::{Answer, Call, Operation, Window};

use swarm_worker::history::{History, Line, Op, Outcome};

use crate::common::units::show_ns;

/// The maximum width of a timeline.
const WIDTH: usize = 48;
/// Longer names are cut.
const NAME: usize = 24;
/// The most operations that are shown.
const MOST: usize = 60;

/// Returns a counterexample as JSON.
pub(crate) fn window_json(history: &History, window: &Window) -> Value {
    let lines: Vec<Line> = window.operations.iter().map(|op| history.line(op)).collect();
    json!({
        "key": history.keys.name(window.key),
        "whatever_was_there_at_first": window.initial.is_none(),
        "operations": lines,
        "others": window.others,
    })
}

/// Returns a counterexample as text.
pub(crate) fn show_window(history: &History, window: &Window) -> String {
    let mut text = format!(
        "key {:?} is not linearizable. There is no order in which these fit together{}:\n\n",
        history.keys.name(window.key),
        if window.initial.is_none() { ", whatever was there at first" } else { "" },
    );
    let operations = &window.operations[..window.operations.len().min(MOST)];
    let rows: Vec<[String; 4]> = operations.iter().map(|op| row(history, op)).collect();
    let widths: [usize; 4] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let times = times(operations);
    for (op, row) in operations.iter().zip(&rows) {
        for (cell, width) in row.iter().zip(widths) {
            text.push_str(&format!("  {cell:width$}"));
        }
        text.push_str(&format!("  {}\n", bar(op, &times)));
    }
    if let (Some(first), Some(last)) = (times.first(), times.last()) {
        text.push_str(&format!(
            "\nfrom {first} ns to {last} ns: {}. A bar goes from a call to its return; bars show the \
             order, not lengths of time\n",
            show_ns(last - first)
        ));
    }
    let hidden = window.others + (window.operations.len() - operations.len());
    if hidden > 0 {
        text.push_str(&format!(
            "other operations at that time, which do not explain it: {hidden}\n"
        ));
    }
    text
}

fn row(history: &History, op: &Operation) -> [String; 4] {
    let written = match op.call {
        Call::Put(value) | Call::Insert(value) | Call::Update(value) => show(history, value),
        Call::CompareAndSwap { expected, new } => {
            format!("{} for {}", or_none(history, new), or_none(history, expected))
        }
        Call::Swap(new) => or_none(history, new),
        Call::Increment(by) => by.to_string(),
        Call::PutWithTtl { value, ttl } => format!("{} for {ttl} ns", show(history, value)),
        Call::Expire(value) => show(history, value),
        Call::Get | Call::Delete | Call::Persist | Call::Ttl => String::new(),
    };
    let answer = match op.answered {
        Some((_, Answer::Value(Some(value)))) => show(history, value),
        Some((_, Answer::Life(Some(expires)))) => {
            if expires { "expires" } else { "stays" }.to_owned()
        }
        _ => Outcome::of(op).name().to_owned(),
    };
    let op_name = Op::of(op.call).name().to_owned();
    [format!("client {}", op.client), op_name, written, format!("-> {answer}")]
}

/// Shows a value, or that there is none.
fn or_none(history: &History, value: Option<u64>) -> String {
    value.map_or("nothing".to_owned(), |value| show(history, value))
}

/// Shows a value, distinct from all others and from outcomes: quoted and escaped, and followed by
/// its number in the history if it is too long.
fn show(history: &History, value: u64) -> String {
    let name = history.value_name(value);
    let quoted = |length| format!("{:?}", name.chars().take(length).collect::<String>());
    if name.chars().nth(NAME).is_none() {
        return quoted(NAME);
    }
    format!("{}… (value {value})", quoted(NAME / 2))
}

/// Returns the times of all calls and returns.
fn times(operations: &[Operation]) -> Vec<u64> {
    let ends = operations.iter().filter_map(|op| Some(op.answered?.0));
    let mut times: Vec<u64> = operations.iter().map(|op| op.called).chain(ends).collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// Draws an operation's bar. Calls and returns are evenly spaced, so that short operations are
/// visible.
fn bar(op: &Operation, times: &[u64]) -> String {
    let last = times.len().saturating_sub(1).max(1);
    let width = (3 * last).min(WIDTH);
    let at = |time: u64| times.partition_point(|&other| other < time).min(last) * width / last;
    let from = at(op.called);
    let to = op.answered.map(|(end, _)| at(end));
    let line = "─".repeat(to.unwrap_or(width).saturating_sub(from + 1));
    match to {
        Some(to) if to == from => format!("{}┼", " ".repeat(from)),
        Some(_) => format!("{}├{line}┤", " ".repeat(from)),
        None => format!("{}├{line}╌ ?", " ".repeat(from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control characters were shown as dots, and long values were cut to a prefix that they may
    /// share.
    #[test]
    fn values_that_differ_look_different() {
        let long = |end: char| format!("{}{end}", "x".repeat(2 * NAME));
        let mut names: Vec<String> =
            [".", "\u{1b}", "\\u{1b}", "", " ", "\"", "\\\"", "…", "\u{200b}"]
                .map(str::to_owned)
                .to_vec();
        names.extend(['1', '2', '\u{1b}'].map(long));
        let mut history = History::default();
        let mut shown: Vec<String> = names
            .iter()
            .map(|name| {
                let value = history.value(name.clone());
                show(&history, value)
            })
            .collect();
        assert!(shown.iter().all(|shown| !shown.contains(char::is_control)), "{shown:?}");
        shown.sort_unstable();
        shown.dedup();
        assert_eq!(shown.len(), names.len(), "{shown:?}");
    }
}

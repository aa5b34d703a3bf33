//! A failing window, as a table and a time-line.

use serde_json::{Value, json};
use swarm_core::history::{Operation, Window};

use super::check_format::{History, Line, Op, Outcome};
use super::units::show_ns;

/// The widest time-line.
const WIDTH: usize = 48;
/// Longer names are cut.
const NAME: usize = 20;
/// More operations are not shown.
const MOST: usize = 60;

/// For programs.
pub(crate) fn window_json(history: &History, window: &Window) -> Value {
    let lines: Vec<Line> = window.operations.iter().map(|op| history.line(op)).collect();
    json!({
        "key": history.keys.name(window.key),
        "whatever_was_there_at_first": window.initial.is_none(),
        "operations": lines,
        "others": window.others,
    })
}

/// For people.
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
    let line = serde_json::to_value(history.line(op)).unwrap_or_default();
    let text = |field: &str| line[field].as_str().map_or(String::new(), cut);
    let answer = match (Op::of(op.call), Outcome::of(op)) {
        (Op::Get, Outcome::Ok) => format!("-> {}", text("read")),
        (_, outcome) => format!("-> {}", outcome.name()),
    };
    [format!("client {}", op.client), Op::of(op.call).name().to_owned(), text("value"), answer]
}

fn cut(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '.' } else { c }).collect();
    if name.chars().count() <= NAME {
        return name;
    }
    name.chars().take(NAME - 1).chain(['…']).collect()
}

/// All calls and returns.
fn times(operations: &[Operation]) -> Vec<u64> {
    let ends = operations.iter().filter_map(|op| Some(op.answered?.0));
    let mut times: Vec<u64> = operations.iter().map(|op| op.called).chain(ends).collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// An operation's bar. Calls and returns are evenly spaced, so that short ones are seen.
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

//! What torture brought, for people and for programs.

use serde_json::{Value, json};
use swarm_core::history::Operation;

use super::busy::Busy;
use super::check::Verdict;
use super::check_format::{History, Op, Outcome};
use super::outcome::{Failure, say};
use super::units::{count, show_ns, show_rate};

/// So long a death may be felt.
const SOON_NS: u64 = 100_000_000;

/// All that is worth telling.
pub(crate) struct Brought {
    pub(crate) seconds: f64,
    pub(crate) clients: u32,
    pub(crate) kills: u64,
    pub(crate) freezes: u64,
    pub(crate) gone: Vec<u8>,
    /// Keys that were moved to fresh registers: at least so many, as a client that is killed takes
    /// along what it did not tell yet.
    pub(crate) moved: u64,
    /// Whether it ended early because the pool was full.
    pub(crate) full: bool,
    pub(crate) widest_gap_ns: u64,
    /// The longest that an operation took that was answered.
    pub(crate) slowest_ns: u64,
    /// The longest of those that were under way when a client was killed, or soon after.
    pub(crate) slowest_at_kills_ns: u64,
    pub(crate) busy: Option<Busy>,
    pub(crate) verdict: Verdict,
}

/// The longest time without an answer to anybody, between the first answer and the last.
pub(crate) fn widest_gap(history: &History) -> u64 {
    let mut ends: Vec<u64> =
        history.operations.iter().filter_map(|op| Some(op.answered?.0)).collect();
    ends.sort_unstable();
    ends.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0)
}

/// The longest that one of these took, if it was answered.
pub(crate) fn slowest<'o>(operations: impl IntoIterator<Item = &'o Operation>) -> u64 {
    let took = |op: &Operation| Some(op.answered?.0.saturating_sub(op.called));
    operations.into_iter().filter_map(took).max().unwrap_or(0)
}

/// The longest of those that were under way within [`SOON_NS`] after one of these moments.
pub(crate) fn slowest_at(operations: &[Operation], moments: &[u64]) -> u64 {
    let at_one = |op: &&Operation| {
        let ended = op.answered.map_or(u64::MAX, |(ended, _)| ended);
        moments.iter().any(|&at| op.called <= at + SOON_NS && at <= ended)
    };
    slowest(operations.iter().filter(at_one))
}

fn counts(history: &History) -> [[u64; 4]; 5] {
    let mut counts = [[0; 4]; 5];
    for op in &history.operations {
        counts[Op::of(op.call) as usize][Outcome::of(op) as usize] += 1;
    }
    counts
}

impl Brought {
    /// Prints it.
    pub(crate) fn print(&self, history: &History, json: bool) -> Result<(), Failure> {
        if json { say(self.json(history)) } else { self.table(history) }
    }

    fn json(&self, history: &History) -> Value {
        let mut object = self.verdict.json(history);
        object.insert("seconds".into(), json!(self.seconds));
        for (op, counts) in Op::ALL.into_iter().zip(counts(history)) {
            let outcomes = Outcome::ALL.into_iter().zip(counts);
            let outcomes: serde_json::Map<_, _> =
                outcomes.map(|(outcome, n)| (outcome.name().to_owned(), json!(n))).collect();
            object.insert(op.name().into(), Value::Object(outcomes));
        }
        object.insert("clients".into(), json!(self.clients));
        object.insert("kills".into(), json!(self.kills));
        object.insert("freezes".into(), json!(self.freezes));
        object.insert("killed_nodes".into(), json!(self.gone));
        object.insert("moved".into(), json!(self.moved));
        object.insert("widest_gap_ns".into(), json!(self.widest_gap_ns));
        object.insert("slowest_ns".into(), json!(self.slowest_ns));
        object.insert("slowest_at_kills_ns".into(), json!(self.slowest_at_kills_ns));
        object.insert("pool_full".into(), json!(self.full));
        object.insert("machine".into(), self.busy.map_or(Value::Null, Busy::json));
        Value::Object(object)
    }

    fn table(&self, history: &History) -> Result<(), Failure> {
        let [ok, absent, exists, unknown] = Outcome::ALL.map(Outcome::name);
        say(format_args!("\n  {:8}{ok:>12}{absent:>12}{exists:>12}{unknown:>12}", ""))?;
        for (op, counts) in Op::ALL.into_iter().zip(counts(history)) {
            let [ok, absent, exists, unknown] = counts;
            let name = op.name();
            say(format_args!("  {name:8}{ok:>12}{absent:>12}{exists:>12}{unknown:>12}"))?;
        }
        let rate = show_rate(history.operations.len() as f64 / self.seconds.max(1e-9));
        say(format_args!("\n  throughput      {rate} for {:.1} s", self.seconds))?;
        say(format_args!("  widest gap      {} without an answer", show_ns(self.widest_gap_ns)))?;
        let [slowest, at_kills] = [self.slowest_ns, self.slowest_at_kills_ns].map(show_ns);
        let felt =
            if self.kills > 0 { format!(", {at_kills} after a kill") } else { String::new() };
        say(format_args!("  slowest         {slowest}{felt}"))?;
        say(format_args!("  clients         {}, killed {}", self.clients, self.kills))?;
        let gone: Vec<_> = self.gone.iter().map(u8::to_string).collect();
        let gone = match gone.as_slice() {
            [] => "none".to_owned(),
            [node] => format!("node {node}"),
            nodes => format!("nodes {}", nodes.join(", ")),
        };
        say(format_args!("  nodes           freezes {}, gone for good: {gone}", self.freezes))?;
        say(format_args!("  moved           {} at least", count(self.moved, "key")))?;
        if self.full {
            say("  the pool was full before the time was over; what was done until then counts")?;
        }
        if let Some(busy) = self.busy.and_then(Busy::said) {
            say(format_args!("  {busy}"))?;
        }
        say("")?;
        self.verdict.say(history)
    }
}

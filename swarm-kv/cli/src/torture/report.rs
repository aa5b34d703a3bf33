//! The result of torture, as text and as JSON.

use serde_json::{Value, json};
use swarm_core::history::{Answer as Shown, Call, Operation};
use swarm_worker::history::{History, Op, Outcome};
use swarm_worker::job::Served;

use crate::common::busy::Busy;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, show_ns, show_rate};
use crate::common::verdict::Verdict;

/// How long the effect of a kill may last.
const SOON_NS: u64 = 100_000_000;
/// If the pool was full before this many writes took effect, there is no verdict.
const FEWEST_WRITES: u64 = 100;

/// The result of a run.
pub(crate) struct TortureResult {
    pub(crate) seconds: f64,
    pub(crate) clients: u32,
    pub(crate) kills: u64,
    /// Number of stops of clients.
    pub(crate) stops: u64,
    pub(crate) freezes: u64,
    /// How often a node went down and came back.
    pub(crate) downs: u64,
    /// How often a node was lost and replaced, and how many processes were killed at that, if nodes were.
    pub(crate) replaced: Option<(u64, u64)>,
    pub(crate) gone: Vec<u8>,
    /// Keys relocated to new registers. A lower bound, because a killed client's unreported ones
    /// are lost.
    pub(crate) moved: u64,
    /// Whether the run ended early because the pool was full.
    pub(crate) full: bool,
    /// Values written during the failures.
    pub(crate) writes: u64,
    /// How clients were served once nothing failed any more.
    pub(crate) served: Served,
    pub(crate) widest_gap_ns: u64,
    /// The longest time of an answered operation.
    pub(crate) slowest_ns: u64,
    /// The longest time of those in progress at a kill, or soon after.
    pub(crate) slowest_at_kills_ns: u64,
    pub(crate) busy: Option<Busy>,
    pub(crate) verdict: Verdict,
}

/// Returns how many of these are acknowledged writes of a value.
pub(crate) fn writes(operations: &[Operation]) -> u64 {
    let is_write = |op: &&Operation| {
        matches!(op.call, Call::Put(_) | Call::Insert(_) | Call::Update(_))
            && matches!(op.answered, Some((_, Shown::Done)))
    };
    operations.iter().filter(is_write).count() as u64
}

/// Returns the longest time without an answer to any client, between the first answer and the last.
pub(crate) fn widest_gap(operations: &[Operation]) -> u64 {
    let mut ends: Vec<u64> = operations.iter().filter_map(|op| Some(op.answered?.0)).collect();
    ends.sort_unstable();
    ends.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0)
}

/// Returns the longest time of an answered operation among these.
pub(crate) fn slowest<'o>(operations: impl IntoIterator<Item = &'o Operation>) -> u64 {
    let took = |op: &Operation| Some(op.answered?.0.saturating_sub(op.called));
    operations.into_iter().filter_map(took).max().unwrap_or(0)
}

/// Returns the longest time of those in progress within [`SOON_NS`] after one of these moments.
pub(crate) fn slowest_at(operations: &[Operation], moments: &[u64]) -> u64 {
    let at_one = |op: &&Operation| {
        let ended = op.answered.map_or(u64::MAX, |(ended, _)| ended);
        moments.iter().any(|&at| op.called <= at + SOON_NS && at <= ended)
    };
    slowest(operations.iter().filter(at_one))
}

/// Returns each operation, and how often it had each outcome.
fn counts(history: &History) -> impl Iterator<Item = (Op, [u64; 4])> {
    let mut counts = [[0; 4]; Op::COUNT];
    for op in &history.operations {
        counts[Op::of(op.call) as usize][Outcome::of(op) as usize] += 1;
    }
    Op::TORTURE.into_iter().map(move |op| (op, counts[op as usize]))
}

impl TortureResult {
    /// Prints the result, and returns the exit status.
    pub(crate) fn answer(&self, history: &History, json: bool) -> Result<Answer, Failure> {
        let printed = if json { print_line(self.json(history)) } else { self.table(history) };
        if let Some(why) = self.no_verdict() {
            eprint_line(format_args!("swarm: no verdict: {why}"));
        }
        self.comes_to(printed)
    }

    /// Returns the exit status; `printed` is the result of printing.
    fn comes_to(&self, printed: Result<(), Failure>) -> Result<Answer, Failure> {
        Ok(match self.verdict.answer_once(printed)? {
            Answer::Yes if self.unserved().is_some() => Answer::No,
            Answer::Yes if self.no_verdict().is_some() => Answer::Unclear,
            answer => answer,
        })
    }

    /// Returns why there is no verdict, if there is none. A contradiction is wrong even in a short
    /// history.
    fn no_verdict(&self) -> Option<String> {
        let is_little = self.full && self.writes < FEWEST_WRITES && self.verdict.is_good();
        is_little.then(|| {
            format!(
                "the pool was full after {}; what was done fits together, but that is too little \
                 to judge by: take a pool with more room",
                count(self.writes, "write")
            )
        })
    }

    /// Returns what was not served in the end, if anything.
    fn unserved(&self) -> Option<String> {
        let Served { refused, unserved, .. } = &self.served;
        let refused = (*refused > 0 && !self.full)
            .then(|| format!("{} refused for want of memory", count(*refused, "write")));
        unserved.clone().or(refused)
    }

    fn json(&self, history: &History) -> Value {
        let mut object = self.verdict.json(history);
        object.insert("seconds".into(), json!(self.seconds));
        for (op, counts) in counts(history) {
            let outcomes = Outcome::ALL.into_iter().zip(counts);
            let outcomes: serde_json::Map<_, _> =
                outcomes.map(|(outcome, n)| (outcome.name().to_owned(), json!(n))).collect();
            object.insert(op.name().into(), Value::Object(outcomes));
        }
        object.insert("clients".into(), json!(self.clients));
        object.insert("kills".into(), json!(self.kills));
        object.insert("stops".into(), json!(self.stops));
        object.insert("freezes".into(), json!(self.freezes));
        object.insert("downs".into(), json!(self.downs));
        object.insert("replaced".into(), json!(self.replaced.map(|(replaced, _)| replaced)));
        object.insert("killed_replacers".into(), json!(self.replaced.map(|(_, killed)| killed)));
        object.insert("killed_nodes".into(), json!(self.gone));
        object.insert("moved".into(), json!(self.moved));
        object.insert("widest_gap_ns".into(), json!(self.widest_gap_ns));
        object.insert("slowest_ns".into(), json!(self.slowest_ns));
        object.insert("slowest_at_kills_ns".into(), json!(self.slowest_at_kills_ns));
        object.insert("pool_full".into(), json!(self.full));
        object.insert("machine".into(), self.busy.map_or(Value::Null, Busy::json));
        object.insert("writes".into(), json!(self.writes));
        let Served { operations, refused, roundtrips, .. } = self.served;
        let live = json!({
            "operations": operations,
            "refused": refused,
            "most_roundtrips": roundtrips,
            "unserved": self.unserved(),
        });
        object.insert("live".into(), live);
        let why = self.no_verdict();
        if why.is_some() {
            object.insert("linearizable".into(), Value::Null);
        }
        object.insert("no_verdict".into(), json!(why));
        Value::Object(object)
    }

    fn table(&self, history: &History) -> Result<(), Failure> {
        let [ok, absent, exists, unknown] = Outcome::ALL.map(Outcome::name);
        print_line(format_args!("\n  {:12}{ok:>12}{absent:>12}{exists:>12}{unknown:>12}", ""))?;
        for (op, counts) in counts(history) {
            let [ok, absent, exists, unknown] = counts;
            let name = op.name();
            print_line(format_args!("  {name:12}{ok:>12}{absent:>12}{exists:>12}{unknown:>12}"))?;
        }
        let rate = show_rate(history.operations.len() as f64 / self.seconds.max(1e-9));
        print_line(format_args!("\n  throughput      {rate} for {:.1} s", self.seconds))?;
        print_line(format_args!(
            "  widest gap      {} without an answer",
            show_ns(self.widest_gap_ns)
        ))?;
        let [slowest, at_kills] = [self.slowest_ns, self.slowest_at_kills_ns].map(show_ns);
        let felt =
            if self.kills > 0 { format!(", {at_kills} after a kill") } else { String::new() };
        print_line(format_args!("  slowest         {slowest}{felt}"))?;
        let (clients, kills, stops) = (self.clients, self.kills, self.stops);
        print_line(format_args!("  clients         {clients}, killed {kills}, stopped {stops}"))?;
        let gone: Vec<_> = self.gone.iter().map(u8::to_string).collect();
        let gone = match gone.as_slice() {
            [] => "none".to_owned(),
            [node] => format!("node {node}"),
            nodes => format!("nodes {}", nodes.join(", ")),
        };
        let (freezes, downs) = (self.freezes, self.downs);
        print_line(format_args!(
            "  nodes           freezes {freezes}, down {downs}, gone for good: {gone}"
        ))?;
        if let Some((replaced, killed)) = self.replaced {
            print_line(format_args!(
                "  replaced        {}, a process killed at it {}",
                count(replaced, "node"),
                count(killed, "time"),
            ))?;
        }
        print_line(format_args!("  moved           {} at least", count(self.moved, "key")))?;
        if self.full {
            print_line("  the pool was full; what was done counts all the same")?;
        }
        if let Some(busy) = self.busy.and_then(Busy::printed) {
            print_line(format_args!("  {busy}"))?;
        }
        let Served { operations, roundtrips, refused, .. } = self.served;
        print_line(format_args!(
            "  in the end      {operations} served within {roundtrips} roundtrips each, refused {refused}"
        ))?;
        if let Some(why) = self.unserved() {
            print_line(format_args!("  NOT SERVED      {why}"))?;
        }
        print_line("")?;
        if self.no_verdict().is_some() { Ok(()) } else { self.verdict.print_line(history) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::verdict::judge_quietly;

    /// Makes the result of a run on one key, with defaults for all else.
    fn result(history: &History) -> TortureResult {
        TortureResult {
            seconds: 1.0,
            clients: 1,
            kills: 0,
            stops: 0,
            freezes: 0,
            downs: 0,
            replaced: None,
            gone: Vec::new(),
            moved: 0,
            full: false,
            writes: 0,
            served: Served::default(),
            widest_gap_ns: 0,
            slowest_ns: 0,
            slowest_at_kills_ns: 0,
            busy: None,
            verdict: judge_quietly(history, |_| {}).expect("it is short"),
        }
    }

    fn history(text: Shown) -> History {
        let (key, client, called) = (0, 0, 1);
        let call = Operation { key, client, call: Call::Get, called, answered: Some((2, text)) };
        let mut history = History::default();
        history.operations.push(call);
        history.keys.number("k".into());
        history.value("v".into());
        history
    }

    #[test]
    fn what_was_not_served_and_what_is_too_little_is_reported() {
        let right = history(Shown::Value(None));
        let answer = |brought: &TortureResult| brought.comes_to(Ok(())).expect("it was printed");
        assert_eq!(answer(&result(&right)), Answer::Yes);
        let refused = Served { refused: 1, ..Served::default() };
        let unserved = Served { unserved: Some("why".into()), ..Served::default() };
        let with = |served: &Served, full, writes| {
            answer(&TortureResult { served: served.clone(), full, writes, ..result(&right) })
        };
        assert_eq!(with(&unserved, false, 1000), Answer::No);
        assert_eq!(with(&unserved, true, 1000), Answer::No);
        // Only a full pool may refuse a write.
        assert_eq!(with(&refused, false, 1000), Answer::No);
        assert_eq!(with(&refused, true, 1000), Answer::Yes);
        assert_eq!(with(&refused, true, FEWEST_WRITES - 1), Answer::Unclear);
        // A contradiction is wrong even in a short history.
        let wrong = history(Shown::Value(Some(0)));
        let little = TortureResult { full: true, ..result(&wrong) };
        assert_eq!(answer(&little), Answer::No);
        assert_eq!(little.no_verdict(), None);
    }
}

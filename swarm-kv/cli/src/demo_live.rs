//! The demo while it runs: a bar for each client on a terminal, a line a second elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::outcome::tell;
use super::units::show_rate;

/// Width of a step of the timeline.
pub(crate) const STEP_NS: u64 = 100_000_000;

/// What the clients have told so far.
pub(crate) struct Live {
    started_ns: u64,
    /// When each client last told, and what.
    told: Vec<(u64, u64)>,
    /// Operations in each step of time, all clients together.
    pub(crate) steps: Vec<u64>,
    bars: Vec<ProgressBar>,
    lines: MultiProgress,
    next_line: usize,
}

impl Live {
    /// A display for so many clients and seconds.
    pub(crate) fn new(clients: usize, seconds: u64, started_ns: u64) -> Self {
        let lines = MultiProgress::new();
        let style = ProgressStyle::with_template("  client {prefix}  {bar:40}  {msg}")
            .expect("the template is well-formed");
        let bars = (0..clients).map(|client| {
            let bar = ProgressBar::new(seconds * 1000).with_style(style.clone());
            lines.add(bar.with_prefix(client.to_string()))
        });
        Self {
            started_ns,
            told: vec![(started_ns, 0); clients],
            steps: vec![0; (seconds * 1_000_000_000 / STEP_NS) as usize],
            bars: bars.collect(),
            lines,
            next_line: 10,
        }
    }

    /// Operations of one client so far.
    pub(crate) fn done(&self, client: usize) -> u64 {
        self.told[client].1
    }

    /// Takes in that a client had done so much at a time.
    pub(crate) fn progress(&mut self, client: usize, at_ns: u64, done: u64) {
        let (then, before) = std::mem::replace(&mut self.told[client], (at_ns, done));
        let more = done.saturating_sub(before);
        let since = at_ns.saturating_sub(then).max(1);
        let bar = &self.bars[client];
        bar.set_position(at_ns.saturating_sub(self.started_ns) / 1_000_000);
        bar.set_message(show_rate(more as f64 * 1e9 / since as f64));
        // The middle of the time that this is about.
        let step = ((then + since / 2).saturating_sub(self.started_ns) / STEP_NS) as usize;
        if let Some(step) = self.steps.get_mut(step) {
            *step += more;
        }
    }

    /// Says something that happened.
    pub(crate) fn event(&self, text: &str) {
        if self.lines.is_hidden() {
            tell(text);
        } else {
            // Only display; the same is in the report.
            let _ = self.lines.println(text);
        }
    }

    /// Where there are no bars, a line a second.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let steps = (now_ns.saturating_sub(self.started_ns) / STEP_NS) as usize;
        if self.lines.is_hidden() && steps > self.next_line {
            let second = &self.steps[self.next_line - 10..self.next_line.min(self.steps.len())];
            let rate = show_rate(second.iter().sum::<u64>() as f64);
            tell(format_args!("  {} s  {rate}", self.next_line / 10));
            self.next_line += 10;
        }
    }

    /// A client is no more.
    pub(crate) fn killed(&self, client: usize) {
        self.bars[client].abandon_with_message("killed");
    }

    /// Takes the bars away.
    pub(crate) fn end(&self) {
        for bar in &self.bars {
            bar.finish_and_clear();
        }
    }
}

//! The live display of the demo: a bar for each client on a terminal, a line a second elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::common::exit::eprint_line;
use crate::common::units::show_rate;

/// The length of a step of the timeline.
pub(crate) const STEP_NS: u64 = 100_000_000;

/// The clients' progress so far.
pub(crate) struct Live {
    started_ns: u64,
    /// The time and count of each client's last report.
    progress: Vec<(u64, u64)>,
    /// Operations of all clients in each step of time.
    pub(crate) steps: Vec<u64>,
    bars: Vec<ProgressBar>,
    lines: MultiProgress,
    next_line: usize,
}

impl Live {
    /// Makes the display.
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
            progress: vec![(started_ns, 0); clients],
            steps: vec![0; (seconds * 1_000_000_000 / STEP_NS) as usize],
            bars: bars.collect(),
            lines,
            next_line: 10,
        }
    }

    /// Returns the operations of one client so far.
    pub(crate) fn done(&self, client: usize) -> u64 {
        self.progress[client].1
    }

    /// Records a client's progress report.
    pub(crate) fn progress(&mut self, client: usize, at_ns: u64, done: u64) {
        let (then, before) = std::mem::replace(&mut self.progress[client], (at_ns, done));
        let more = done.saturating_sub(before);
        let since = at_ns.saturating_sub(then).max(1);
        let bar = &self.bars[client];
        bar.set_position(at_ns.saturating_sub(self.started_ns) / 1_000_000);
        bar.set_message(show_rate(more as f64 * 1e9 / since as f64));
        // The middle of the reported interval.
        let step = ((then + since / 2).saturating_sub(self.started_ns) / STEP_NS) as usize;
        if let Some(step) = self.steps.get_mut(step) {
            *step += more;
        }
    }

    /// Prints an event.
    pub(crate) fn event(&self, text: &str) {
        if self.lines.is_hidden() {
            eprint_line(text);
        } else {
            // Display only: the report has it, too.
            let _ = self.lines.println(text);
        }
    }

    /// Prints a line a second, if there are no bars.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let steps = (now_ns.saturating_sub(self.started_ns) / STEP_NS) as usize;
        if self.lines.is_hidden() && steps > self.next_line {
            let second = &self.steps[self.next_line - 10..self.next_line.min(self.steps.len())];
            let rate = show_rate(second.iter().sum::<u64>() as f64);
            eprint_line(format_args!("  {} s  {rate}", self.next_line / 10));
            self.next_line += 10;
        }
    }

    /// Marks a client as killed.
    pub(crate) fn killed(&self, client: usize) {
        self.bars[client].abandon_with_message("killed");
    }

    /// Removes the bars.
    pub(crate) fn end(&self) {
        for bar in &self.bars {
            bar.finish_and_clear();
        }
    }
}

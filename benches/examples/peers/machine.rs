//! What machine it is, and who else was at work on it.

use std::fmt;
use std::fs::read_to_string;

pub(crate) struct Machine {
    model: String,
    cores: usize,
    kernel: String,
    /// Of the minute before.
    load: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let unknown = || "unknown".to_string();
        let read = |path| read_to_string(path).ok();
        let model = read("/proc/cpuinfo").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(": ")?.1.to_string())
        });
        let kernel = read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_string());
        let load = read("/proc/loadavg").and_then(|text| Some(text.split(' ').next()?.to_string()));
        Self {
            model: model.unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.unwrap_or_else(unknown),
            load: load.unwrap_or_else(unknown),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, cores, kernel, load } = self;
        write!(f, "{model}, {cores} cores, Linux {kernel}; load before {load}")
    }
}

/// A span of time on all processors, in the kernel's ticks.
pub(crate) struct Span {
    all: u64,
    idle: u64,
    ours: u64,
}

impl Span {
    /// It begins. `ours` are this run's processes.
    pub(crate) fn begin(ours: &[u32]) -> Self {
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of the first two.
        let ticks = line.split_whitespace().skip(1).take(8).filter_map(|it| it.parse().ok());
        let ticks: Vec<u64> = ticks.collect();
        let idle = ticks.get(3..5).map_or(0, |idle| idle.iter().sum());
        Self { all: ticks.iter().sum(), idle, ours: ours.iter().map(|id| taken(*id)).sum() }
    }

    /// The share of all processors since then that others took, the machine's owner among them. `None` if the
    /// kernel does not show it.
    pub(crate) fn taken_by_others(self, ours: &[u32]) -> Option<f64> {
        let now = Self::begin(ours);
        let (all, idle) = (now.all - self.all, now.idle - self.idle);
        let others = all.saturating_sub(idle).saturating_sub(now.ours - self.ours);
        (all > 0).then(|| others as f64 / all as f64)
    }
}

/// What a process took so far.
fn taken(process: u32) -> u64 {
    let stat = read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind its name, which may have blanks: user and system time are the 12th and 13th.
    let behind = stat.rsplit(')').next().unwrap_or_default();
    behind.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum()
}

/// In words.
pub(crate) fn busy(others: Option<f64>) -> String {
    match others {
        None => "whether it was busy is not known".into(),
        Some(share) if share <= 0.02 => "nobody else was at work on it".into(),
        Some(share) => {
            format!("it was busy: others took {:.0} % of its processors meanwhile", 100.0 * share)
        }
    }
}

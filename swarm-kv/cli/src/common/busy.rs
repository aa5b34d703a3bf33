//! How busy the machine was with other things during a run: one that reads a time, or that something did not come in
//! time, has to know it.

use std::fs::read_to_string;

use serde_json::{Value, json};

/// From this share of its processors' time on that went elsewhere, a machine counts as busy.
const BUSY: f64 = 0.1;

/// Processor time since the machine was started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    /// All there was.
    all: u64,
    /// What somebody used.
    used: u64,
    /// What the host of a virtual machine kept from it.
    stolen: u64,
    /// What this process used, and its children that have ended and were waited for.
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let machine = read_to_string("/proc/stat").ok()?;
        let own = read_to_string("/proc/self/stat").ok()?;
        Self::parse(&machine, &own)
    }

    /// From what the kernel says of the machine, and of this process: see proc(5).
    fn parse(machine: &str, own: &str) -> Option<Self> {
        let numbers = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks.as_slice() else {
            return None;
        };
        // The program's name, in parentheses, may hold anything. Times are fields 14 to 17.
        let fields = own.rsplit_once(')')?.1.split_whitespace();
        let times = fields.skip(11).take(4).map_while(|number| number.parse::<u64>().ok());
        let used = user + nice + system + irq + softirq;
        Some(Self { all: used + idle + iowait + stolen, used, stolen, own: times.sum() })
    }
}

/// Watches from the beginning of a run to its end.
pub(crate) struct Watch(Option<Ticks>);

impl Watch {
    pub(crate) fn begin() -> Self {
        Self(Ticks::now())
    }

    /// How busy the machine was; nothing where its kernel does not show it. What children of this process
    /// used that have not ended is taken for others'.
    pub(crate) fn end(&self) -> Option<Busy> {
        Some(Busy::between(self.0?, Ticks::now()?))
    }
}

/// How busy a machine was, in shares of its processors' time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Busy {
    /// What other programs used.
    others: f64,
    /// What its host kept from it.
    stolen: f64,
}

impl Busy {
    fn between(begin: Ticks, end: Ticks) -> Self {
        let spent = |what: fn(Ticks) -> u64| what(end).saturating_sub(what(begin));
        let all = spent(|ticks| ticks.all).max(1) as f64;
        let others = spent(|ticks| ticks.used).saturating_sub(spent(|ticks| ticks.own));
        Self { others: others as f64 / all, stolen: spent(|ticks| ticks.stolen) as f64 / all }
    }

    /// Whether so much of the machine was elsewhere that times mean little.
    pub(crate) fn is_busy(self) -> bool {
        self.others + self.stolen > BUSY
    }

    /// For people, where it is worth a word.
    pub(crate) fn printed(self) -> Option<String> {
        let Self { others, stolen } = self;
        let [others, stolen] = [others, stolen].map(|share| 100.0 * share);
        self.is_busy().then(|| {
            format!(
                "the machine was busy: other programs had {others:.0} % of its processors' time, its host {stolen:.0} %"
            )
        })
    }

    /// For programs.
    pub(crate) fn json(self) -> Value {
        json!({ "busy": self.is_busy(), "others": self.others, "stolen": self.stolen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_and_the_host_had_is_told_apart_from_ones_own() {
        let own = |user: u64| {
            format!("7 (a) b)) S 1 7 7 0 -1 4194304 9 9 0 0 {user} 5 20 10 20 0 1 0 9\n")
        };
        let machine = |user: u64, idle: u64, stolen: u64| {
            format!("cpu  {user} 10 100 {idle} 5 0 5 {stolen} 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
        };
        let ticks = |machine: &str, own: &str| Ticks::parse(machine, own).expect("it is whole");
        let begin = ticks(&machine(1000, 5000, 0), &own(30));
        assert_eq!(begin, Ticks { all: 6120, used: 1115, stolen: 0, own: 65 });
        let quiet = Busy::between(begin, ticks(&machine(1104, 5096, 0), &own(130)));
        assert_eq!((quiet, quiet.printed()), (Busy { others: 0.02, stolen: 0.0 }, None));
        let busy = Busy::between(begin, ticks(&machine(1160, 5020, 20), &own(130)));
        assert_eq!(busy, Busy { others: 0.3, stolen: 0.1 });
        assert!(
            busy.printed()
                .is_some_and(|printed| printed.contains("30 %") && printed.contains("10 %"))
        );
        assert_eq!(Ticks::parse("cpu 1 2 3", &own(0)), None);
    }

    #[test]
    fn this_kernel_shows_it() {
        let watch = Watch::begin();
        let busy = watch.end().expect("Linux has /proc/stat");
        assert!(
            (0.0..=1.0).contains(&busy.others) && (0.0..=1.0).contains(&busy.stolen),
            "{busy:?}"
        );
    }
}

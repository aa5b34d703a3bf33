//! The pool's clock: wall-clock nanoseconds since the pool's creation.
//!
//! **Invariant:** all processes of one boot compute the same straight line from the processor's
//! time-stamp counter, so that their guesses differ by no more than the time they take. A process
//! that finds no line for this boot in the control file measures one, under a lock, and stores it
//! there for the others. A line carries a checksum, so that reading it takes no lock. Only speed
//! depends on it.
//!
//! The counter is trusted if the kernel trusts it, that is, uses it for its own clock, and if two
//! measurements agree. Otherwise the system's monotonic clock takes its place. A counter below the
//! beginning of the line was set back, as by a suspend: a process that opens the pool then measures
//! anew, and a process that has it open goes on by the monotonic clock. If a counter was set back
//! and is above the beginning again, a process that opens the pool notices, as the line is far
//! behind the wall clock then. A process that has the pool open does not notice: it reads only the
//! counter, since every operation pays for that. Its time lags behind that of others until it
//! observes one of their stamps ([`Group::advance`](swarm_core::quorum::Group::advance)), and its
//! timeouts still end.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use swarm_core::clock::Clock;

use crate::error::Error;
use crate::files::control::{CALIBRATIONS, Control};
use crate::files::header::sum;
use crate::files::range_lock;

/// How long the counter is watched to learn its speed, twice.
const WATCH: Duration = Duration::from_millis(8);
/// How often it is measured if the readings are implausible.
const TRIES: usize = 3;
/// How long to wait for another process that measures. If that process was stopped half-way, this
/// one uses a line of its own.
const WAIT: Duration = Duration::from_millis(500);
/// Words of one boot's calibration: boot id (2), source, ticks, nanoseconds, multiplier, checksum.
const ENTRY_WORDS: usize = 7;
/// Words from one calibration to the next.
const ENTRY_STRIDE: usize = 8;
/// A multiplier is nanoseconds to a tick, times 2 to this power.
const SHIFT: u32 = 32;
/// No counter is slower than a tick in this many nanoseconds.
const SLOWEST: u64 = 1000;
/// None has more ticks in a nanosecond.
const FASTEST: u64 = 100;
/// How many nanoseconds a line may be behind the wall clock, and which part of the time since it
/// was measured: no measurement is exact, and wall clocks are set.
const BEHIND: u64 = 60_000_000_000;
const BEHIND_PART: u64 = 64;
/// The multiplier of a clock that ticks once a nanosecond.
const NANOSECONDS: u64 = 1 << SHIFT;

/// What a pool's clock reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockSource {
    /// The processor's time-stamp counter.
    Counter = 1,
    /// The system's monotonic clock, in nanoseconds: if the counter cannot be trusted.
    Monotonic = 2,
    /// The system's wall clock, in nanoseconds: if the kernel does not tell boots apart.
    Wall = 3,
}

impl fmt::Display for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "time-stamp counter",
            Self::Monotonic => "monotonic clock",
            Self::Wall => "wall clock",
        })
    }
}

/// A straight line through the readings of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    source: ClockSource,
    /// Reading of the source at some moment.
    ticks: u64,
    /// Nanoseconds since the pool's creation at that moment.
    nanoseconds: u64,
    multiplier: u64,
}

/// The pool's clock. A reading costs one of the time-stamp counter if that runs at a constant
/// speed, and otherwise one of the system's monotonic clock.
#[derive(Clone, Debug)]
pub struct PoolClock {
    line: Cell<Line>,
    /// Wall-clock nanoseconds since 1970.
    created: u64,
}

impl Clock for PoolClock {
    #[inline]
    fn now(&self) -> u64 {
        let line = self.line.get();
        match line.source.read().checked_sub(line.ticks) {
            Some(ticks) => line.behind(ticks),
            None => self.go_on(),
        }
    }
}

impl PoolClock {
    pub(crate) fn new(line: Line, created: u64) -> Self {
        Self { line: Cell::new(line), created }
    }

    /// Returns what it reads.
    pub fn source(&self) -> ClockSource {
        self.line.get().source
    }

    /// The source was set back: goes on by the monotonic clock.
    #[cold]
    fn go_on(&self) -> u64 {
        let line = Line::monotonic(&Host, self.created);
        self.line.set(line);
        line.nanoseconds
    }
}

impl Line {
    /// Returns the line of the pool behind `control` that this boot's processes share.
    pub(crate) fn of(control: &Control) -> Result<Self, Error> {
        let created = control.header().created;
        let Some(boot) = boot_id() else {
            let (source, multiplier) = (ClockSource::Wall, NANOSECONDS);
            return Ok(Self { source, ticks: created, nanoseconds: 0, multiplier });
        };
        let known = || entries().find_map(|at| Self::load(control, at, boot, &Host));
        if let Some(line) = known() {
            return Ok(line);
        }
        if control.is_read_only() {
            return Ok(Self::measure(&Host, created));
        }
        let file = control.reopen()?;
        let held = range_lock::hold_within(&file, Control::calibration_bytes(), WAIT)
            .map_err(|error| Error::io(control.dir(), "lock the control file in", error))?;
        if let Some(line) = known() {
            return Ok(line);
        }
        let line = Self::measure(&Host, created);
        if held.is_some() {
            line.store(control, place(control, boot), boot);
        }
        Ok(line)
    }

    /// Returns nanoseconds since the pool's creation, `ticks` after the moment of the line.
    #[inline]
    fn behind(&self, ticks: u64) -> u64 {
        let elapsed = (u128::from(ticks) * u128::from(self.multiplier)) >> SHIFT;
        self.nanoseconds.wrapping_add(elapsed as u64)
    }

    fn load(control: &Control, at: usize, boot: u128, host: &impl Readings) -> Option<Self> {
        let words = control.mapping().load::<ENTRY_WORDS>(at);
        let [low, high, source, ticks, nanoseconds, multiplier, checksum] = words;
        let source = match source {
            1 => ClockSource::Counter,
            2 => ClockSource::Monotonic,
            _ => return None,
        };
        let whole = checksum == sum(&words[..ENTRY_WORDS - 1]);
        let known = u128::from(low) | (u128::from(high) << 64);
        let line = Self { source, ticks, nanoseconds, multiplier };
        let created = control.header().created;
        (known == boot && whole && line.holds(host, created)).then_some(line)
    }

    /// Returns whether the line can still be used.
    fn holds(&self, host: &impl Readings, created: u64) -> bool {
        match self.source {
            ClockSource::Counter => {
                is_plausible(self.multiplier)
                    && host.trusts_counter()
                    && host.counter().checked_sub(self.ticks).is_some_and(|ticks| {
                        let wall = host.system(ClockId::Realtime).saturating_sub(created);
                        !self.is_behind(ticks, wall)
                    })
            }
            _ => self.multiplier == NANOSECONDS && host.system(ClockId::Monotonic) >= self.ticks,
        }
    }

    /// Returns whether the line, `ticks` after its moment, is far behind the wall clock. (If it is
    /// far ahead, the wall clock was set back.)
    fn is_behind(&self, ticks: u64, wall: u64) -> bool {
        let now = self.behind(ticks);
        let since = wall.saturating_sub(self.nanoseconds);
        wall.saturating_sub(now) > BEHIND + since / BEHIND_PART
    }

    /// Stores the line for other processes. A reader of half a line notices by the checksum.
    fn store(&self, control: &Control, at: usize, boot: u128) {
        let source = self.source as u64;
        let (low, high) = (boot as u64, (boot >> 64) as u64);
        let line = [low, high, source, self.ticks, self.nanoseconds, self.multiplier];
        control.mapping().store(at, &line);
        control.mapping().store(at + line.len(), &[sum(&line)]);
    }

    /// Measures a line through the counter, or through the monotonic clock if the counter is
    /// unusable.
    fn measure(host: &impl Readings, created: u64) -> Self {
        let counter = || (0..TRIES).find_map(|_| Self::counter(host, created));
        let counter = host.trusts_counter().then(counter).flatten();
        counter.unwrap_or_else(|| Self::monotonic(host, created))
    }

    /// Measures a line through the counter, if that runs at one plausible speed while it is
    /// watched.
    fn counter(host: &impl Readings, created: u64) -> Option<Self> {
        let now = || sample(|| host.counter(), || host.system(ClockId::Monotonic));
        let first = now();
        host.watch();
        let middle = now();
        host.watch();
        let last = now();
        let (one, other) = (speed(first, middle)?, speed(middle, last)?);
        let multiplier = speed(first, last)?;
        if one.abs_diff(other) > multiplier / 8 {
            return None;
        }
        let (ticks, wall) = sample(|| host.counter(), || host.system(ClockId::Realtime));
        let nanoseconds = wall.saturating_sub(created);
        let line = Self { source: ClockSource::Counter, ticks, nanoseconds, multiplier };
        (ticks >= last.0 && line.holds(host, created)).then_some(line)
    }

    fn monotonic(host: &impl Readings, created: u64) -> Self {
        let wall = || host.system(ClockId::Realtime);
        let (ticks, wall) = sample(|| host.system(ClockId::Monotonic), wall);
        let nanoseconds = wall.saturating_sub(created);
        let (source, multiplier) = (ClockSource::Monotonic, NANOSECONDS);
        Self { source, ticks, nanoseconds, multiplier }
    }
}

/// Returns the multiplier of a counter between two samples, if it is plausible.
fn speed(before: (u64, u64), after: (u64, u64)) -> Option<u64> {
    let (ticks, elapsed) = (after.0.checked_sub(before.0)?, after.1.checked_sub(before.1)?);
    let multiplier = (u128::from(elapsed) << SHIFT).checked_div(u128::from(ticks))?;
    u64::try_from(multiplier).ok().filter(|&multiplier| is_plausible(multiplier))
}

/// Returns whether a counter may have this multiplier.
fn is_plausible(multiplier: u64) -> bool {
    (NANOSECONDS / FASTEST..=SLOWEST << SHIFT).contains(&multiplier)
}

/// What a line is measured by. Tests substitute other machines.
trait Readings {
    /// Returns whether the counter runs at a constant speed, whatever the processor's frequency and
    /// state, and the kernel has found no fault with it.
    fn trusts_counter(&self) -> bool;
    fn counter(&self) -> u64;
    fn system(&self, clock: ClockId) -> u64;
    /// Lets some time pass.
    fn watch(&self);
}

struct Host;

impl Readings for Host {
    fn trusts_counter(&self) -> bool {
        has_steady_counter() && is_kernels_clock()
    }

    fn counter(&self) -> u64 {
        counter()
    }

    fn system(&self, clock: ClockId) -> u64 {
        system(clock)
    }

    fn watch(&self) {
        sleep(WATCH);
    }
}

impl ClockSource {
    #[inline]
    fn read(self) -> u64 {
        match self {
            Self::Counter => counter(),
            Self::Monotonic => system(ClockId::Monotonic),
            Self::Wall => system(ClockId::Realtime),
        }
    }
}

/// Reads a source and a clock at about the same moment: the closest of several pairs, as the
/// process may be preempted between any two readings.
fn sample(source: impl Fn() -> u64, clock: impl Fn() -> u64) -> (u64, u64) {
    (0..16)
        .map(|_| {
            let before = source();
            let time = clock();
            let after = source();
            let gap = after.saturating_sub(before);
            (gap, before.saturating_add(gap / 2), time)
        })
        .min_by_key(|&(gap, ..)| gap)
        .map(|(_, ticks, time)| (ticks, time))
        .expect("a few samples")
}

/// Returns the first words of the control file's calibrations.
fn entries() -> impl Iterator<Item = usize> {
    CALIBRATIONS.step_by(ENTRY_STRIDE)
}

/// Returns where to store this boot's line: in place of an older line of this boot, or of the
/// oldest line.
fn place(control: &Control, boot: u128) -> usize {
    let words = |at| control.mapping().load::<ENTRY_WORDS>(at);
    let this_boots = |&at: &usize| words(at)[..2] == [boot as u64, (boot >> 64) as u64];
    let oldest = || entries().min_by_key(|&at| words(at)[4]);
    entries().find(this_boots).or_else(oldest).expect("the control file has room for boots")
}

/// Returns wall-clock nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    system(ClockId::Realtime)
}

fn system(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns the kernel's id of this boot.
fn boot_id() -> Option<u128> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&id.trim().replace('-', ""), 16).ok().filter(|&id| id != 0)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    system(ClockId::Monotonic)
}

/// Returns whether the kernel's own clock is the counter. The kernel watches it, and switches to
/// another clock if it is unsteady or differs between processors. `false` if the kernel does not
/// report it.
fn is_kernels_clock() -> bool {
    let current = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    fs::read_to_string(current).is_ok_and(|name| name.trim() == "tsc")
}

/// Returns whether the counter runs at a constant speed, whatever the processor's frequency and
/// state.
#[cfg(target_arch = "x86_64")]
fn has_steady_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn has_steady_counter() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A machine whose time goes on with each reading, and whose counter reads `counter(n)` at its
    /// `n`th microsecond.
    struct Machine<N> {
        time: Cell<u64>,
        counter: N,
        is_trusted: bool,
    }

    impl<N: Fn(u64) -> u64> Machine<N> {
        fn new(counter: N) -> Self {
            Self { time: Cell::new(1_000), counter, is_trusted: true }
        }

        fn step(&self, microseconds: u64) -> u64 {
            self.time.set(self.time.get() + microseconds);
            self.time.get()
        }
    }

    impl<N: Fn(u64) -> u64> Readings for Machine<N> {
        fn trusts_counter(&self) -> bool {
            self.is_trusted
        }

        fn counter(&self) -> u64 {
            (self.counter)(self.step(1))
        }

        fn system(&self, _: ClockId) -> u64 {
            self.step(1) * 1_000
        }

        fn watch(&self) {
            self.step(8_000);
        }
    }

    /// Returns the source of the measured line, and checks that others can use that line.
    fn measured(machine: &Machine<impl Fn(u64) -> u64>) -> ClockSource {
        let line = Line::measure(machine, 7);
        assert!(line.holds(machine, 7), "nobody else would go by {line:?}");
        line.source
    }

    #[test]
    fn a_steady_counter_is_gone_by() {
        for rate in [1, 24, 1_000, 3_000, 5_500] {
            let machine = Machine::new(|time| time * rate);
            let line = Line::measure(&machine, 7);
            assert_eq!(line.source, ClockSource::Counter, "{rate} ticks a microsecond");
            let error = line.behind(1_000_000 * rate).abs_diff(line.nanoseconds + 1_000_000_000);
            assert!(error < 1_000_000, "{rate} ticks a microsecond: off by {error} ns in a second");
        }
    }

    /// A counter that was set back, stands still, runs wild, or changes its behaviour.
    #[test]
    fn what_cannot_be_is_not_gone_by() {
        type Counter = fn(u64) -> u64;
        let counters: [(&str, Counter); 6] = [
            ("stands", |_| 77),
            ("runs back", |time| 1 << 40 | (1_000_000 - time)),
            ("has hardly ticked", |time| time / 1_000_000),
            ("runs wild", |time| time.pow(4)),
            ("is too fast", |time| time << 40),
            ("gets slower and slower", |time| (1 << 40) - (1 << 40) / time),
        ];
        for (what, counter) in counters {
            assert_eq!(measured(&Machine::new(counter)), ClockSource::Monotonic, "{what}");
        }
    }

    #[test]
    fn one_wild_reading_is_measured_again() {
        let jump = |time: u64| if time < 12_000 { time * 2_000 } else { (1 << 50) + time * 2_000 };
        assert_eq!(measured(&Machine::new(jump)), ClockSource::Counter);
        let reset = |time: u64| if time < 12_000 { (1 << 50) + time } else { time * 2_000 };
        assert_eq!(measured(&Machine::new(reset)), ClockSource::Counter);
    }

    #[test]
    fn what_the_kernel_does_not_trust_is_not_gone_by() {
        let machine = Machine { is_trusted: false, ..Machine::new(|time| time * 2_000) };
        assert_eq!(measured(&machine), ClockSource::Monotonic);
        // A line that was stored before the kernel changed its mind.
        let line = Line::measure(&Machine::new(|time| time * 2_000), 7);
        assert!(!line.holds(&machine, 7));
    }

    #[test]
    fn a_counter_below_the_line_is_measured_anew() {
        let line = Line::measure(&Machine::new(|time| (1 << 50) + time * 2_000), 7);
        assert_eq!(line.source, ClockSource::Counter);
        assert!(!line.holds(&Machine::new(|time| time * 2_000), 7));
    }

    /// A suspend of an hour set it back, a day after the pool was first opened, and it has run for
    /// a day since. A day's measurement error, or a wall clock that was set a little, is tolerated.
    #[test]
    fn a_counter_that_was_set_back_and_passed_the_line_is_measured_anew() {
        const HOUR: u64 = 3_600_000_000;
        let line = Line::measure(&Machine::new(|time| time * 2_000), 7);
        let holds = |counter: fn(u64) -> u64| {
            let machine = Machine::new(counter);
            machine.step(49 * HOUR);
            line.holds(&machine, 7)
        };
        assert!(holds(|time| time * 2_000));
        assert!(holds(|time| time * 1_990));
        assert!(holds(|time| (time - 50_000_000) * 2_000));
        assert!(holds(|time| (time + 9 * HOUR) * 2_000), "the wall clock was set back");
        assert!(!holds(|time| (time - 25 * HOUR) * 2_000));
        assert!(!holds(|time| (time - 2 * HOUR) * 2_000));
    }

    /// A client that has the pool open goes on, and so does its time.
    #[test]
    fn a_clock_whose_counter_was_set_back_goes_on() {
        let created = wall() - 5_000_000_000;
        for source in [ClockSource::Counter, ClockSource::Monotonic, ClockSource::Wall] {
            let line = Line { source, ticks: u64::MAX, nanoseconds: 77, multiplier: NANOSECONDS };
            let clock = PoolClock::new(line, created);
            let (begun, before) = (Instant::now(), clock.now());
            assert!((5_000_000_000..500_000_000_000).contains(&before), "{before}");
            sleep(Duration::from_millis(2));
            assert_eq!(clock.source(), ClockSource::Monotonic);
            let (passed, after) = (begun.elapsed().as_nanos() as u64, clock.now());
            assert!(after >= before + 2_000_000 && after - before < passed + 1_000_000_000);
        }
    }
}

//! The pool's clock: wall-clock nanoseconds since the pool's creation.
//!
//! The invariant: all processes of one boot compute the same straight line from the processor's
//! time-stamp counter, so that their guesses differ by no more than the time they take. Whoever
//! finds no line for this boot in the control file measures one, under a lock, and leaves it there
//! for the others. A line carries a checksum, so that reading it takes no lock. Nothing but speed
//! depends on it.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use swarm_core::clock::Clock;

use crate::control::{CALIBRATIONS, Control};
use crate::error::Error;
use crate::header::sum;
use crate::lock;

/// For how long the counter is watched to learn its speed.
const WATCH: Duration = Duration::from_millis(15);
/// How long to wait for another process that measures. If that was stopped half-way, this one goes
/// by a line of its own.
const WAIT: Duration = Duration::from_millis(500);
/// Words of one boot's calibration: boot id (2), source, ticks, nanoseconds, multiplier, checksum.
const ENTRY_WORDS: usize = 7;
/// Words from one calibration to the next.
const ENTRY_STRIDE: usize = 8;
/// A multiplier is nanoseconds to a tick, times 2 to this power.
const SHIFT: u32 = 32;
/// No counter is slower than a tick in this many nanoseconds.
const SLOWEST: u64 = 1000;

/// What ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// The processor's time-stamp counter.
    Counter = 1,
    /// The system's monotonic clock, in nanoseconds.
    Monotonic = 2,
    /// The system's wall clock, in nanoseconds: where the kernel does not tell one boot from
    /// another.
    Wall = 3,
}

/// The pool's clock. Costs one reading of the time-stamp counter where that runs at a constant
/// speed, and one of the system's monotonic clock elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct PoolClock {
    source: Source,
    /// Reading of the source at a moment.
    ticks: u64,
    /// Nanoseconds since the pool's creation at that moment.
    nanoseconds: u64,
    multiplier: u64,
}

impl Clock for PoolClock {
    #[inline]
    fn now(&self) -> u64 {
        let ticks = self.source.read().saturating_sub(self.ticks);
        let elapsed = (u128::from(ticks) * u128::from(self.multiplier)) >> SHIFT;
        self.nanoseconds.wrapping_add(elapsed as u64)
    }
}

impl PoolClock {
    /// The clock of the pool behind `control`, by the line that this boot's processes share.
    pub(crate) fn of(control: &Control) -> Result<Self, Error> {
        let created = control.header().created;
        let Some(boot) = boot_id() else {
            let (source, multiplier) = (Source::Wall, 1 << SHIFT);
            return Ok(Self { source, ticks: created, nanoseconds: 0, multiplier });
        };
        let known = || entries().find_map(|at| Self::load(control, at, boot));
        if let Some(clock) = known() {
            return Ok(clock);
        }
        let file = control.reopen()?;
        let held = lock::hold_within(&file, Control::calibration_bytes(), WAIT)
            .map_err(|error| Error::io(control.dir(), "lock the control file in", error))?;
        if let Some(clock) = known() {
            return Ok(clock);
        }
        let clock = Self::measure(created);
        if held.is_some() {
            let oldest = entries().min_by_key(|&at| control.mapping().load::<ENTRY_WORDS>(at)[4]);
            clock.store(control, oldest.expect("the control file has room for boots"), boot);
        }
        Ok(clock)
    }

    fn load(control: &Control, at: usize, boot: u128) -> Option<Self> {
        let words = control.mapping().load::<ENTRY_WORDS>(at);
        let [low, high, source, ticks, nanoseconds, multiplier, checksum] = words;
        let source = match source {
            1 => Source::Counter,
            2 => Source::Monotonic,
            _ => return None,
        };
        let whole = checksum == sum(&words[..ENTRY_WORDS - 1]);
        let plausible = (1..=SLOWEST << SHIFT).contains(&multiplier);
        let known = u128::from(low) | (u128::from(high) << 64);
        let clock = Self { source, ticks, nanoseconds, multiplier };
        (known == boot && whole && plausible).then_some(clock)
    }

    /// Stores the line for others. Who reads half of it notices by the checksum.
    fn store(&self, control: &Control, at: usize, boot: u128) {
        let source = self.source as u64;
        let (low, high) = (boot as u64, (boot >> 64) as u64);
        let line = [low, high, source, self.ticks, self.nanoseconds, self.multiplier];
        control.mapping().store(at, &line);
        control.mapping().store(at + line.len(), &[sum(&line)]);
    }

    fn measure(created: u64) -> Self {
        let source = if has_steady_counter() { Source::Counter } else { Source::Monotonic };
        let multiplier = if source == Source::Counter {
            let (ticks, nanoseconds) = source.sample(ClockId::Monotonic);
            sleep(WATCH);
            let (later_ticks, later_nanoseconds) = source.sample(ClockId::Monotonic);
            let ticks = u128::from(later_ticks.saturating_sub(ticks).max(1));
            let elapsed = u128::from(later_nanoseconds - nanoseconds);
            u64::try_from((elapsed << SHIFT) / ticks).unwrap_or(1 << SHIFT)
        } else {
            1 << SHIFT
        };
        let (ticks, wall) = source.sample(ClockId::Realtime);
        Self { source, ticks, nanoseconds: wall.saturating_sub(created), multiplier }
    }
}

impl Source {
    #[inline]
    fn read(self) -> u64 {
        match self {
            Self::Counter => counter(),
            Self::Monotonic => system(ClockId::Monotonic),
            Self::Wall => system(ClockId::Realtime),
        }
    }

    /// A reading of this source and one of `clock`, of about the same moment: the closest of a
    /// few, as the process may be held up between any two readings.
    fn sample(self, clock: ClockId) -> (u64, u64) {
        (0..16)
            .map(|_| {
                let before = self.read();
                let time = system(clock);
                let after = self.read();
                (after.saturating_sub(before), before + after.saturating_sub(before) / 2, time)
            })
            .min_by_key(|&(gap, ..)| gap)
            .map(|(_, ticks, time)| (ticks, time))
            .expect("a few samples")
    }
}

/// First words of the control file's calibrations.
fn entries() -> impl Iterator<Item = usize> {
    CALIBRATIONS.step_by(ENTRY_STRIDE)
}

/// Wall-clock nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    system(ClockId::Realtime)
}

fn system(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// What the kernel calls this boot.
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

/// Whether the counter runs at a constant speed, whatever the processor's frequency and state.
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

//! Time, as the protocols see it.

use core::cell::Cell;

/// Wall-clock time. Only speed depends on it: fresh guesses need one roundtrip, and late nodes are
/// noticed in time. Safety does not depend on it.
pub trait Clock {
    /// Returns the nanoseconds since the pool was created, roughly the same on all hosts. A clock
    /// may step backwards or differ between hosts; operations then take more roundtrips.
    fn now(&self) -> u64;
}

impl<C: Clock> Clock for &C {
    fn now(&self) -> u64 {
        (**self).now()
    }
}

/// A time for waits, which advances with a clock, and without it.
///
/// **Invariant:** each look takes at least a nanosecond. So this time advances even if the clock
/// behind it stands still or is set back, and every wait ends after as many looks as it has
/// nanoseconds.
#[derive(Clone, Debug)]
pub struct Ticking<C> {
    clock: C,
    /// The last time of the clock.
    last: Cell<u64>,
    time: Cell<u64>,
}

impl<C: Clock> Ticking<C> {
    /// Makes a time that follows `clock`.
    pub fn new(clock: C) -> Self {
        Self { clock, last: Cell::new(0), time: Cell::new(0) }
    }

    /// Returns the time of the clock itself.
    #[inline]
    pub fn clock_time(&self) -> u64 {
        self.clock.now()
    }
}

impl<C: Clock> Clock for Ticking<C> {
    fn now(&self) -> u64 {
        let now = self.clock.now();
        let passed = now.saturating_sub(self.last.replace(now)).max(1);
        self.time.set(self.time.get().saturating_add(passed));
        self.time.get()
    }
}

/// A wait that ends after a time, of which only the part counts in which its client was looking.
///
/// A client without a processor learns nothing meanwhile, and what it waits for may have arrived
/// long before it looks again. So at most an eighth of the whole counts between two looks. The wait
/// takes at least that many looks, and at most as many as it has nanoseconds, as each look by
/// [`Ticking`] time takes one.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Nanoseconds that count so far.
    passed: u64,
    /// Time of the last look.
    looked: u64,
}

/// Minimum number of looks of a [`Wait`].
const LOOKS: u64 = 8;

impl Wait {
    /// Begins a wait now.
    #[inline]
    pub fn new(now: u64) -> Self {
        Self { passed: 0, looked: now }
    }

    /// Returns whether a wait of `whole` nanoseconds is over, and counts this look.
    #[inline]
    pub fn is_over(&mut self, whole: u64, now: u64) -> bool {
        let since = now.saturating_sub(self.looked).min(whole.div_ceil(LOOKS));
        self.looked = now;
        self.passed = self.passed.saturating_add(since);
        self.passed >= whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_without_a_processor_has_not_waited() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut wait = Wait::new(7);
        let looks = (1..).take_while(|&look| !wait.is_over(1000, 7 + look * HOUR)).count() as u64;
        assert_eq!(looks, LOOKS - 1);
        let mut wait = Wait::new(7);
        let looks = (1..).take_while(|&look| !wait.is_over(1000, 7 + look)).count();
        assert_eq!(looks, 999, "as long as it is, for a client that looks all the time");
    }

    #[test]
    fn time_goes_on_with_the_clock_and_without_it() {
        let hand = Cell::new(1_000_u64);
        struct Hand<'a>(&'a Cell<u64>);
        impl Clock for Hand<'_> {
            fn now(&self) -> u64 {
                self.0.get()
            }
        }
        let time = Ticking::new(Hand(&hand));
        assert_eq!([time.now(), time.now(), time.now()], [1_000, 1_001, 1_002]);
        hand.set(1_500);
        assert_eq!([time.now(), time.now()], [1_502, 1_503], "as much as the clock");
        hand.set(7);
        assert_eq!([time.now(), time.now()], [1_504, 1_505], "it was set back");
        hand.set(107);
        assert_eq!(time.now(), 1_605);
        assert_eq!(time.clock_time(), 107);
    }
}

//! Time, as the protocols see it.

/// Wall-clock time. Only speed depends on it: guesses that are fresh need one roundtrip, and late
/// nodes are noticed in time. Safety does not.
pub trait Clock {
    /// Nanoseconds since the pool was created, roughly the same on all hosts. A clock may step
    /// backwards or differ between hosts; operations then take more roundtrips.
    fn now(&self) -> u64;
}

impl<C: Clock> Clock for &C {
    fn now(&self) -> u64 {
        (**self).now()
    }
}

//! Checks that a pool's memory use stays flat.

/// The share of the run before memory is sampled: keys are created, and client slots get the chunks
/// that they need.
const WARM_UP: f64 = 0.2;
/// The share of its mean by which memory use may grow from then on.
pub(crate) const MOST_GROWTH: f64 = 0.05;

/// The most samples that are compared pairwise: of more, every second or third, and so on.
const MOST_SAMPLES: usize = 500;
/// Parts of the run with nearly independent medians: in each, [`TIMES`] times the capacity is
/// written, and all memory of dead clients is reused. An interval from fewer than [`FEWEST_PARTS`]
/// parts means little.
const PARTS: usize = 10;
const TIMES: f64 = 3.0;
const FEWEST_PARTS: usize = 7;
/// The 99.9 % quantile of the standard normal distribution: a check of every change must not report
/// a leak by chance.
const CONFIDENT: f64 = 3.09;

/// Memory in use at a time, in bytes of each node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Seconds since the run began.
    pub(crate) at: f64,
    /// In chunks that have an owner.
    pub(crate) used: u64,
    /// In allocated objects.
    pub(crate) allocated: u64,
}

/// The trend of samples: the median of the slopes between any two (Theil-Sen). A client that dies
/// leaves half of a small pool to be collected. Least squares takes such a dip near either end for
/// a trend; the median does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trend {
    /// Bytes at the end.
    pub(crate) last: u64,
    /// Bytes a second.
    pub(crate) slope: f64,
    /// Growth over the sampled time, as a share of the mean.
    pub(crate) growth: f64,
    /// The lower end of the growth's one-sided 99.9 % confidence interval (Sen 1968), from the
    /// medians of [`PARTS`] of the run, because consecutive samples are not independent. `None` for
    /// a run that is too short.
    pub(crate) at_least: Option<f64>,
}

impl Trend {
    /// Computes the trend of samples during which the capacity was written `times` times.
    fn of(samples: &[(f64, u64)], times: f64) -> Option<Self> {
        let (&(first_at, _), &(last_at, last)) = (samples.first()?, samples.last()?);
        if samples.len() < 3 {
            return None;
        }
        let mean =
            samples.iter().map(|&(_, bytes)| bytes as f64).sum::<f64>() / samples.len() as f64;
        let growth = |slope| slope * (last_at - first_at) / mean.max(1.0);
        let slope = median(&slopes(samples.iter().step_by(samples.len().div_ceil(MOST_SAMPLES))));
        let parts = PARTS.min((times / TIMES) as usize).min(samples.len());
        let part = |at| middle(&samples[at * samples.len() / parts..][..samples.len() / parts]);
        let medians: Vec<_> = (0..parts).map(part).collect();
        let at_least =
            (parts >= FEWEST_PARTS).then(|| growth(lower_end(&slopes(medians.iter()), parts)));
        Some(Self { last, slope, growth: growth(slope), at_least })
    }

    /// Returns whether growth is not proven. In a small pool, memory use varies by a tenth or more
    /// as clients die, and so does the slope of a healthy pool.
    pub(crate) fn is_flat(self) -> bool {
        self.at_least.is_none_or(|at_least| at_least <= MOST_GROWTH)
    }
}

/// Returns the slopes between any two samples, sorted.
fn slopes<'s>(samples: impl Iterator<Item = &'s (f64, u64)>) -> Vec<f64> {
    let samples: Vec<_> = samples.collect();
    let mut slopes = Vec::new();
    for (at, (from, before)) in samples.iter().enumerate() {
        let slope = |&&(to, after): &&(f64, u64)| (after as f64 - *before as f64) / (to - from);
        slopes.extend(samples[at + 1..].iter().map(slope));
    }
    slopes.sort_by(f64::total_cmp);
    slopes
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// Returns the middle of these samples' time, and the median of their values.
fn middle(samples: &[(f64, u64)]) -> (f64, u64) {
    let mut bytes: Vec<u64> = samples.iter().map(|&(_, bytes)| bytes).collect();
    bytes.sort_unstable();
    let (first, last) = (samples[0].0, samples[samples.len() - 1].0);
    (f64::midpoint(first, last), bytes[bytes.len() / 2])
}

/// Returns the lower end of the median's confidence interval, from all slopes between `samples`
/// samples: the variance is that of Kendall's count of concordant pairs.
fn lower_end(slopes: &[f64], samples: usize) -> f64 {
    let of = samples as f64;
    let deviation = (of * (of - 1.0) * (2.0 * of + 5.0) / 18.0).sqrt();
    let rank = (slopes.len() as f64 - CONFIDENT * deviation) / 2.0;
    slopes[rank.max(0.0) as usize]
}

/// The trends of memory use after the warm-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) warm_up_s: f64,
    pub(crate) used: Trend,
    pub(crate) allocated: Trend,
}

impl Memory {
    /// Computes the trends of a run that wrote the capacity `times` times. `None` with too few
    /// samples.
    pub(crate) fn of(samples: &[Sample], times: f64) -> Option<Self> {
        let warm_up_s = samples.last()?.at * WARM_UP;
        let warm = &samples[samples.partition_point(|sample| sample.at < warm_up_s)..];
        let trend = |bytes: fn(&Sample) -> u64| {
            let warm: Vec<_> = warm.iter().map(|sample| (sample.at, bytes(sample))).collect();
            Trend::of(&warm, times * (1.0 - WARM_UP))
        };
        let (used, allocated) = (trend(|sample| sample.used)?, trend(|sample| sample.allocated)?);
        Some(Self { warm_up_s, used, allocated })
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.used.is_flat() && self.allocated.is_flat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: impl Fn(f64) -> f64) -> Vec<Sample> {
        let sample = |at: f64| Sample { at, used: 1 << 20, allocated: bytes(at) as u64 };
        (0..100).map(|second| sample(f64::from(second))).collect()
    }

    /// Computes the trends of a run that is long enough.
    fn memory(samples: &[Sample]) -> Memory {
        Memory::of(samples, 50.0).expect("there are enough")
    }

    #[test]
    fn a_leak_is_no_noise() {
        let noise = |at: f64| 1e6 + 5e4 * (at * 37.0).sin();
        let flat = memory(&samples(noise));
        assert!(flat.is_flat() && flat.allocated.slope.abs() < 200.0, "{flat:?}");
        let leak = memory(&samples(|at| noise(at) + 2000.0 * at));
        assert!(
            !leak.is_flat()
                && !leak.allocated.is_flat()
                && (leak.allocated.slope - 2000.0).abs() < 200.0,
            "{leak:?}"
        );
        assert_eq!(leak.used.slope, 0.0);
    }

    /// Use that goes up and down for a while ends somewhere, which proves nothing. A leak of two
    /// fifths on top of it is found.
    #[test]
    fn what_comes_and_goes_for_long_is_no_leak() {
        for phase in 0..8 {
            let tide = |at: f64| 1e6 + 5e4 * (at / 9.0 + f64::from(phase)).sin();
            let flat = memory(&samples(tide));
            assert!(flat.is_flat(), "{flat:?}");
            let leak = memory(&samples(|at| tide(at) + 6e3 * at));
            assert!(!leak.is_flat(), "{leak:?}");
        }
    }

    /// By least squares it grew by four tenths.
    #[test]
    fn a_dip_is_no_trend() {
        let dips = |at: f64| if (20.0..30.0).contains(&at) { 4e5 } else { 1e6 };
        let memory = memory(&samples(dips));
        assert_eq!(memory.allocated.growth, 0.0, "{memory:?}");
    }

    #[test]
    fn what_grows_at_the_beginning_alone_is_flat() {
        let grown = memory(&samples(|at| 1e6 + 1e5 * at.min(15.0)));
        assert!(grown.is_flat() && grown.warm_up_s > 15.0, "{grown:?}");
    }

    #[test]
    fn too_little_shows_nothing() {
        assert!(Memory::of(&[], 50.0).is_none());
        assert!(Memory::of(&samples(|_| 1e6)[..3], 50.0).is_none());
    }
}

//! Draws the next key: YCSB's distributions.

use rand::{Rng, RngExt};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

/// The exponent of YCSB's zipfian distributions.
const ZIPF: f64 = 0.99;

/// Which keys are used most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// A few, spread over all keys
    Zipfian,
    /// All equally
    Uniform,
    /// The newest: the last loaded ones and those that the client inserted
    Latest,
}

/// A key that was drawn.
pub(crate) enum Pick {
    /// A loaded key, by its number.
    Loaded(usize),
    /// A key that the client inserted, by its number in insertion order, from 1.
    Inserted(usize),
}

/// Draws keys.
pub(crate) struct Picker {
    distribution: Distribution,
    keys: usize,
    zipf: Zipf<f64>,
}

impl Picker {
    /// Makes a picker for `keys` keys.
    pub(crate) fn new(distribution: Distribution, keys: usize) -> Self {
        let zipf = Zipf::new(keys.max(1) as f64, ZIPF).expect("at least one key, fixed exponent");
        Self { distribution, keys, zipf }
    }

    /// Draws a loaded key.
    pub(crate) fn loaded(&mut self, rng: &mut impl Rng) -> usize {
        match self.pick(rng, 0) {
            Pick::Loaded(key) | Pick::Inserted(key) => key,
        }
    }

    /// Draws a key among the loaded ones and the client's own new ones.
    pub(crate) fn pick(&mut self, rng: &mut impl Rng, inserted: usize) -> Pick {
        match self.distribution {
            Distribution::Uniform => Pick::Loaded(rng.random_range(0..self.keys)),
            Distribution::Zipfian => {
                Pick::Loaded((scramble(self.rank(rng)) % self.keys as u64) as usize)
            }
            Distribution::Latest => {
                let back = self.rank(rng) as usize;
                if back < inserted {
                    Pick::Inserted(inserted - back)
                } else {
                    let back = (back - inserted).min(self.keys - 1);
                    Pick::Loaded(self.keys - 1 - back)
                }
            }
        }
    }

    /// Draws a rank: how many keys are used more often, from 0.
    fn rank(&self, rng: &mut impl Rng) -> u64 {
        self.zipf.sample(rng) as u64 - 1
    }
}

/// Spreads ranks over all keys: the finalizer of SplitMix64.
fn scramble(rank: u64) -> u64 {
    let mut z = rank.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn counts(distribution: Distribution) -> Vec<u32> {
        let mut counts = vec![0; 1000];
        let mut picker = Picker::new(distribution, 1000);
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..20_000 {
            counts[picker.loaded(&mut rng)] += 1;
        }
        counts
    }

    #[test]
    fn zipfian_has_a_hot_key_somewhere_and_uniform_has_none() {
        // 1 / H(1000, 0.99) of 20,000 is about 2,600.
        let zipfian = counts(Distribution::Zipfian);
        assert!(zipfian.iter().max() > Some(&2_000));
        assert!(zipfian[0] < 2_000 && zipfian[999] < 2_000);
        assert!(counts(Distribution::Uniform).iter().max() < Some(&60));
    }

    #[test]
    fn latest_prefers_the_newest() {
        let counts = counts(Distribution::Latest);
        assert!(counts[999] > 2_000 && counts[998] > 1_000 && counts[0] < 60);
        let mut rng = SmallRng::seed_from_u64(1);
        let mut picker = Picker::new(Distribution::Latest, 1000);
        let newest = (0..1000).filter(|_| matches!(picker.pick(&mut rng, 5), Pick::Inserted(5)));
        assert!(newest.count() > 100);
    }
}

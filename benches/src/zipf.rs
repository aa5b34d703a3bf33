/// Ranks by popularity, zipfian as YCSB draws them.
#[derive(Debug)]
pub struct Zipf {
    keys: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    /// Of so many keys, two at least.
    pub fn new(keys: u64) -> Self {
        let zeta = |keys: u64| (1..=keys).map(|rank| (rank as f64).powf(-Self::THETA)).sum::<f64>();
        let least = 1.0 - (2.0 / keys as f64).powf(1.0 - Self::THETA);
        let (eta, zeta) = (least / (1.0 - zeta(2) / zeta(keys)), zeta(keys));
        Self { keys: keys as f64, zeta, eta }
    }

    /// The rank, from 0 for the most popular, for a number that is uniform in 0 to 1.
    pub fn draw(&self, uniform: f64) -> u64 {
        let share = uniform * self.zeta;
        if share < 1.0 + 0.5_f64.powf(Self::THETA) {
            return u64::from(share >= 1.0);
        }
        let rank = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - Self::THETA));
        ((self.keys * rank) as u64).min(self.keys as u64 - 1)
    }
}

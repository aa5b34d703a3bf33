//! What a process does with a system.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use swarm_benches::Zipf;

use crate::Result;

pub(crate) type Key = [u8; 24];
pub(crate) type Value = [u8; 64];

/// A system that is open. Values are copied into the caller's memory.
pub(crate) trait Peer {
    /// The key is not there yet, and nobody else inserts.
    fn insert(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.update(key, value)
    }

    /// The key is there.
    fn update(&mut self, key: &Key, value: &Value) -> Result<()>;

    /// The key is there.
    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()>;
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    Gets,
    Halves,
}

pub(crate) const WORKLOADS: [Workload; 2] = [Workload::Gets, Workload::Halves];

impl Workload {
    /// YCSB's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gets => "C",
            Self::Halves => "A",
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// Inserts all keys.
    Load,
    /// Measures once for each line of the standard input.
    Serve { seed: u64 },
}

impl Role {
    pub(crate) fn play<P: Peer>(self, peer: &mut P, keys: u64) -> Result<()> {
        match self {
            Self::Load => (0..keys).try_for_each(|at| peer.insert(&key(at), &value(at))),
            Self::Serve { seed } => serve(peer, keys, seed),
        }
    }
}

fn key(number: u64) -> Key {
    let mut key = *b"user................0000";
    for (at, digit) in key[4..20].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize % 16];
    }
    key
}

/// All its words are the same.
fn value(number: u64) -> Value {
    let mut value = [0; 64];
    value.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    value
}

/// Strews ranks over all keys: the finalizer of SplitMix64.
fn scramble(rank: u64) -> u64 {
    let mut z = rank.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Operations between looks at the clock.
const BATCH: usize = 128;
/// Keys are drawn beforehand, so many: drawing one takes as long as some systems' gets.
const DRAWS: usize = 1 << 18;

struct Work<'p, P> {
    peer: &'p mut P,
    draws: Vec<Key>,
    next: usize,
    updates: u64,
    rng: fastrand::Rng,
}

impl<P: Peer> Work<'_, P> {
    #[inline]
    fn batch(&mut self, workload: Workload) -> Result<()> {
        let keys = &self.draws[self.next..self.next + BATCH];
        self.next = (self.next + BATCH) % DRAWS;
        let mut got = [0; 64];
        for key in keys {
            if workload == Workload::Halves && self.rng.bool() {
                self.updates += 1;
                self.peer.update(key, &value(self.updates))?;
                continue;
            }
            self.peer.get(key, &mut got)?;
            let got = black_box(&got);
            if got[..8] != got[56..] {
                return Err("a value is of two updates".into());
            }
        }
        Ok(())
    }

    /// Operations a second, behind a tenth of the time that is not counted.
    fn measure(&mut self, workload: Workload, seconds: f64) -> Result<f64> {
        let mut rate = 0.0;
        for part in [0.1, 0.9] {
            let (time, began) = (Duration::from_secs_f64(part * seconds), Instant::now());
            let mut operations = 0;
            while began.elapsed() < time {
                self.batch(workload)?;
                operations += BATCH;
            }
            rate = operations as f64 / began.elapsed().as_secs_f64();
        }
        Ok(rate)
    }
}

fn serve<P: Peer>(peer: &mut P, keys: u64, seed: u64) -> Result<()> {
    let (zipf, mut rng) = (Zipf::new(keys), fastrand::Rng::with_seed(seed));
    let draw = |_| key(scramble(zipf.draw(rng.f64())) % keys);
    let draws = (0..DRAWS).map(draw).collect();
    for number in 0..keys {
        peer.get(&key(number), &mut [0; 64])?;
    }
    let mut work = Work { peer, draws, next: 0, updates: seed << 32, rng };
    let mut outcome = std::io::stdout();
    writeln!(outcome, "ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (name, seconds) = line.split_once(' ').ok_or("workload and seconds, please")?;
        let workload = WORKLOADS.into_iter().find(|workload| workload.name() == name);
        let rate = work.measure(workload.ok_or("no such workload")?, seconds.parse()?)?;
        writeln!(outcome, "{rate}")?;
    }
    Ok(())
}

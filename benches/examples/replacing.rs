//! What clients feel of a node's replacement: a client that gets and updates keys of a pool with all nodes, with one
//! gone, beside a fill as quick as it can be and at a tenth of that, and with all nodes again. Then nodes are replaced
//! twenty times over.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example replacing`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use swarm_kv::shm::{self, CreateOptions, Pool, ReplaceOptions};
use swarm_kv::{NodeId, Options, ReplaceStep};

const KEYS: u64 = 200_000;
const ROUNDS: usize = 7;
const PHASE: Duration = Duration::from_millis(600);
const REPLACED: u8 = 1;
const REPLACEMENTS: u8 = 20;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// What a kind of operation took.
#[derive(Clone, Default)]
struct Taken {
    operations: u64,
    of_one: u64,
    roundtrips: u64,
    most: u32,
}

impl Taken {
    fn add(&mut self, roundtrips: u32) {
        self.operations += 1;
        self.of_one += u64::from(roundtrips <= 1);
        self.roundtrips += u64::from(roundtrips);
        self.most = self.most.max(roundtrips);
    }
}

#[derive(Clone, Default)]
struct Phase {
    /// Gets and updates.
    kinds: [Taken; 2],
    /// Operations a second, of each round.
    rates: Vec<f64>,
    /// Filled keys a second, of each round.
    filled: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Gets and updates keys for as long as a phase takes, or until `is_over`.
fn work(
    client: &shm::Client,
    rng: &mut fastrand::Rng,
    phase: &mut Phase,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    let (store, began, mut done) = (client.blocking(), Instant::now(), 0);
    while began.elapsed() < PHASE && !is_over() {
        for _ in 0..64 {
            let (key, kind) = (key(rng.u64(..KEYS)), usize::from(rng.bool()));
            match kind {
                0 => drop(store.get(&key)?),
                _ => drop(store.update(&key, &[rng.u8(..); 64])?),
            }
            phase.kinds[kind].add(client.last().roundtrips);
            done += 1;
        }
    }
    phase.rates.push(f64::from(done) / began.elapsed().as_secs_f64());
    Ok(())
}

/// Begins a replacement, and gives it up as soon as the node is gone.
fn lose(pool: &Pool) -> Result<()> {
    let replacement = pool.replace(NodeId(REPLACED), &ReplaceOptions::default())?;
    let client = shm::open(pool, Options::default())?;
    let mut goes_on = |step| !matches!(step, ReplaceStep::Fills(_));
    shm::replace(&replacement, &client, &mut goes_on)?;
    Ok(())
}

/// How far a fill beside a client is.
#[derive(Default)]
struct Stage {
    is_gone: AtomicBool,
    begins: AtomicBool,
    is_over: AtomicBool,
}

/// Fills the node's memory once that is asked for, so many keys a second or as many as it can, and gives up before the node
/// votes. Returns how many those are.
fn fill(pool: &Pool, rate: Option<f64>, stage: &Stage) -> Result<f64> {
    let client = shm::open(pool, Options::default())?;
    let replacement = pool.replace(NodeId(REPLACED), &ReplaceOptions::default())?;
    let (mut first, mut last) = (None, 0.0);
    let mut goes_on = |step| {
        let ReplaceStep::Fills(now) = step else { return true };
        stage.is_gone.store(true, Ordering::Relaxed);
        while !stage.begins.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let (began, before) = *first.get_or_insert_with(|| (Instant::now(), now.keys));
        let keys = (now.keys - before) as f64;
        if let Some(rate) = rate {
            thread::sleep(Duration::from_secs_f64(keys / rate).saturating_sub(began.elapsed()));
        }
        last = keys / began.elapsed().as_secs_f64();
        now.done < now.first_buckets && !stage.is_over.load(Ordering::Relaxed)
    };
    let filled = shm::replace(&replacement, &client, &mut goes_on);
    stage.is_gone.store(true, Ordering::Relaxed);
    stage.is_over.store(true, Ordering::Relaxed);
    filled?;
    Ok(last)
}

/// A phase of work beside a fill. Returns how many keys a second were filled.
fn beside(
    pool: &Pool,
    rate: Option<f64>,
    client: &shm::Client,
    rng: &mut fastrand::Rng,
    phase: &mut Phase,
) -> Result<f64> {
    let stage = Stage::default();
    thread::scope(|threads| {
        let filler = threads.spawn(|| fill(pool, rate, &stage));
        let worked = settled(client, rng, phase, &stage);
        stage.begins.store(true, Ordering::Relaxed);
        stage.is_over.store(true, Ordering::Relaxed);
        let filled = filler.join().map_err(|_| "the fill panicked")?;
        worked.and(filled)
    })
}

/// A phase behind the generation in which the node is gone: a client looks up anew where each key is.
fn settled(
    client: &shm::Client,
    rng: &mut fastrand::Rng,
    phase: &mut Phase,
    stage: &Stage,
) -> Result<()> {
    while !stage.is_gone.load(Ordering::Relaxed) {
        client.rest();
        client.blocking().get(&key(0))?;
    }
    warm(client)?;
    stage.begins.store(true, Ordering::Relaxed);
    work(client, rng, phase, || stage.is_over.load(Ordering::Relaxed))
}

/// Looks up where each key is.
fn warm(client: &shm::Client) -> Result<()> {
    for _ in 0..2 {
        for number in 0..KEYS {
            client.blocking().update(&key(number), &[0; 64])?;
        }
    }
    Ok(())
}

fn replace(pool: &Pool, node: u8) -> Result<()> {
    let replacement = pool.replace(NodeId(node), &ReplaceOptions::default())?;
    let client = shm::open(pool, Options::default())?;
    let done = shm::replace(&replacement, &client, &mut |_| true)?;
    if done { Ok(()) } else { Err("it was given up".into()) }
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions { nodes: 3, capacity: 128 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options)?;
    let client = shm::open(&pool, Options::default().cached_keys(KEYS as usize))?;
    for number in 0..KEYS {
        client.blocking().put(&key(number), &[0; 64])?;
    }
    let names = ["all nodes", "a node gone", "filled beside", "at a tenth", "all again"];
    let mut phases: [Phase; 5] = Default::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let always = || false;
    for _ in 0..ROUNDS {
        let [whole, gone, full, tenth, again] = &mut phases;
        warm(&client)?;
        work(&client, &mut rng, whole, always)?;
        lose(&pool)?;
        warm(&client)?;
        work(&client, &mut rng, gone, always)?;
        let rate = beside(&pool, None, &client, &mut rng, full)?;
        full.filled.push(rate);
        let rate = beside(&pool, Some(rate / 10.0), &client, &mut rng, tenth)?;
        tenth.filled.push(rate);
        replace(&pool, REPLACED)?;
        warm(&client)?;
        work(&client, &mut rng, again, always)?;
    }
    println!("medians of {ROUNDS} rounds; one client; {KEYS} keys\n");
    println!(
        "{:14} {:>9} {:>6} {:>12} | get {:>9} {:>6} {:>5} | update {:>6} {:>6} {:>5}",
        "", "op/s", "ratio", "filled/s", "of one", "mean", "most", "of one", "mean", "most"
    );
    for (name, phase) in names.into_iter().zip(&phases) {
        let rate = median(&phase.rates);
        // Of those without a fill.
        let ratio = rate / median(&phases[1].rates);
        print!("{name:14} {rate:>9.0} {ratio:>6.2} {:>12.0}", median(&phase.filled));
        for Taken { operations, of_one, roundtrips, most } in &phase.kinds {
            let share = *of_one as f64 / *operations as f64 * 100.0;
            let mean = *roundtrips as f64 / *operations as f64;
            print!(" | {share:>11.2} % {mean:>6.3} {most:>5}");
        }
        println!();
    }
    let mut used = Vec::new();
    for number in 0..REPLACEMENTS {
        let mut phase = Phase::default();
        work(&client, &mut rng, &mut phase, always)?;
        replace(&pool, number % 3)?;
        used.push(shm::usage(&pool)?.used_bytes);
    }
    println!("\nused bytes after replacements 1 to {REPLACEMENTS}: {used:?}");
    println!("the last over the second: {:.3}", used[used.len() - 1] as f64 / used[1] as f64);
    Ok(())
}

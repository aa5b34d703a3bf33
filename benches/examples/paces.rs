//! Processor time of one cached operation, nanoseconds: `paces KEYS`.
//!
//! One client of a pool of three nodes on shared memory, keys of 24 bytes, values of 64, `KEYS` of them, zipfian 0.99 or
//! uniform. A line for each kind: `get`, `update` and half of both in the calling thread; `async-get` and
//! `async-update` in one future; `uniform-get`, and `uniform-get-many` by 64 keys. The kinds take turns, 10,000
//! operations at a time, so that a machine that is busy now and then is so for all of them; the first 10,000 of each turn
//! warm the caches. What is printed is the median of the turns. `benches/compare.sh` runs this at two commits in turn, so it uses what
//! both have.

use std::error::Error;
use std::fs;
use std::hint::black_box;

use swarm_kv::shm::{self, CreateOptions, Pool};
use swarm_kv::{Options, block_on};
use zipf::Zipf;

// By its path: the library of an earlier commit has none, to which `benches/compare.sh` brings the file.
#[expect(unreachable_pub, reason = "a library exports it")]
#[path = "../src/zipf.rs"]
mod zipf;

const KINDS: [&str; 7] =
    ["get", "update", "half", "async-get", "async-update", "uniform-get", "uniform-get-many"];
/// Operations of a turn that are measured, and as many before them.
const TURN: usize = 10_000;
const TURNS: usize = 30;
const NODES: usize = 3;
const VALUE: usize = 64;

type Key = [u8; 24];

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: swarm_shm::HugePages = swarm_shm::HugePages;

fn key(number: u64) -> Key {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// The key of this rank: the most popular ones lie all over.
fn spread(rank: u64, keys: u64) -> Key {
    let spread = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    key(spread.wrapping_mul(0xd6e8_feb8_6659_fd93) % keys)
}

/// Nanoseconds that a processor spent on this thread, as the kernel counts them.
fn processor_ns() -> u64 {
    // It counts what a thread did when that gives up its processor, or with the next tick.
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel keeps it");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number")
}

fn main() -> Result<(), Box<dyn Error>> {
    let keys: u64 = std::env::args().nth(1).ok_or("usage: paces KEYS")?.parse()?;
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let path = dir.path().join("pool");
    let capacity = ((256 << 20) + 2 * keys * (VALUE as u64 + 600)).next_multiple_of(1 << 20);
    Pool::create(&path, &CreateOptions { nodes: NODES, capacity, ..CreateOptions::default() })?;
    let pool = Pool::open(&path, swarm_shm::OpenOptions::default())?;
    pool.populate();
    let client = shm::open(&pool, Options::default().cached_keys(keys as usize * 2))?;
    let store = client.blocking();
    let mut value = vec![7; VALUE];
    for number in 0..keys {
        store.insert(&key(number), &value)?;
    }
    let (zipf, mut rng) = (Zipf::new(keys), fastrand::Rng::with_seed(7));
    let popular: Vec<Key> =
        (0..2 * TURN * TURNS).map(|_| spread(zipf.draw(rng.f64()), keys)).collect();
    let uniform: Vec<Key> = (0..2 * TURN * TURNS).map(|_| key(rng.u64(0..keys))).collect();
    for number in 0..keys {
        black_box(store.get(&key(number))?);
    }
    let mut play = |kind: &str, drawn: &[Key]| -> Result<(), Box<dyn Error>> {
        match kind {
            "get" | "uniform-get" => {
                for key in drawn {
                    black_box(store.get(key)?.map(|value| value[0]));
                }
            }
            "update" => {
                for (number, key) in drawn.iter().enumerate() {
                    value[..8].copy_from_slice(&number.to_le_bytes());
                    assert!(store.update(key, &value)?);
                }
            }
            "half" => {
                for (number, key) in drawn.iter().enumerate() {
                    // By halves in no order that a processor could learn.
                    if number.wrapping_mul(0x9e37_79b9) & 0x1_0000 == 0 {
                        black_box(store.get(key)?.map(|value| value[0]));
                    } else {
                        value[..8].copy_from_slice(&number.to_le_bytes());
                        assert!(store.update(key, &value)?);
                    }
                }
            }
            "async-get" => block_on(async {
                for key in drawn {
                    black_box(client.get(key).await?.map(|value| value[0]));
                }
                Ok::<(), swarm_kv::Error>(())
            })?,
            "async-update" => block_on(async {
                for (number, key) in drawn.iter().enumerate() {
                    value[..8].copy_from_slice(&number.to_le_bytes());
                    assert!(client.update(key, &value).await?);
                }
                Ok::<(), swarm_kv::Error>(())
            })?,
            _ => {
                for keys in drawn.chunks(64) {
                    for value in store.get_many(keys)? {
                        black_box(value.map(|value| value[0]));
                    }
                }
            }
        }
        Ok(())
    };
    let mut times = KINDS.map(|_| Vec::with_capacity(TURNS));
    for turn in 0..TURNS {
        for (kind, times) in KINDS.into_iter().zip(&mut times) {
            let drawn = if kind.starts_with("uniform") { &uniform } else { &popular };
            let (warm, measured) = drawn[2 * turn * TURN..][..2 * TURN].split_at(TURN);
            play(kind, warm)?;
            let began = processor_ns();
            play(kind, measured)?;
            times.push((processor_ns() - began) as f64 / TURN as f64);
        }
    }
    for (kind, times) in KINDS.into_iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{kind} {:.1}", times[TURNS / 2]);
    }
    Ok(())
}

//! How many lookups find their key in a client's location cache, beside the same of quick_cache, which has S3-FIFO's
//! queues and remembers keys that went: `hit_rates [KEYS]`.
//!
//! Each lookup that finds nothing puts the key in. What is counted is the second half of twenty lookups a key.

use std::error::Error;

use quick_cache::unsync::Cache;
use swarm_benches::Zipf;
use swarm_core::layout::{Identity, Location, Shape};
use swarm_core::node::NodeId;
use swarm_core::register::Register;
use swarm_core::words::Pointer;

/// The store's own cache, which it does not show to anyone: taken in by its source.
#[expect(dead_code, reason = "lookups and insertions alone are counted")]
#[path = "../../swarm-kv/src/client/location_cache/mod.rs"]
mod cache;

/// Which keys are asked for.
#[derive(Clone, Copy)]
enum Keys {
    Zipfian,
    /// The most popular keys are others half-way.
    Changing,
    /// Each lookup is followed by one of a key that comes by once. Those are not counted.
    Scanned,
    Uniform,
}

fn percent(keys: u64, drawn: Keys, mut looks_up: impl FnMut(u64) -> bool) -> f64 {
    let (zipf, mut rng) = (Zipf::new(keys), fastrand::Rng::with_seed(7));
    let (half, mut hits) = (10 * keys, 0);
    for number in 0..2 * half {
        let key = match drawn {
            Keys::Uniform => rng.u64(..keys),
            Keys::Changing if number >= half => keys - 1 - zipf.draw(rng.f64()),
            _ => zipf.draw(rng.f64()),
        };
        let hit = looks_up(key);
        hits += u64::from(hit && number >= half);
        if matches!(drawn, Keys::Scanned) {
            looks_up(keys + number);
        }
    }
    100.0 * hits as f64 / half as f64
}

fn ours(keys: u64, room: usize, drawn: Keys) -> f64 {
    const SEED: u64 = 7;
    let cache = cache::LocationCache::new(room, SEED);
    percent(keys, drawn, |key| {
        let name = key.to_le_bytes();
        let hit = cache.get(cache::hash_key(&name, SEED), &name).is_some();
        if !hit {
            let place = Location::everywhere(Pointer(key + 1), NodeId(0));
            let shape = Shape { key_length: name.len(), capacity: 8 };
            cache.insert(&name, Register::new(place, Identity::default(), shape), 0);
        }
        hit
    })
}

fn quick(keys: u64, room: usize, drawn: Keys) -> f64 {
    let mut cache = Cache::new(room);
    percent(keys, drawn, |key| {
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, ());
        }
        hit
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let keys = std::env::args().nth(1).map_or(Ok(100_000), |keys| keys.parse())?;
    println!("| keys asked for | room | ours | quick_cache |\n| --- | --- | --- | --- |");
    let rows = [
        ("zipfian 0.99", Keys::Zipfian, [10, 50]),
        ("others half-way", Keys::Changing, [10, 50]),
        ("with a scan, key by key", Keys::Scanned, [10, 50]),
        ("uniform", Keys::Uniform, [10, 50]),
        ("uniform", Keys::Uniform, [90, 100]),
    ];
    for (name, drawn, shares) in rows {
        for share in shares {
            let room = (keys * share / 100) as usize;
            let (ours, quick) = (ours(keys, room, drawn), quick(keys, room, drawn));
            println!("| {name} | {share} % | {ours:.1} % | {quick:.1} % |");
        }
    }
    Ok(())
}

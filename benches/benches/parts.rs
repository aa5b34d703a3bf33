//! What operations are made of: checksums, and the lookup of a cached location.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use swarm_core::layout::{Identity, Location, Shape, checksum};
use swarm_core::register::Register;
use swarm_core::words::{Pointer, Timestamp, WordFormat, WriteNumber};

/// The store's own cache, which it does not show to anyone: taken in by its source.
#[expect(
    dead_code,
    unused_imports,
    reason = "only lookups are measured, and its tests are no benchmark"
)]
#[path = "../../swarm-kv/src/client/location_cache/mod.rs"]
mod cache;

const IDENTITY: Identity = Identity { created_at: 0, number: WriteNumber(1) };
const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

fn checksums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    for bytes in [64, 1024, 4096] {
        let value = vec![7_u8; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &value, |bencher, value| {
            bencher.iter(|| {
                checksum(
                    FORMAT,
                    IDENTITY,
                    Timestamp(5),
                    Pointer(9),
                    WriteNumber(1),
                    black_box(value),
                )
            });
        });
    }
    group.finish();
}

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// The generation that every lookup and insertion is of.
const GENERATION: u64 = 0;

/// A pool's hash seed.
const SEED: u64 = 7;

fn cache_lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cache lookup");
    for keys in [1_u64, 100_000] {
        let locations = cache::LocationCache::new(keys as usize, SEED);
        let shape = Shape { key_length: 24, capacity: 8 };
        for number in 0..keys {
            let place = Location::everywhere(Pointer(number + 1), swarm_core::node::NodeId(0));
            let identity = Identity { created_at: 1, number: WriteNumber(number) };
            let register = Register::new(place, identity, shape);
            locations.insert(&key(number), register, GENERATION);
        }
        group.bench_function(BenchmarkId::new("keys", keys), |bencher| {
            let mut number = 0;
            bencher.iter(|| {
                // A stride that visits all keys in an order that the processor does not foresee.
                number = (number + 61_803) % keys;
                let key = black_box(key(number));
                locations.get(cache::hash_key(&key, SEED), &key).expect("it is cached")
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = swarm_benches::brief();
    targets = checksums, cache_lookup
}
criterion_main!(benches);

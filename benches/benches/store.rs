//! Gets and updates through the store: three nodes, keys of 24 bytes, values of 64, locations
//! cached.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use swarm_kv::Options;
use swarm_kv::shm::{self, CreateOptions, Pool};

const CAPACITY: u64 = 256 << 20;
/// Updates for which a pool has memory: it is not recycled yet.
const UPDATES: u64 = 1_000_000;

struct Loaded {
    client: shm::Client,
    keys: u64,
    at: u64,
    updates: u64,
    _dir: tempfile::TempDir,
}

impl Loaded {
    /// A pool with `keys` keys, and a client that knows where they are.
    fn new(keys: u64) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a temporary directory");
        let options = CreateOptions { capacity: CAPACITY, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        pool.populate();
        let client = shm::open(&pool, Options::default()).expect("open");
        for number in 0..keys {
            client.blocking().put(&key(number), &[0; 64]).expect("put");
        }
        Self { client, keys, at: 0, updates: 0, _dir: dir }
    }

    /// The next key, in an order that visits all of them and that the processor does not foresee.
    fn next(&mut self) -> [u8; 24] {
        self.at = (self.at + 61_803) % self.keys;
        key(self.at)
    }

    #[inline]
    fn get(&mut self) -> usize {
        let key = self.next();
        let value = self.client.blocking().get(black_box(&key)).expect("get");
        value.expect("the key is there").len()
    }

    #[inline]
    fn update(&mut self) {
        let key = self.next();
        self.updates += 1;
        assert_eq!(self.client.blocking().update(black_box(&key), &[1; 64]), Ok(true));
    }
}

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

fn gets(criterion: &mut Criterion) {
    for keys in [1, 100_000] {
        let mut loaded = Loaded::new(keys);
        let id = format!("get/{keys} keys");
        criterion.bench_function(&id, |bencher| bencher.iter(|| loaded.get()));
    }
}

fn updates(criterion: &mut Criterion) {
    for keys in [1, 100_000] {
        let mut loaded = Loaded::new(keys);
        let id = format!("update/{keys} keys");
        criterion.bench_function(&id, |bencher| {
            bencher.iter_custom(|mut count| {
                let mut elapsed = Duration::ZERO;
                while count > 0 {
                    if loaded.updates == UPDATES {
                        loaded = Loaded::new(keys);
                    }
                    let part = count.min(UPDATES - loaded.updates);
                    let began = Instant::now();
                    (0..part).for_each(|_| loaded.update());
                    elapsed += began.elapsed();
                    count -= part;
                }
                elapsed
            });
        });
    }
}

criterion_group! {
    name = benches;
    // Updates use memory up; a second of them is plenty.
    config = swarm_benches::brief().sample_size(20);
    targets = gets, updates
}
criterion_main!(benches);

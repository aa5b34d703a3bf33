//! What a client takes: of its process's memory, as a global allocator counts it, touched or not,
//! by the formula in the documentation of `Options`; and of its pool's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use swarm_kv::shm::{self, Client, CreateOptions, Pool};
use swarm_kv::{Error, Options};

/// Counts the bytes that the thread has, and the most that it had.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all memory comes from the system's allocator, with the given layout.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NOW.set(NOW.get() + layout.size());
        MOST.set(MOST.get().max(NOW.get()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // Another thread may have allocated it.
        NOW.set(NOW.get().saturating_sub(layout.size()));
        // SAFETY: as the caller promises; it came from there.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `work` yields, the most bytes that it had at a time, and those that it keeps.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = NOW.get();
    MOST.set(before);
    let done = work();
    (done, MOST.get() - before, NOW.get().saturating_sub(before))
}

const VALUE: [u8; 64] = [7; 64];
/// Consecutive refusals; each may have found memory that is being reclaimed.
const REFUSALS: usize = 3;
/// Bytes that lists of reclaimed buffers of one kind have from the beginning, untouched.
const LISTS: usize = 24 * (16 << 10);

fn new(capacity: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    (dir, pool)
}

/// Opens a client that caches next to nothing, so that what else it keeps shows.
fn open(pool: &Pool) -> Client {
    let options = Options::default().cached_keys(16).cached_buckets(16);
    shm::open(pool, options).expect("a slot")
}

/// Puts values until it is refused again and again. Returns how many fit.
fn fill(client: &Client) -> usize {
    let (mut stored, mut refused) = (0_usize, 0);
    while refused < REFUSALS {
        match client.blocking().put(&stored.to_le_bytes(), &VALUE) {
            Ok(()) => (stored, refused) = (stored + 1, 0),
            Err(Error::Full(_)) => refused += 1,
            Err(error) => panic!("value {stored}: {error}"),
        }
    }
    stored
}

/// A refused put looks for memory everywhere. What it takes for that is bounded by the keys, a table
/// of their registers, and is given back. So it is once all keys are deleted, and garbage: a cycle
/// that listed it took more for that than for all else.
#[test]
fn what_a_collection_takes_is_bounded_and_given_back() {
    let (_dir, pool) = new(4 << 20);
    let client = open(&pool);
    let keys = fill(&client);
    // Registers fit in the pool's chunks that no key has.
    let table = 17 * 7 * (keys + keys / 4) / 3;
    for key in [keys, keys + 1] {
        let put = || client.blocking().put(&key.to_le_bytes(), &VALUE);
        let (put, most, kept) = counted(put);
        println!("{keys} keys: {most} bytes at most, {kept} kept");
        assert!(matches!(put, Ok(()) | Err(Error::Full(_))), "{put:?}");
        assert!(most <= table + 20_000, "{most} bytes for {keys} keys");
        assert!(kept <= 20_000, "{kept} bytes are kept");
    }
    let ((), most, kept) = counted(|| {
        for key in 0..keys {
            client.blocking().delete(&key.to_le_bytes()).expect("delete");
        }
        for key in 0..keys / 2 {
            match client.blocking().put(&key.to_le_bytes(), &VALUE) {
                Ok(()) | Err(Error::Full(_)) => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
    });
    println!("they are deleted, and half of them put again: {most} bytes at most, {kept} kept");
    // Lists of what is reclaimed: most of it is zeroed registers. With the garbage listed, at 40
    // bytes each, it was 902,968 bytes at most for 10,668 keys.
    let reclaimed = 20 * keys;
    assert!(most <= table + reclaimed + 20_000, "{most} bytes for {keys} keys");
    // By the formula, which allows for more of them at a time. A table that is kept is more than that.
    assert!(kept <= 32 * keys + 20_000 && 32 * keys + 20_000 < table, "{kept} bytes are kept");
}

/// Each had 1.8 MB once it had put a key: a thousand clients of one process took 1.8 GB.
#[test]
fn a_client_that_has_put_a_key_has_little_memory() {
    let (_dir, pool) = new(64 << 20);
    let (client, _, opened) = counted(|| open(&pool));
    let (put, _, kept) = counted(|| client.blocking().put(b"key", &VALUE));
    put.expect("put");
    println!("{opened} bytes when it is opened, {kept} more with a key");
    let chunks = pool.geometry().chunks();
    // A chunk has room for a thousand of the smallest objects.
    assert!(opened <= 60_000, "{opened} bytes");
    assert!(kept <= 80 * chunks + 3 * (8 * 1024 + LISTS) + 40_000, "{kept} bytes");
}

/// Bytes of each node in chunks that belong to somebody.
fn used(pool: &Pool) -> u64 {
    shm::usage(pool).expect("usage").used_bytes
}

/// It took a chunk for each kind of object, a quarter of a MiB and more.
#[test]
fn a_client_that_puts_a_key_takes_little_of_the_pool() {
    let (_dir, pool) = new(64 << 20);
    let all: Vec<Client> = (0..8).map(|_| open(&pool)).collect();
    let before = used(&pool);
    for (number, client) in all.iter().enumerate() {
        client.blocking().put(&number.to_le_bytes(), &VALUE).expect("put");
    }
    // They share a chunk for each of three kinds; for registers it may take one more.
    let chunks = (used(&pool) - before) / pool.geometry().chunk_bytes;
    println!("{} clients take {chunks} chunks", all.len());
    assert!(chunks <= 4, "{chunks} chunks");
}

/// Four clients with values of all sizes, 1.5 MiB of them, took 33 MiB.
#[test]
fn clients_with_values_of_many_sizes_take_less_than_a_chunk_for_each() {
    let (_dir, pool) = new(256 << 20);
    let before = used(&pool);
    let all: Vec<Client> = (0..4).map(|_| open(&pool)).collect();
    for (number, client) in all.iter().enumerate() {
        for step in 0..40 {
            let value = vec![7; (64.0 * 1024_f64.powf(f64::from(step) / 39.0)) as usize];
            let key = format!("{number} {step}");
            client.blocking().put(key.as_bytes(), &value).expect("put");
        }
    }
    let taken = used(&pool) - before;
    println!("they take {:.1} MiB", taken as f64 / f64::from(1 << 20));
    assert!(taken <= 20 << 20, "{taken} bytes");
}

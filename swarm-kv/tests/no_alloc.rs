//! A cached get or update allocates nothing, takes no lock and makes no system call.
//!
//! *Allocations* are counted by a global allocator, over the operations that took one roundtrip.
//! Now and then an update takes more, because it raises a high-water mark or claims a chunk, and
//! those may allocate. *System calls* are forbidden by a seccomp filter: the kernel kills a process
//! that makes one, except `fstat`, by which a client checks twice a second whether its pool exists.
//! *Locks* make system calls only when they are contended; that there are none to contend for
//! follows from the types. A `Client` is not `Sync`, and it reaches other clients only through the
//! words of the mapped nodes, of which the common path CASes some and waits for none.

#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use swarm_kv::block_on;
use swarm_kv::shm::{self, CreateOptions, Pool};

const KEYS: u64 = 500;
const OPERATIONS: u64 = 10_000;
/// For a process that will be forbidden system calls: where its pool may be.
const CONFINED: &str = "SWARM_TEST_CONFINED";

/// Counts what the thread allocates. While the thread is confined, hands out a static area instead
/// of memory that may need the kernel.
struct Counting;

const AREA: usize = 16 << 20;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes left of the thread's area, if it is confined.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static FIRST: Cell<*mut u8> = const { Cell::new(std::ptr::null_mut()) };
}

// SAFETY: all memory comes from the system's allocator: either requested directly, with the given
// layout, or cut from a block of `AREA` bytes that is never freed. Parts of the block do not
// overlap, as `LEFT` only falls, and are aligned as requested.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        let Some(left) = LEFT.get() else {
            // SAFETY: as the caller promises.
            return unsafe { System.alloc(layout) };
        };
        let Some(at) = left.checked_sub(layout.size()) else { return std::ptr::null_mut() };
        let at = at & !(layout.align() - 1);
        LEFT.set(Some(at));
        // SAFETY: `at` lies within the block.
        unsafe { FIRST.get().add(at) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let confined = LEFT.get().is_some();
        if !confined {
            // SAFETY: as the caller promises; memory of a confined thread never gets here, as such
            // a thread stays confined until the process ends.
            unsafe { System.dealloc(block, layout) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// From now on, the thread's allocator works without the kernel.
fn confine_allocator() {
    let block = Box::leak(vec![1_u8; AREA].into_boxed_slice());
    FIRST.set(block.as_mut_ptr());
    LEFT.set(Some(AREA));
}

/// From now on, a system call of this thread, except `fstat` and the end of the process, kills the
/// process. Returns false if the kernel has no such filters.
fn confine_thread() -> bool {
    let code = |code: u32| u16::try_from(code).expect("BPF codes have 16 bits");
    let load = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let compare = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let verdict = code(libc::BPF_RET | libc::BPF_K);
    let end = libc::SYS_exit_group as u32;
    // As the kernel names it, and as the C library calls it.
    let look = [libc::SYS_fstat as u32, libc::SYS_newfstatat as u32];
    let mut filter = [
        // The number of the system call is the first word of the filter's input.
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: compare, jt: 3, jf: 0, k: end },
        libc::sock_filter { code: compare, jt: 2, jf: 0, k: look[0] },
        libc::sock_filter { code: compare, jt: 1, jf: 0, k: look[1] },
        libc::sock_filter { code: verdict, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
        libc::sock_filter { code: verdict, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` and `filter` outlive the calls, and the kernel copies both.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// Makes a client that has each key's location cached and free memory for updates, on a pool of its
/// own in `dir`.
fn warm_client(dir: &Path) -> shm::Client {
    let path = dir.join("pool");
    let options = CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() };
    Pool::create(&path, &options).expect("create");
    let client = shm::open_path(&path).expect("open");
    let store = client.blocking();
    for number in 0..4 * KEYS {
        store.put(&key(number % KEYS), &[0; 64]).expect("put");
        store.get(&key(number % KEYS)).expect("get");
    }
    client
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A program that spawns, joins or boxes operations moves their futures.
#[test]
fn futures_of_the_common_operations_are_small() {
    let dir = directory();
    let client = warm_client(dir.path());
    assert!(size_of_val(&client.get(&key(0))) <= 512);
    assert!(size_of_val(&client.update(&key(0), b"value")) <= 512);
}

/// The same operations as futures, each polled once.
#[test]
fn cached_futures_allocate_nothing() {
    let dir = directory();
    let client = warm_client(dir.path());
    let mut anew = 0;
    for number in 0..OPERATIONS {
        let (key, value) = (key(number % KEYS), [number as u8; 64]);
        let updated = block_on(client.update(&key, &value));
        assert_eq!(updated, Ok(true));
        let before = ALLOCATIONS.get();
        let got = block_on(client.get(&key)).expect("get").expect("the key is there");
        assert_eq!(got[..], value);
        drop(got);
        assert_eq!(ALLOCATIONS.get(), before, "get number {number} allocated");
        let before = ALLOCATIONS.get();
        assert_eq!(block_on(client.update(&key, &value)), Ok(true));
        anew += usize::from(ALLOCATIONS.get() != before);
    }
    // As for the blocking ones, below; another update precedes each of these. One in 511 of both opens another chunk.
    let most = 2 * 3 * OPERATIONS as usize / 256 + 2 * OPERATIONS as usize / 511;
    assert!(anew <= most, "{anew} of {OPERATIONS} updates allocated");
}

#[test]
fn cached_operations_allocate_nothing() {
    let dir = directory();
    let client = warm_client(dir.path());
    let store = client.blocking();
    let (mut gets, mut updates, mut anew) = (0, 0, 0);
    for number in 0..OPERATIONS {
        let key = key(number % KEYS);
        let before = ALLOCATIONS.get();
        assert!(store.update(&key, &[number as u8; 64]).expect("update"));
        if client.last().roundtrips == 1 {
            updates += 1;
            anew += usize::from(ALLOCATIONS.get() != before);
        }
        let before = ALLOCATIONS.get();
        let value = store.get(&key).expect("get").expect("the key is there");
        assert_eq!(value[..], [number as u8; 64]);
        drop(value);
        assert_eq!(client.last().roundtrips, 1, "get number {number} was not the common one");
        assert_eq!(ALLOCATIONS.get(), before, "get number {number} allocated");
        gets += 1;
    }
    assert_eq!(gets, OPERATIONS);
    // An update that finds no buffer begins anew: buffers that wait for the next epoch may be free
    // by then. Buffers are freed in batches of 256, of three kinds.
    assert!(anew <= 3 * OPERATIONS as usize / 256, "{anew} of {updates} updates allocated");
    // One in 511 updates opens another chunk.
    assert!(updates > OPERATIONS * 99 / 100, "only {updates} updates took one roundtrip");
}

#[test]
fn the_allocations_are_counted() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get(), before + 1);
}

#[test]
fn cached_operations_make_no_system_call() {
    if let Some(dir) = std::env::var_os(CONFINED) {
        operate_confined(dir.as_ref(), || {});
    }
    if let Some(status) = confined("cached_operations_make_no_system_call") {
        assert_eq!(status.signal(), None, "a system call was made");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_system_call_would_be_noticed() {
    if let Some(dir) = std::env::var_os(CONFINED) {
        operate_confined(dir.as_ref(), || drop(std::env::current_dir()));
    }
    if let Some(status) = confined("a_system_call_would_be_noticed") {
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
    }
}

/// The exit status for "this kernel has no filters for system calls".
const UNSUPPORTED: i32 = 77;

/// Runs one of these tests in a process of its own, which will be confined, and returns how that
/// ended. `None` if processes cannot be confined.
fn confined(test: &str) -> Option<ExitStatus> {
    let dir = directory();
    let program = std::env::current_exe().expect("a test has a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(CONFINED, dir.path());
    let status = command.stdout(Stdio::null()).status().expect("the test's program runs");
    if status.code() == Some(UNSUPPORTED) {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        let why = "this kernel, or container, has no filters for system calls";
        assert!(!required, "{test}: {why}. With SWARM_RIGHTS_REQUIRED set it must not be skipped");
        // Not by `eprintln`, whose output is hidden if a test passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
        return None;
    }
    Some(status)
}

/// Runs cached gets and updates, and `last`, under the filter. Ends the process.
fn operate_confined(dir: &Path, last: impl Fn()) -> ! {
    let end = |status| -> ! {
        // SAFETY: ends the process, without touching this process's state.
        unsafe { libc::_exit(status) }
    };
    let client = warm_client(dir);
    let store = client.blocking();
    confine_allocator();
    if !confine_thread() {
        end(UNSUPPORTED);
    }
    // No assertion from here on: the output of a panic would be killed.
    let mut good = 0;
    for number in 0..OPERATIONS {
        let key = key(number % KEYS);
        let updated = store.update(&key, &[number as u8; 64]);
        let value = store.get(&key);
        let found = matches!(&value, Ok(Some(value)) if value[..] == [number as u8; 64]);
        good += u64::from(updated == Ok(true) && found);
    }
    last();
    end(i32::from(good != OPERATIONS));
}

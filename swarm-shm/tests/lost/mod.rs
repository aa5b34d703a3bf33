//! Files that are cut short while processes have them mapped: a process ended by SIGBUS.

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use swarm_core::fabric::{EpochDomain, Fabric, Lost, NodeDown, RemoteFree, Store, Swap, Verb};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_shm::{Error, OpenOptions, Pool, ShmFabric};

use super::common::{Running, pool, post, report};
use super::{nudge, wait_for_parent};

const GONE: NodeId = NodeId(1);
const AT: Address = Address(4096);

/// Cuts a file to `bytes` bytes.
fn cut(pool: &Path, file: &str, bytes: u64) {
    let file = FileOptions::new().write(true).open(pool.join(file)).expect("it is there");
    file.set_len(bytes).expect("it is this user's");
}

fn cut_node(pool: &Pool, bytes: u64) {
    cut(pool.path(), &format!("node-{}", GONE.0), bytes);
}

/// The result of a chain: `None` if its node does not answer.
type Access = fn(&ShmFabric, NodeId) -> Option<()>;

const WRITE: Store<'_> = Store { at: AT, head: &[7], tail: &[] };
/// A CAS that succeeds on zeros.
const SWAP: Swap = Swap { at: AT, expect: 0, new: 7 };

const ACCESSES: [Access; 9] = [
    |fabric, node| fabric.load::<8>(node, AT).map(drop),
    |fabric, node| fabric.fetch(node, AT, 8).map(drop),
    |fabric, node| fabric.write_cas_load::<8>(node, WRITE, SWAP, AT).map(drop),
    |fabric, node| fabric.write_cas_cas(node, WRITE, [SWAP; 2]).map(drop),
    |fabric, node| fabric.clear::<8>(node, &[AT]),
    |fabric, node| post(fabric, node, &[Verb::Read { at: AT, words: 8 }]).ok().map(drop),
    |fabric, node| post(fabric, node, &[SWAP.into()]).ok().map(drop),
    |fabric, node| post(fabric, node, &[WRITE.into()]).ok().map(drop),
    |fabric, node| post(fabric, node, &[Verb::Read { at: AT, words: 9000 }]).ok().map(drop),
];

/// Each access is the first to that memory. Zeros mean that a cell was never written or a slot is
/// empty: a client that counted them would have a majority of a lagging node and a lost one.
#[test]
fn what_is_in_the_place_of_a_lost_node_is_no_vote() {
    for bytes in [0, 8192] {
        for access in ACCESSES {
            let (_dir, pool) = pool();
            let (fabric, other) = (pool.fabric(), pool.fabric());
            let apart = Pool::open(pool.path(), OpenOptions::default()).expect("it is whole");
            assert_eq!(access(&fabric, GONE), Some(()), "it is there");
            assert_eq!(pool.lost_nodes(), NodeSet::EMPTY);
            cut_node(&pool, bytes);
            assert_eq!(access(&fabric, GONE), None);
            assert_eq!(access(&fabric, GONE), None, "for good");
            assert_eq!(access(&other, GONE), None, "for all clients of this opening");
            assert_eq!(pool.lost_nodes(), NodeSet::ring(GONE, 1, 3));
            // In the remaining part of it, too.
            let read = Verb::Read { at: Address(512), words: 1 };
            assert_eq!(post(&fabric, GONE, &[read]), Err(NodeDown));
            for node in [NodeId(0), NodeId(2)] {
                assert_eq!(access(&fabric, node), Some(()), "the others go on");
            }
            assert_eq!(apart.lost_nodes(), NodeSet::EMPTY, "it has not come across it");
            assert_eq!(access(&apart.fabric(), GONE), None);
            assert!(matches!(
                Pool::open(pool.path(), OpenOptions::default()),
                Err(Error::Length { .. })
            ));
            let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
            let later = Pool::open(pool.path(), degraded).expect("a majority is there");
            assert_eq!(access(&later.fabric(), GONE), None);
            assert_eq!(access(&later.fabric(), NodeId(0)), Some(()));
        }
    }
}

/// All threads read words that are not zero until their node is cut short.
#[test]
fn no_thread_counts_what_is_in_the_place_of_a_lost_node() {
    const THREADS: u64 = 8;
    const WORDS: usize = 8;
    for round in 0..10 {
        let (_dir, pool) = pool();
        let ones = [u64::MAX; WORDS];
        // Each thread has pages of its own: each is missing for one of them.
        let at = |thread: u64| AT.plus((thread * 2048) as usize);
        for thread in 0..THREADS {
            let write = Verb::Write { at: at(thread), head: &ones, tail: &[] };
            post(&pool.fabric(), GONE, &[write]).expect("it is there");
        }
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let fabric = pool.fabric();
                scope.spawn(move || {
                    let swap = Swap { at: at(thread), expect: 0, new: 1 };
                    let store = Store { at: at(thread).plus(WORDS), head: &[1], tail: &[] };
                    loop {
                        let Some(words) = fabric.load::<WORDS>(GONE, at(thread)) else { return };
                        assert_eq!(words, ones, "round {round}");
                        let Some(words) = fabric.fetch(GONE, at(thread), WORDS) else { return };
                        assert_eq!(words[..], ones, "round {round}");
                        let Ok(words) = post(&fabric, GONE, &[swap.into()]) else { return };
                        assert_eq!(words, [u64::MAX], "round {round}");
                        let done = fabric.write_cas_load(GONE, store, swap, at(thread));
                        let Some((found, words)) = done else { return };
                        assert_eq!((found, words), (u64::MAX, ones), "round {round}");
                        let done = fabric.write_cas_cas(GONE, store, [swap; 2]);
                        let Some(found) = done else { return };
                        assert_eq!(found, u64::MAX, "round {round}");
                    }
                });
            }
            // Some threads are in the middle of an access.
            thread::yield_now();
            cut_node(&pool, 0);
        });
        assert_eq!(pool.lost_nodes(), NodeSet::ring(GONE, 1, 3));
    }
}

/// Mappings come and go beside lost ones, and entries of the list are reused.
#[test]
fn what_others_have_mapped_is_left_alone() {
    let (_dir, whole) = pool();
    let write = Verb::Write { at: AT, head: &[7], tail: &[] };
    for node in [0, 1, 2] {
        post(&whole.fabric(), NodeId(node), &[write]).expect("it is there");
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let pool = Pool::open(whole.path(), OpenOptions::default()).expect("whole");
                    for node in [0, 1, 2] {
                        let read =
                            post(&pool.fabric(), NodeId(node), &[Verb::Read { at: AT, words: 1 }]);
                        assert_eq!(read, Ok(vec![7]));
                    }
                    assert_eq!(pool.lost_nodes(), NodeSet::EMPTY);
                }
            });
        }
        let lost = || {
            let (_dir, other) = pool();
            cut_node(&other, 0);
            other.fabric().load::<1>(GONE, AT).is_none()
        };
        let are_lost = (0..20).all(|_| lost());
        is_over.store(true, Ordering::Relaxed);
        assert!(are_lost);
    });
    assert_eq!(whole.lost_nodes(), NodeSet::EMPTY);
}

/// Zeros would give out the same incarnations again, and show no client as pinned.
#[test]
fn a_control_file_that_is_cut_short_is_reported() {
    let length = |pool: &Pool| fs::metadata(pool.path().join("control")).expect("a file").len();
    for half in [false, true] {
        let (_dir, pool) = pool();
        let (client, other) = (pool.attach().expect("a slot"), pool.attach().expect("a slot"));
        let (domain, others) = (client.domain(), other.domain());
        assert!(domain.incarnation().is_some());
        let epoch = domain.try_advance();
        assert_eq!(others.pin(), epoch);
        let generation = domain.generation();
        cut(pool.path(), "control", if half { length(&pool) / 2 } else { 0 });
        assert!(matches!(pool.attach(), Err(Error::Length { .. })));
        if half {
            // What is left of it shows nothing; the last remote-free queue is gone.
            domain.send_remote_free(7, RemoteFree::decode([1, 2]));
        }
        others.unpin();
        assert_eq!(domain.incarnation(), None);
        // What was retired in an epoch is not reused.
        for _ in 0..4 {
            assert!(domain.try_advance() < epoch + 1, "of {epoch}");
        }
        assert_ne!(
            domain.generation(),
            generation,
            "a client that begins something asks what is lost"
        );
        assert_eq!(domain.lost(), Some(Lost::CutShort));
        assert!(matches!(pool.attach(), Err(Error::Length { .. })));
        for node in [0, 1, 2] {
            assert!(pool.fabric().load::<1>(NodeId(node), AT).is_some(), "the nodes are whole");
        }
    }
}

/// As a working client does twice a second, whatever it accesses.
#[test]
fn a_client_that_looks_for_the_control_file_sees_that_it_is_short() {
    let (_dir, pool) = pool();
    let client = pool.attach().expect("a slot");
    let bytes = fs::metadata(pool.path().join("control")).expect("a file").len();
    cut(pool.path(), "control", bytes - 4096);
    assert_eq!(client.domain().lost(), Some(Lost::CutShort));
}

/// A forked child has copies of the mappings, and of their marks.
#[test]
fn a_child_loses_its_own_copy() {
    let (_dir, pool) = pool();
    let (fabric, read) = (pool.fabric(), |fabric: &ShmFabric| fabric.load::<1>(GONE, AT));
    assert!(read(&fabric).is_some());
    cut_node(&pool, 0);
    // SAFETY: the child does no more than is written here, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_so = read(&fabric).is_none() && pool.lost_nodes().contains(GONE);
        // SAFETY: ends the child, without touching this process's state.
        unsafe { libc::_exit(i32::from(!is_so)) };
    }
    let mut status = 0;
    // SAFETY: it is this test's child, and the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(pool.lost_nodes(), NodeSet::EMPTY, "the parent has not come across it");
    assert_eq!(read(&fabric), None);
}

/// Runs the children of the tests below, by their role.
pub(crate) fn act(role: &str, pool: &Path) {
    let options = OpenOptions { leave_sigbus: role == "unhandled", ..OpenOptions::default() };
    match role {
        "siginfo" => handle(with_siginfo as *const () as usize, libc::SA_SIGINFO),
        "plain" => handle(outcome as *const () as usize, 0),
        "ignored" => handle(libc::SIG_IGN, 0),
        "sent" => handle(libc::SIG_DFL, 0),
        _ => {}
    }
    let pool = Pool::open(pool, options).expect("the parent's pool");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(4096).expect("its length");
    let own = memmap2::MmapOptions::new().len(4096).map_raw(&file).expect("mapped");
    report("ready");
    wait_for_parent();
    // The pool's memory is read before its own: by then the handler has run once.
    let read = || pool.fabric().load::<1>(GONE, AT);
    if role == "sent" || role == "ignored" {
        // SAFETY: it ends this process, or is ignored.
        unsafe { libc::raise(libc::SIGBUS) };
        report("alive");
        wait_for_parent();
    }
    assert_eq!(read(), None);
    report("down");
    wait_for_parent();
    file.set_len(0).expect("its length");
    // SAFETY: the page is mapped; that it is gone is what this is about.
    let word = unsafe { ptr::read_volatile(own.as_ptr()) };
    report(format!("went on with {word}"));
}

fn handle(handler: usize, flags: i32) {
    // SAFETY: all zeros is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the handlers only end the process.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) }, 0);
}

extern "C" fn outcome(signal: i32) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(signal + 10) };
}

extern "C" fn with_siginfo(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes it; ends the process.
    unsafe { libc::_exit(if (*info).si_addr().is_null() { 1 } else { signal + 20 }) };
}

/// Starts a child in this role, whose node is cut short while it has the pool open. It takes one
/// step for each nudge.
fn under_way(role: &str) -> (tempfile::TempDir, Running) {
    let (dir, pool) = pool();
    let mut child = Running::start(&format!("lost {role}"), pool.path());
    assert_eq!(child.receive(), "ready");
    cut_node(&pool, 0);
    nudge(&mut child);
    (dir, child)
}

fn end(mut child: Running) -> ExitStatus {
    child.process.wait().expect("its end")
}

/// The previous handler gets all signals that do not concern pools, as if there were no other.
#[test]
fn other_faults_go_where_they_went() {
    type Ends = fn(ExitStatus) -> bool;
    let ends: [(&str, Ends); 3] = [
        ("default", |status| status.signal() == Some(libc::SIGBUS)),
        ("plain", |status| status.code() == Some(libc::SIGBUS + 10)),
        ("siginfo", |status| status.code() == Some(libc::SIGBUS + 20)),
    ];
    for (role, is_right) in ends {
        let (_dir, mut child) = under_way(role);
        assert_eq!(child.receive(), "down", "{role}: the pool's is handled");
        nudge(&mut child);
        let status = end(child);
        assert!(is_right(status), "{role}: {status}");
    }
}

#[test]
fn a_signal_that_is_sent_is_no_fault() {
    let (_dir, child) = under_way("sent");
    assert_eq!(end(child).signal(), Some(libc::SIGBUS));
    let (_dir, mut child) = under_way("ignored");
    assert_eq!(child.receive(), "alive");
    nudge(&mut child);
    assert_eq!(child.receive(), "down");
    nudge(&mut child);
    assert_eq!(end(child).signal(), Some(libc::SIGBUS), "a fault is not ignored");
}

#[test]
fn a_program_may_have_sigbus_to_itself() {
    let (_dir, child) = under_way("unhandled");
    assert_eq!(end(child).signal(), Some(libc::SIGBUS));
}

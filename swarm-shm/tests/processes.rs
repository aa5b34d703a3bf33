//! What holds between processes: slots, words and time.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;
mod lost;

use std::fs;
use std::io::{Read, Write, stdin};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Running, child_command, not_permitted, pool, post, report, role};
use rustix::process::{Pid, Signal, kill_process};
use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, LaggardState, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_shm::{
    ClientState, Error, EvictStopped, HaltWatch, OpenOptions, Pool, StoppedClient, SwitchState,
    WhyLeftAlone,
};

const COUNTER: Address = Address(1024);
const INCREMENTS: u64 = 50_000;

/// Not a test itself: what the children of the tests below do.
#[test]
fn child() {
    let Some((role, pool)) = role() else { return };
    if let Some(role) = role.strip_prefix("lost ") {
        return lost::act(role, &pool);
    }
    let pool = Pool::open(&pool, OpenOptions::default()).expect("the parent's pool");
    match role.as_str() {
        "hold" => {
            let client = pool.attach().expect("a free slot");
            report(client.session().client);
            wait_for_parent();
        }
        "operate" => {
            let client = pool.attach().expect("a free slot");
            report(client.domain().pin());
            wait_for_parent();
            client.domain().unpin();
            report("left");
            wait_for_parent();
        }
        "operate beside a thread" => {
            thread::spawn(|| {
                loop {
                    thread::sleep(Duration::from_secs(1));
                }
            });
            let client = pool.attach().expect("a free slot");
            report(client.domain().pin());
            wait_for_parent();
        }
        "look" => {
            wait_for_parent();
            let left = pool.clients_left_alone(u64::MAX);
            report(format_args!(
                "{:?}",
                left.iter().map(|it| (it.slot, &it.why)).collect::<Vec<_>>()
            ));
        }
        "evict" => {
            let slot = wait_for_parent();
            report(
                pool.evict(slot.into())
                    .map_or_else(|error| error.to_string(), |ids| format!("{ids:?}")),
            );
        }
        "increment" => {
            report("ready");
            wait_for_parent();
            increment(&pool);
            report("done");
        }
        "clock" => {
            let clock = pool.clock();
            report("ready");
            for _ in 0..20 {
                wait_for_parent();
                report(clock.now());
            }
        }
        other => panic!("no such role: {other}"),
    }
}

/// Waits for a byte from the parent; if the parent is gone, the child ends.
fn wait_for_parent() -> u8 {
    let mut byte = [0];
    if !matches!(stdin().read(&mut byte), Ok(1)) {
        std::process::exit(1);
    }
    byte[0]
}

fn nudge(child: &mut Running) {
    let input = child.process.stdin.as_mut().expect("the child's input");
    input.write_all(b".").expect("the child listens");
}

/// Adds one to a word, many times, in a race with other processes.
fn increment(pool: &Pool) {
    let fabric = pool.fabric();
    let mut seen = 0;
    for _ in 0..INCREMENTS {
        loop {
            let chain = [
                Verb::Cas { at: COUNTER, expect: seen, new: seen + 1 },
                Verb::Read { at: COUNTER, words: 1 },
            ];
            let reply = post(&fabric, NodeId(0), &chain).expect("the node is up");
            let won = reply[0] == seen;
            assert!(reply[1] > reply[0] || (!won && reply[1] == reply[0]), "READ behind a CAS");
            seen = reply[1];
            if won {
                break;
            }
        }
    }
}

#[test]
fn processes_racing_for_a_word_lose_no_increment() {
    let (_dir, pool) = pool();
    let mut children: Vec<_> = (0..2).map(|_| Running::start("increment", pool.path())).collect();
    for child in &mut children {
        assert_eq!(child.receive(), "ready");
    }
    for child in &mut children {
        nudge(child);
    }
    increment(&pool);
    for mut child in children {
        assert_eq!(child.receive(), "done");
        assert!(child.process.wait().expect("the child").success());
    }
    let total = post(&pool.fabric(), NodeId(0), &[Verb::Read { at: COUNTER, words: 1 }]);
    assert_eq!(total, Ok(vec![3 * INCREMENTS]));
}

#[test]
fn a_killed_holders_slot_is_free_at_once() {
    let (_dir, pool) = pool();
    let first = pool.attach().expect("a free slot");
    assert_eq!(first.session().client, 0);
    let mut child = Running::start("hold", pool.path());
    assert_eq!(child.receive(), "1");
    assert_eq!(pool.live_clients(), [0, 1]);
    assert_eq!(pool.client_process(1), Some(child.process.id()));
    assert_eq!(pool.attach().expect("a free slot").session().client, 2, "slot 1 is held");

    child.process.kill().expect("SIGKILL");
    child.process.wait().expect("the child");
    // A child that another test starts shares the lock of slot 2 until it calls `exec`.
    until(|| pool.live_clients() == [0]);
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 1);
    assert!(next.session().incarnation > first.session().incarnation);
}

#[test]
fn slots_exclude_each_other_within_a_process_too() {
    let (_dir, pool) = pool();
    let mut held: Vec<_> = (0..8).map(|_| pool.attach().expect("a free slot")).collect();
    let slots: Vec<_> = held.iter().map(|client| client.session().client).collect();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
    let error = pool.attach().expect_err("all slots are held");
    assert!(matches!(error, Error::Slots { limit: 8, .. }), "{error}");
    assert!(error.to_string().contains("every client slot of 8"), "{error}");
    let mut incarnations: Vec<_> = held.iter().map(|c| c.session().incarnation).collect();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 8);
    assert!(incarnations.is_sorted());

    drop(held.remove(3));
    assert_eq!(pool.live_clients(), [0, 1, 2, 4, 5, 6, 7]);
    let again = pool.attach().expect("a free slot");
    assert_eq!(again.session().client, 3);
    assert!(again.session().incarnation > incarnations[7]);
}

#[test]
fn the_clock_is_the_same_in_all_processes() {
    let (_dir, pool) = pool();
    let clock = pool.clock();
    let mut child = Running::start("clock", pool.path());
    assert_eq!(child.receive(), "ready");
    for _ in 0..20 {
        let before = clock.now();
        nudge(&mut child);
        let there: u64 = child.receive().parse().expect("a time");
        let after = clock.now();
        assert!((before..=after).contains(&there), "{before} {there} {after}");
    }
    assert!(child.process.wait().expect("the child").success());
}

#[test]
fn a_switch_is_seen_by_other_openings() {
    let (_dir, pool) = pool();
    let other = Pool::open(pool.path(), OpenOptions::default()).expect("the pool is there");
    let (here, there) = (pool.switch(NodeId(1)), other.switch(NodeId(1)));
    assert_eq!(there.get(), SwitchState::Up);
    for state in [SwitchState::Frozen, SwitchState::Down, SwitchState::Up] {
        here.set(state);
        assert_eq!(there.get(), state);
        assert_eq!(other.switch(NodeId(0)).get(), SwitchState::Up);
    }
}

#[test]
fn handles_go_where_they_are_needed() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn moved<T: Send + 'static>(_: &T) {}
    let (_dir, pool) = pool();
    shared(&pool);
    shared(&pool.switch(NodeId(0)));
    moved(&pool.fabric());
    moved(&pool.clock());
    moved(&pool.attach().expect("a free slot"));
}

/// An operation in progress holds up the epoch after the next one, for as long as its process lives
/// and does not end it: stopped is not dead.
#[test]
fn the_epoch_waits_for_operations_of_the_living() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let domain = mine.domain();
    assert_eq!((domain.try_advance(), domain.try_advance()), (2, 3), "nobody does anything");
    let mut child = Running::start("operate", pool.path());
    assert_eq!(child.receive(), "3");
    for _ in 0..10 {
        assert_eq!(domain.try_advance(), 4);
    }
    nudge(&mut child);
    assert_eq!(child.receive(), "left");
    assert_eq!((domain.try_advance(), domain.try_advance()), (5, 6));

    let mut other = Running::start("operate", pool.path());
    assert_eq!(other.receive(), "6");
    assert_eq!((domain.try_advance(), domain.try_advance()), (7, 7));
    other.process.kill().expect("SIGKILL");
    other.process.wait().expect("the child");
    assert_eq!((domain.try_advance(), domain.try_advance()), (8, 9), "the dead do nothing");
    // The next client in a dead owner's slot is not pinned yet.
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 2, "slot 1 is still held");
    assert_eq!(next.domain().epoch(), 9);
    assert_eq!((domain.try_advance(), domain.try_advance()), (10, 11));
}

fn stop(child: &Running) {
    kill_process(Pid::from_child(&child.process), Signal::STOP).expect("it is this test's child");
    let stat = format!("/proc/{}/stat", child.process.id());
    while !std::fs::read_to_string(&stat).expect("it lives").contains(") T ") {
        std::thread::yield_now();
    }
}

/// A stopped process pins memory for as long as it lives, which may be for ever: no command showed
/// which one, or could end it.
#[test]
fn a_stopped_client_is_shown_and_can_be_ended() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let domain = mine.domain();
    let mut child = Running::start("operate", pool.path());
    assert_eq!(child.receive(), "1");
    stop(&child);
    assert_eq!(
        (domain.try_advance(), domain.try_advance(), domain.try_advance()),
        (2, 2, 2),
        "it is pinned"
    );
    let tenants = pool.clients();
    assert_eq!(tenants.len(), 2, "{tenants:?}");
    let (me, it) = (tenants[0], tenants[1]);
    assert_eq!(
        (me.process, me.condition, me.since),
        (std::process::id(), ClientState::Alive, None)
    );
    assert_eq!((it.slot, it.process, it.elsewhere), (1, child.process.id(), false));
    assert_eq!((it.condition, it.since, pool.epoch()), (ClientState::Stopped, Some(1), 2));
    let laggard = domain.laggard(0).expect("it holds the epoch up");
    assert_eq!((laggard.slot, laggard.process), (1, Some(child.process.id())));
    assert_eq!((laggard.state, laggard.is_own, laggard.since), (LaggardState::Stopped, false, 1));
    assert!(laggard.nanoseconds.is_some() && laggard.nanoseconds <= pool.epoch_age());

    assert_eq!(pool.evict(1).expect("it is this user's"), [child.process.id()]);
    assert_eq!(pool.live_clients(), [0]);
    let it = pool.clients()[1];
    assert_eq!((it.slot, it.condition, it.since), (1, ClientState::Dead, None));
    assert_eq!((domain.try_advance(), domain.try_advance()), (3, 4), "nothing is pinned any more");
    assert_eq!(domain.laggard(0), None);
    domain.pin();
    domain.try_advance();
    let laggard = domain.laggard(0).expect("it holds the epoch up itself");
    assert!(laggard.is_own && laggard.since == 4, "{laggard:?}");
    assert_eq!(laggard.state, LaggardState::Running);
    assert_eq!(domain.laggard(u64::MAX), None, "not for so long");
    domain.unpin();
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 1);
    child.process.wait().expect("the child");
}

/// A control group of this test, which freezes its processes. Dropping it ends the group and its
/// processes.
struct Group {
    directory: PathBuf,
    /// The file that freezes, what to write to it, and what thaws.
    file: PathBuf,
    freezes: &'static str,
    thaws: &'static str,
}

impl Group {
    /// Creates one below `mount`, if this process may, that freezes by `file`.
    fn new(mount: &str, file: &str, freezes: &'static str, thaws: &'static str) -> Option<Self> {
        let directory = Path::new(mount).join(format!("swarm-test-{}", std::process::id()));
        fs::create_dir(&directory).ok()?;
        let file = directory.join(file);
        if !file.exists() {
            // Not the kernel's: what is written to it would stay.
            drop(fs::remove_dir(&directory));
            return None;
        }
        Some(Self { directory, file, freezes, thaws })
    }

    fn freeze(&self, process: u32) -> std::io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), process.to_string())?;
        fs::write(&self.file, self.freezes)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, self.thaws);
        // It is empty once the kernel has removed its processes.
        for _ in 0..1000 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A paused container used to appear at work.
#[test]
fn a_frozen_client_is_shown_with_what_thaws_it() {
    let groups = [
        ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
    ];
    let mut tried = 0;
    for (mount, file, freezes, thaws) in groups {
        let Some(group) = Group::new(mount, file, freezes, thaws) else { continue };
        let (_dir, pool) = pool();
        let mine = pool.attach().expect("a free slot");
        let domain = mine.domain();
        let mut child = Running::start("operate", pool.path());
        child.receive();
        let process = child.process.id();
        if group.freeze(process).is_ok() {
            tried += 1;
            let of = || {
                pool.clients().into_iter().find(|it| it.process == process).expect("it is there")
            };
            until(|| of().condition == ClientState::Frozen);
            assert_eq!((of().slot, of().since.is_some()), (1, true));
            let frozen = swarm_shm::frozen(process).expect("it is");
            assert_eq!(frozen.thaw, [(group.file.clone(), thaws)]);
            assert_eq!((domain.try_advance(), domain.try_advance()), (2, 2), "it is pinned");
            let laggard = domain.laggard(0).expect("it holds the epoch up");
            assert_eq!((laggard.slot, laggard.process), (1, Some(process)));
            assert_eq!(laggard.state, LaggardState::Frozen);
            let mut watch = HaltWatch::default();
            let halted = halted_for(&mut watch, &pool, Duration::from_millis(20));
            assert_eq!((halted.slot, halted.condition), (1, ClientState::Frozen));
            assert_eq!(pool.halted_clients(&mut watch, u64::MAX).len(), 1, "it still is");
            let (file, thaw) = &frozen.thaw[0];
            fs::write(file, thaw).expect("it thaws");
            until(|| of().condition == ClientState::Alive);
            assert_eq!(swarm_shm::frozen(process), None);
            assert_eq!(pool.halted_clients(&mut watch, u64::MAX), [], "it goes on");
            // With version 1 it ends only once it is thawed.
            if thaws == "0" {
                group.freeze(process).expect("as before");
                halted_for(&mut watch, &pool, Duration::ZERO);
                let reaped = thread::spawn(move || child.process.wait().expect("it ends"));
                let ended = pool.evict_halted(&mut watch, Duration::ZERO);
                let [(it, Ok(()))] = &ended[..] else { panic!("{ended:?}") };
                assert_eq!(it.condition, ClientState::Frozen, "as it was before it ended");
                assert_eq!(reaped.join().expect("it does not panic").signal(), Some(9));
                continue;
            }
        }
        child.process.kill().expect("it is this test's");
        child.process.wait().expect("it ends");
    }
    if tried == 0 {
        not_permitted(
            "a_frozen_client_is_shown_with_what_thaws_it",
            "no control group that freezes can be made here, which takes root's rights and a mounted hierarchy",
        );
    }
}

/// Waits for an event that is expected soon. What has not happened after two minutes never will,
/// however busy the machine is.
fn until(is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 120, "it does not come");
        std::thread::yield_now();
    }
}

fn signal(process: u32, signal: Signal) {
    let id = Pid::from_raw(process.cast_signed()).expect("it is not 0");
    kill_process(id, signal).expect("it is this test's");
}

/// Waits until the watch has seen the only client that is halted for that long, and returns it.
fn halted_for(watch: &mut HaltWatch, pool: &Pool, least: Duration) -> StoppedClient {
    loop {
        let seen = pool.halted_clients(watch, u64::MAX);
        match &seen[..] {
            [it] if it.halted >= least => return it.clone(),
            [] | [_] => thread::sleep(Duration::from_millis(1)),
            more => panic!("{more:?}"),
        }
    }
}

/// What tells a stopped client from a slow one is that the kernel let it execute nothing.
#[test]
fn a_client_that_is_stopped_for_long_enough_in_an_operation_is_ended_and_no_other() {
    const LONG: Duration = Duration::from_millis(300);
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let domain = mine.domain();
    let [mut operates, mut holds] =
        ["operate", "hold"].map(|role| Running::start(role, pool.path()));
    operates.receive();
    holds.receive();
    let (process, idle) = (operates.process.id(), holds.process.id());
    let mut watch = HaltWatch::default();
    // It waits for its input in the middle of an operation.
    for _ in 0..3 {
        assert_eq!(pool.halted_clients(&mut watch, u64::MAX), [], "it is slow");
        assert!(pool.evict_halted(&mut watch, Duration::ZERO).is_empty());
        thread::sleep(LONG / 10);
    }
    // One that is stopped between operations pins nothing.
    signal(idle, Signal::STOP);
    signal(process, Signal::STOP);
    let seen = halted_for(&mut watch, &pool, LONG);
    assert_eq!(seen.processes, [process]);
    assert_eq!((seen.condition, seen.since), (ClientState::Stopped, 1));
    assert!(pool.evict_halted(&mut watch, Duration::from_secs(3600)).is_empty(), "not for so long");
    let since = seen.since;
    assert_eq!(pool.halted_clients(&mut watch, since), [], "it does not hold up its own epoch");
    assert_eq!(halted_for(&mut watch, &pool, Duration::ZERO).processes, [process]);
    // It goes on for a moment, in the same operation.
    halted_for(&mut watch, &pool, LONG);
    signal(process, Signal::CONT);
    until(|| {
        pool.clients().iter().any(|it| it.process == process && it.condition == ClientState::Alive)
    });
    signal(process, Signal::STOP);
    // A look before that would begin to watch it anew, whatever it had done.
    until(|| {
        let clients = pool.clients();
        clients.iter().any(|it| it.process == process && it.condition == ClientState::Stopped)
    });
    let again = halted_for(&mut watch, &pool, Duration::ZERO);
    assert!(again.halted < LONG, "it is watched from the beginning: {again:?}");
    // Whatever it does next is in its way.
    nudge(&mut operates);
    halted_for(&mut watch, &pool, LONG);
    let ended = pool.evict_halted(&mut watch, LONG);
    let [(it, Ok(()))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((it.processes[0], it.halted >= LONG), (process, true));
    assert!(!pool.live_clients().contains(&it.slot), "its slot is free");
    // It is there until it is waited for, and does not go on.
    signal(process, Signal::CONT);
    assert_eq!(operates.process.wait().expect("it has ended").signal(), Some(9));
    let mut rest = String::new();
    operates.lines.read_to_string(&mut rest).expect("it is text");
    assert_eq!(rest, "", "it did not come to leave");
    assert_eq!((domain.try_advance(), domain.try_advance()), (2, 3), "it pins nothing any more");
    assert_eq!(pool.halted_clients(&mut watch, u64::MAX), []);
    assert!(holds.process.try_wait().expect("a child").is_none(), "it lives");
    signal(idle, Signal::KILL);
    holds.process.wait().expect("it ends");
}

/// A debugger that holds one thread of a process lets its client's go on, or may.
#[test]
fn a_client_that_is_stopped_in_part_is_named_and_left_alone() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let domain = mine.domain();
    let mut child = Running::start("operate beside a thread", pool.path());
    child.receive();
    let process = child.process.id();
    assert_eq!(pool.clients_left_alone(u64::MAX), [], "it goes on");
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let id = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("a thread").file_name().to_string_lossy().parse::<i32>().expect("its number")
    };
    let other = threads.map(id).find(|&id| id.cast_unsigned() != process).expect("another thread");
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: it is a thread of this test's child, and both addresses go unused.
    if unsafe { libc::ptrace(libc::PTRACE_ATTACH, other, none, none) } != 0 {
        not_permitted("who_is_stopped_in_part", "a child may not be traced here");
        return child.process.kill().expect("it is this test's");
    }
    let left = || pool.clients_left_alone(u64::MAX);
    until(|| !left().is_empty());
    let [it] = &left()[..] else { panic!("{:?}", left()) };
    assert_eq!((it.slot, it.process, it.since), (1, process, 1));
    assert_eq!(it.why, WhyLeftAlone::InPart(vec![other.cast_unsigned()]));
    assert_eq!(pool.clients_left_alone(it.since), [], "it does not hold up its own epoch");
    assert_eq!(pool.halted_clients(&mut HaltWatch::default(), u64::MAX), []);
    assert_eq!((domain.try_advance(), domain.try_advance()), (2, 2), "it is pinned");
    let laggard = domain.laggard(0).expect("it holds the epoch up");
    assert_eq!((laggard.slot, laggard.state), (1, LaggardState::StoppedInPart));
    assert_eq!(pool.evict(1).expect("its slot names it"), [process]);
    // Its process is waited for once its tracer has learned that the thread ended.
    let mut status = 0;
    // SAFETY: the status can be written.
    while unsafe { libc::waitpid(other, &mut status, libc::__WALL) } == other
        && libc::WIFSTOPPED(status)
    {}
    assert_eq!(child.process.wait().expect("it has ended").signal(), Some(9));
}

/// How many clients were ended in the test below.
static ENDED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn clients_that_may_end_one_that_is_stopped_and_holds_the_epoch_up() {
    let (_dir, pool) = pool();
    let count = |_: &StoppedClient| _ = ENDED.fetch_add(1, Ordering::Relaxed);
    let may = EvictStopped::after(Duration::from_millis(200)).reporting(count);
    let may = OpenOptions { evict_stopped: Some(may), ..OpenOptions::default() };
    let may = Pool::open(pool.path(), may).expect("it is there");
    let [mine, other] = [&may, &pool].map(|pool| pool.attach().expect("a free slot"));
    let (domain, other) = (mine.domain(), other.domain());
    let mut child = Running::start("operate", pool.path());
    child.receive();
    let wait = |domain: &swarm_shm::ShmEpochs| {
        for _ in 0..40 {
            assert!(domain.try_advance() <= 2, "it is pinned");
            domain.end_halted();
            thread::sleep(Duration::from_millis(10));
        }
    };
    wait(&domain);
    assert_eq!(ENDED.load(Ordering::Relaxed), 0, "it is slow");
    signal(child.process.id(), Signal::STOP);
    wait(&other);
    assert_eq!(ENDED.load(Ordering::Relaxed), 0, "a client that was not asked to ends nobody");
    until(|| {
        domain.end_halted();
        domain.try_advance() > 2
    });
    assert_eq!(ENDED.load(Ordering::Relaxed), 1);
    assert_eq!(child.process.wait().expect("it has ended").signal(), Some(9));
}

#[test]
fn a_client_that_is_not_there_or_is_oneself_is_not_ended() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    assert!(matches!(pool.evict(0), Err(Error::OwnClient { slot: 0, .. })));
    for slot in [1, 7, 8, usize::MAX] {
        let error = pool.evict(slot).expect_err("nobody is there");
        assert!(matches!(error, Error::NoClient { limit: 8, .. }), "{error}");
    }
    drop(mine);
    // A child that another test starts shares the lock until it calls `exec`.
    until(|| pool.live_clients().is_empty());
    assert!(matches!(pool.evict(0), Err(Error::NoClient { .. })));
    assert_eq!(pool.clients(), [], "a client that left is not there");
    // A dead owner's process id may be another process's by now, such as this one's.
    let mut child = Running::start("hold", pool.path());
    assert_eq!(child.receive(), "0");
    child.process.kill().expect("SIGKILL");
    child.process.wait().expect("the child");
    assert!(matches!(pool.evict(0), Err(Error::NoClient { .. })));
}

/// Starts a child in a pid namespace of its own; `None` if that is not permitted.
fn start_inside(role: &str, pool: &Pool, flags: &[&str]) -> Option<Running> {
    let allowed = std::process::Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        let why = "cannot make a pid namespace here, which takes root's rights and util-linux";
        not_permitted("containers", why);
        return None;
    }
    let child = child_command(role, pool.path());
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).args(flags).arg(child.get_program());
    command.args(child.get_args());
    let variables = child.get_envs().filter_map(|(name, value)| Some((name, value?)));
    Some(Running::of(command.envs(variables)))
}

/// Containers have process ids of their own: the number in the slot's word means another process
/// outside, or none.
#[test]
fn a_client_in_a_container_is_found_from_outside() {
    let (_dir, pool) = pool();
    let Some(mut inside) = start_inside("operate", &pool, &["--mount-proc"]) else { return };
    assert_eq!(inside.receive(), "1");
    assert_eq!(pool.client_process(0), Some(1), "so it calls itself");
    let it = pool.clients()[0];
    assert!((!it.elsewhere && it.process > 1) && it.condition == ClientState::Alive, "{it:?}");
    // A client that watches ends no client in there: that takes a word from somebody.
    signal(it.process, Signal::STOP);
    until(|| pool.clients()[0].condition == ClientState::Stopped);
    let mut watch = HaltWatch::default();
    for _ in 0..20 {
        assert_eq!(pool.halted_clients(&mut watch, u64::MAX), []);
        thread::sleep(Duration::from_millis(1));
    }
    let left = pool.clients_left_alone(u64::MAX);
    assert_eq!((left[0].process, &left[0].why), (it.process, &WhyLeftAlone::OtherNamespace));
    assert_eq!(pool.evict(0).expect("it is seen from here"), [it.process]);
    assert_eq!(pool.live_clients(), [] as [usize; 0]);
    inside.process.wait().expect("the child");
}

/// Not even if a process inside has the owner's id, or the host's `/proc` is visible inside.
#[test]
fn a_client_outside_of_a_container_is_not_ended_from_within() {
    let (_dir, pool) = pool();
    let _mine = pool.attach().expect("a free slot");
    for flags in [&["--mount-proc"][..], &[]] {
        let Some(mut inside) = start_inside("evict", &pool, flags) else { return };
        inside.process.stdin.as_mut().expect("its input").write_all(&[0]).expect("it listens");
        let report = inside.receive();
        assert!(report.contains("of pid namespace") && report.contains("on the host"), "{report}");
        inside.process.wait().expect("the child");
    }
    assert_eq!(pool.live_clients(), [0]);
}

/// From within, one that is stopped and one that goes on look alike, unless the host's `/proc` is
/// visible there. Nothing else is reported of them.
#[test]
fn a_stopped_client_outside_of_a_container_is_named_within_as_far_as_it_is_seen() {
    let (_dir, pool) = pool();
    let mut child = Running::start("operate", pool.path());
    child.receive();
    let look = |flags: &[&str]| {
        let mut inside = start_inside("look", &pool, flags)?;
        nudge(&mut inside);
        let report = inside.receive();
        inside.process.wait().expect("the child");
        Some(report)
    };
    for (is_stopped, seen) in [(false, "[]"), (true, "[(0, OtherNamespace)]")] {
        if is_stopped {
            stop(&child);
        }
        let Some(report) = look(&["--mount-proc"]) else { break };
        assert_eq!(report, "[(0, Unseen)]");
        assert_eq!(look(&[]).expect("as before"), seen);
    }
    assert_eq!(pool.clients_left_alone(u64::MAX), [], "it goes on, or may be ended from here");
    child.process.kill().expect("it is this test's");
    child.process.wait().expect("it ends");
}

//! A child owns none of the client slots of the process that forked it.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::io::{Read, Write, pipe, stdin};
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::ptr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Running, pool, report, role};
use swarm_core::fabric::EpochDomain;
use swarm_core::node::NodeId;
use swarm_shm::{OpenOptions, Pool, ReplaceOptions};

/// Nothing that ends takes longer than this.
const HANGS: Duration = Duration::from_secs(60);

/// Not a test itself: what the children of the tests below do.
#[test]
fn child() {
    let Some((role, pool)) = role() else { return };
    assert_eq!(role, "fork");
    let pool = Pool::open(&pool, OpenOptions::default()).expect("the parent's pool");
    let client = pool.attach().expect("a free slot");
    let (mut received, mut outcome) = pipe().expect("a pipe");
    // SAFETY: the child does no more than is written here, and ends by `_exit`.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        let _ = outcome.write_all(&[0]);
        let _ = stdin().read(&mut [0]);
        // SAFETY: ends the child, without touching this process's state.
        unsafe { libc::_exit(0) };
    }
    assert!(forked > 0, "no child");
    received.read_exact(&mut [0]).expect("the child lives");
    // By `posix_spawn`. It ends with its input, as the other does.
    let program = Command::new("cat").stdout(Stdio::null()).spawn().expect("a program");
    report(format!("{} {forked} {}", client.session().client, program.id()));
    let _ = stdin().read(&mut [0]);
    exit(1);
}

#[test]
fn a_parent_that_dies_frees_its_slot_whatever_it_has_forked() {
    let (_dir, pool) = pool();
    let mut parent = Running::start("fork", pool.path());
    let report = parent.receive();
    let ids: Vec<&str> = report.split(' ').collect();
    assert_eq!((ids.len(), ids[0]), (3, "0"), "{report}");
    assert_eq!(pool.live_clients(), [0]);
    // `wait` would close it, and the surviving children end with it.
    let input = parent.process.stdin.take();
    parent.process.kill().expect("SIGKILL");
    parent.process.wait().expect("the parent");
    // The kernel lets `posix_spawn` return before it closes the descriptors that the program must
    // not have.
    let since = Instant::now();
    while !pool.live_clients().is_empty() {
        assert!(since.elapsed() < HANGS, "the slot is held");
        sleep(Duration::from_millis(1));
    }
    for id in &ids[1..] {
        assert!(Path::new("/proc").join(id).exists(), "process {id} was to live on");
    }
    assert_eq!(pool.attach().expect("a free slot").session().client, 0);
    drop(input);
}

/// Runs `act` in a child that `call` makes. Returns whether it returned true.
fn is_so_in_a_child(call: impl FnOnce() -> i32, act: impl FnOnce() -> bool) -> bool {
    let child = call();
    assert!(child >= 0, "no child");
    if child == 0 {
        let is_so = act();
        // SAFETY: ends the child, without touching this process's state.
        unsafe { libc::_exit(i32::from(!is_so)) };
    }
    let mut status = 0;
    // SAFETY: it is this test's child, and the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

fn fork() -> i32 {
    // SAFETY: the child does no more than is written below, and ends by `_exit`.
    unsafe { libc::fork() }
}

/// Makes a child that no fork handler sees.
fn bare_clone() -> i32 {
    let none = ptr::null::<u8>();
    // SAFETY: without flags it is a fork: the child has a copy of this memory and of the stack.
    let child = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), none, none, none, none)
    };
    child as i32
}

/// The slot's word, its lock and its pin in the epoch table are the parent's.
#[test]
fn a_child_that_drops_its_copy_leaves_the_slot_alone() {
    for call in [fork, bare_clone] {
        let (_dir, pool) = pool();
        let client = pool.attach().expect("a free slot");
        let since = client.domain().pin();
        let before = pool.clients();
        let is_so = is_so_in_a_child(call, || {
            // SAFETY: only the child runs this, and it ends without using the value again.
            drop(unsafe { ptr::read(&raw const client) });
            // It may take a slot of its own.
            pool.attach().is_ok_and(|own| own.session().client == 1)
        });
        assert!(is_so);
        assert_eq!(pool.clients(), before);
        assert_eq!((pool.live_clients(), before[0].since), (vec![0], Some(since)));
        drop(client);
        assert_eq!((pool.live_clients(), pool.clients()), (Vec::new(), Vec::new()));
    }
}

/// The new file is its parent's, which fills it.
#[test]
fn a_child_that_drops_a_replacement_leaves_the_new_file() {
    for call in [fork, bare_clone] {
        let (_dir, pool) = pool();
        let replacement = pool.replace(NodeId(1), &ReplaceOptions::default()).expect("begun");
        let new = pool.path().join("node-1.new");
        let is_so = is_so_in_a_child(call, || {
            // SAFETY: only the child runs this, and it ends without using the value again.
            drop(unsafe { ptr::read(&raw const replacement) });
            new.exists()
        });
        assert!(is_so);
        drop(replacement);
        assert!(!new.exists());
    }
}

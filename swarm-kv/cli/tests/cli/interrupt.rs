//! Commands that end before their time, by a signal or since nobody listens any more.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use swarm_core::node::NodeId;
use swarm_kv::shm::{OpenOptions, Pool};
use swarm_shm::SwitchState;

use crate::common::{TestPool, json, swarm, temporary_pools, wait_until};

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("the command line can be run")
}

fn open(pool: &TestPool) -> Pool {
    Pool::open(pool.path(), OpenOptions::default()).expect("it is a pool")
}

/// Whether all memory nodes are taken to be up.
fn all_up(pool: &Pool) -> bool {
    (0..3).all(|node| pool.switch(NodeId(node)).get() == SwitchState::Up)
}

/// `swarm check FILE | head -1` had accepted every history: that nobody read the output was taken
/// for success.
#[test]
fn a_verdict_stands_though_no_client_receives_it() {
    let put = r#"{"client":1,"op":"put","key":"k","value":"a","call_ns":1,"return_ns":2,"outcome":"ok","read":null}"#;
    let get = r#"{"client":1,"op":"get","key":"k","value":null,"call_ns":3,"return_ns":4,"outcome":"absent","read":null}"#;
    for (history, expected) in [(format!("{put}\n{get}\n"), 1), (format!("{get}\n"), 0)] {
        for flags in [&["check", "-"][..], &["check", "-", "--json"]] {
            let mut child = start(flags);
            drop(child.stdout.take());
            let mut input = child.stdin.take().expect("it was asked for");
            input.write_all(history.as_bytes()).expect("it is read");
            drop(input);
            assert_eq!(child.wait().expect("it ends").code(), Some(expected), "{flags:?}");
        }
    }
}

/// ^C had left memory nodes frozen in a pool that is somebody's.
#[test]
fn interrupted_torture_gives_the_nodes_back() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let made = TestPool::create();
        let pool = open(&made);
        let mut child = start(&["torture", made.path(), "--clients", "1", "--freeze-node"]);
        wait_until("a node is frozen", || !all_up(&pool));
        let id = Pid::from_child(&child);
        kill_process(id, signal).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(130));
        assert!(all_up(&pool), "{signal:?}");
        assert!(temporary_pools(child.id()).is_empty(), "{signal:?}");
    }
}

/// A client that torture has stopped goes on, or ends with it: nobody else would find it.
#[test]
fn interrupted_torture_leaves_nobody_stopped() {
    let mut child = start(&["torture", "--clients", "2", "--seconds", "60", "--stop-clients"]);
    let id = child.id();
    let its = format!("/proc/{id}/task/{id}/children");
    let is_stopped = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    let clients = || std::fs::read_to_string(&its).unwrap_or_default();
    wait_until("a client is stopped", || clients().split_whitespace().any(is_stopped));
    let clients = clients();
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(!clients.split_whitespace().any(is_stopped), "{clients}");
    assert!(temporary_pools(id).is_empty());
}

/// ^C had left some hundred keys in a pool that is somebody's, and did not report it.
#[test]
fn an_interrupted_soak_takes_its_keys_with_it() {
    let made = TestPool::create();
    assert_eq!(made.status("put", &["theirs", "stays"]), 0);
    let keys = || json(&["info", made.path(), "--exact", "--json"])["keys"].as_u64();
    let mut child = start(&["soak", made.path(), "--seconds", "60", "--clients", "2"]);
    wait_until("its clients have keys", || keys() > Some(10));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(made.output("export", &[]), b"theirs\tstays\n");
}

/// What SIGKILL leaves is put right by the next one: with two nodes of three away, nothing would go
/// on.
#[test]
fn nodes_that_killed_torture_took_away_come_back() {
    let made = TestPool::create();
    let pool = open(&made);
    pool.switch(NodeId(0)).set(SwitchState::Frozen);
    pool.switch(NodeId(2)).set(SwitchState::Down);
    let printout = json(&["torture", made.path(), "--seconds", "1", "--clients", "1", "--json"]);
    assert_eq!(printout["linearizable"], true);
    assert!(all_up(&pool));
}

/// Two that take nodes of one pool away could leave it without a majority.
#[test]
fn only_one_at_a_time_takes_nodes_away() {
    let made = TestPool::create();
    let pool = open(&made);
    let directory = File::open(made.path()).expect("it is there");
    flock(&directory, FlockOperation::NonBlockingLockExclusive).expect("nobody else knows it");
    pool.switch(NodeId(1)).set(SwitchState::Down);
    let short = ["--seconds", "1", "--clients", "1"];
    assert_eq!(made.status("torture", &[&short[..], &["--kill-node"]].concat()), 3);
    assert_eq!(made.status("torture", &short), 0);
    assert_eq!(pool.switch(NodeId(1)).get(), SwitchState::Down, "it is the other's");
}

#[test]
fn a_single_node_is_not_taken_away() {
    let output = swarm(&["torture", "--nodes", "1", "--freeze-node", "--seconds", "1"]).output();
    assert_eq!(output.expect("the command line can be run").status.code(), Some(2));
}

/// Whenever the signal comes, there is a whole pool or nothing: it left files that no command took for a pool.
#[test]
fn an_interrupted_create_leaves_a_pool_or_nothing() {
    for (round, signal) in [Signal::INT, Signal::TERM, Signal::HUP, Signal::INT].iter().enumerate()
    {
        let pool = TestPool::absent();
        let mut child = start(&["create", pool.path(), "--capacity", "64MiB"]);
        if round > 0 {
            wait_until("something is there", || {
                let begun = std::fs::read_dir(pool.path()).map_or(0, Iterator::count);
                begun >= round || has_control(&pool)
            });
        }
        let _ = kill_process(Pid::from_child(&child), *signal);
        let status = child.wait().expect("it ends");
        // One that has not come to handle signals yet is ended by the signal.
        assert!(matches!(status.code(), Some(0 | 130) | None), "{round}: {status}");
        let there = std::fs::exists(pool.path()).expect("its parent is readable");
        assert!(there || status.code() != Some(0));
        assert!(!there || pool.status("info", &[]) == 0, "{round}: {status}");
    }
}

fn has_control(pool: &TestPool) -> bool {
    std::fs::exists(format!("{}/control", pool.path())).expect("it is readable")
}

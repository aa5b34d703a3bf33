//! `replace`: exit statuses, what is printed, and that the pool is whole afterwards.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use swarm_core::node::{NodeId, NodeState};
use swarm_kv::shm::{OpenOptions, Pool, ReplaceOptions};

use crate::common::{TestPool, json, swarm, wait_until};

fn place(pool: &TestPool, node: u8) -> PathBuf {
    Path::new(pool.path()).join(format!("node-{node}"))
}

/// What `replace` prints on standard error, and its exit status.
fn printed(pool: &TestPool, args: &[&str]) -> (i32, String) {
    let output =
        swarm(&[&["replace", pool.path()], args].concat()).output().expect("it can be run");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("it was not killed"), printed)
}

#[test]
fn a_lost_node_is_replaced_and_the_pool_is_whole() {
    let pool = TestPool::create();
    let text: String = (0..300).map(|n| format!("key {n}\t{}\n", "value ".repeat(n % 9))).collect();
    swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
    let mut exported = pool.output("export", &["--degraded"]);
    exported.sort_unstable();
    let former = fs::read(place(&pool, 1)).expect("a file");
    fs::remove_file(place(&pool, 1)).expect("lost");
    assert_eq!(pool.status("get", &["key 1"]), 3);
    let elsewhere = pool.file("elsewhere");
    let elsewhere = elsewhere.to_str().expect("a path");
    let replaced = json(&["replace", pool.path(), "1", elsewhere, "--rate", "100000", "--json"]);
    assert_eq!((&replaced["node"], &replaced["keys"]), (&1.into(), &300.into()));
    assert_eq!(pool.status("info", &["--verify"]), 0);
    let info = json(&["info", pool.path(), "--json"]);
    assert_eq!(info["configuration"], 2);
    assert_eq!(info["memory_nodes"][1]["replaced"], 1);
    assert_eq!(info["memory_nodes"][1]["state"], "votes");
    // Any other may go now.
    for other in [0, 2] {
        let away = pool.file("away");
        fs::rename(place(&pool, other), &away).expect("away");
        let mut found = pool.output("export", &["--degraded"]);
        found.sort_unstable();
        assert!(found == exported, "without node {other}");
        fs::rename(&away, place(&pool, other)).expect("back");
    }
    // The former file comes back.
    fs::write(elsewhere, former).expect("written");
    let output = swarm(&["get", pool.path(), "key 1"]).output().expect("it can be run");
    let printout = String::from_utf8_lossy(&output.stderr);
    assert!(
        printout.contains("is a former file of node 1") && printout.contains("swarm replace"),
        "{printout}"
    );
    swarm(&["replace", "1"]).env("SWARM_POOL", pool.path()).assert().code(0);
    assert_eq!(pool.status("info", &["--verify"]), 0);
}

#[test]
fn a_node_that_cannot_be_replaced_is_reported() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["key", "value"]), 0);
    let (status, printout) = printed(&pool, &["3"]);
    assert!(status == 3 && printout.contains("the pool has nodes 0 to 2"), "{printout}");
    let opened = Pool::open(pool.path(), OpenOptions::default()).expect("a pool");
    let replacement = opened.replace(NodeId(1), &ReplaceOptions::default()).expect("begun");
    let (status, printout) = printed(&pool, &["1"]);
    assert!(status == 3 && printout.contains(&std::process::id().to_string()), "{printout}");
    drop((replacement, opened));
    fs::write(place(&pool, 1), "notes").expect("written");
    let (status, printout) = printed(&pool, &["1"]);
    assert!(status == 3 && printout.contains("move it away"), "{printout}");
    fs::remove_file(place(&pool, 1)).expect("moved away");
    fs::remove_file(place(&pool, 2)).expect("lost");
    let (status, printout) = printed(&pool, &["1"]);
    assert!(status == 3 && printout.contains("majority gone"), "{printout}");
}

/// Ended by a signal that it can handle, it removes what it made; killed, it leaves that to the next
/// call. Clients go on without the node in between, and with it while it is replaced.
#[test]
fn a_replacement_that_is_interrupted_leaves_the_pool_without_the_node() {
    for (signal, is_lost) in
        [(Signal::INT, false), (Signal::INT, true), (Signal::KILL, false), (Signal::KILL, true)]
    {
        let pool = TestPool::create();
        let text: String = (0..200).map(|n| format!("key {n}\tvalue {n}\n")).collect();
        swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
        if is_lost {
            fs::remove_file(place(&pool, 1)).expect("lost");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
        command.args(["replace", pool.path(), "1", "--rate", "1"]);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it can be run");
        let new = Path::new(pool.path()).join("node-1.new");
        let opened = Pool::open(pool.path(), OpenOptions { degraded: true, ..Default::default() });
        let opened = opened.expect("a majority");
        let is_gone = || opened.configuration().state(NodeId(1)) == NodeState::Filling;
        wait_until("it is filled", || is_gone() && opened.filled(NodeId(1)).0 > 0);
        let info = json(&["info", pool.path(), "--json"]);
        let shown = &info["memory_nodes"][1];
        assert_eq!(
            (&shown["state"], &shown["filled"]["is_at_work"]),
            (&"filling".into(), &true.into())
        );
        // Others work meanwhile, without being asked to go on without the node.
        assert_eq!(pool.status("put", &["key 1", "another"]), 0);
        let id = Pid::from_raw(child.id() as i32).expect("it is not 0");
        kill_process(id, signal).expect("it is this test's");
        let mut printout = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut printout).expect("text");
        let status = child.wait().expect("the child");
        assert_eq!(status.code(), (signal == Signal::INT).then_some(130));
        assert_eq!(printout.contains("begins anew"), signal == Signal::INT, "{printout}");
        assert_eq!(new.exists(), signal == Signal::KILL);
        assert!(is_gone());
        let printout = pool.output("info", &[]);
        assert!(String::from_utf8_lossy(&printout).contains("(interrupted)"));
        assert_eq!(pool.output("get", &["key 1"]), b"another");
        assert_eq!(printed(&pool, &["1"]), (0, String::new()));
        assert!(!new.exists() && !is_gone());
        assert_eq!(pool.status("info", &["--verify"]), 0);
    }
}

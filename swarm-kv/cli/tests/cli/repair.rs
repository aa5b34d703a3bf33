//! `repair`: exit statuses, what is printed, and that nothing is lost by it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use swarm_kv::shm::{OpenOptions, Pool};

use crate::common::{TestPool, json, swarm, wait_until};

/// What `repair` prints on standard error, and its exit status.
fn printed(pool: &TestPool, args: &[&str]) -> (i32, String) {
    let output = swarm(&[&["repair", pool.path()], args].concat()).output().expect("it can be run");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("it was not killed"), printed)
}

#[test]
fn a_pool_that_lost_its_control_file_is_repaired() {
    let pool = TestPool::create();
    let control = Path::new(pool.path()).join("control");
    assert_eq!(printed(&pool, &[]), (0, String::new()), "there is nothing to do");
    assert_eq!(json(&["repair", pool.path(), "--json"])["made_anew"], false);
    for key in 0..50 {
        assert_eq!(pool.status("put", &[&format!("key-{key}"), &"value".repeat(key)]), 0);
    }
    let exported = pool.output("export", &[]);
    let info = || json(&["info", pool.path(), "--exact", "--json"]);
    let before = info();
    fs::remove_file(&control).expect("a file");
    let output = swarm(&["get", pool.path(), "key-1"]).output().expect("it can be run");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("swarm repair"));
    let repaired = json(&["repair", pool.path(), "--json"]);
    assert_eq!((&repaired["made_anew"], &repaired["nodes"]), (&true.into(), &3.into()));
    assert_eq!(repaired["left_out"].as_array().map(Vec::len), Some(0));
    assert!(repaired["fault"].as_str().expect("a fault").contains("is missing"));
    assert_eq!(pool.output("export", &[]), exported);
    let after = info();
    for what in ["keys", "used_bytes", "free_bytes", "live_bytes", "index_bytes"] {
        assert_eq!(after[what], before[what], "{what}");
    }
    assert_eq!(pool.status("info", &["--verify"]), 0);

    // Without a node, and with one that is damaged.
    fs::write(&control, "text").expect("written");
    fs::remove_file(Path::new(pool.path()).join("node-2")).expect("a node");
    let (status, printout) = printed(&pool, &[]);
    assert!(status == 0 && printout.contains("left out node 2"), "{printout}");
    assert_eq!(pool.status("get", &["key-1"]), 3);
    assert_eq!(pool.output("get", &["--degraded", "key-1"]), b"value");
    let (status, printout) = printed(&pool, &["--force"]);
    assert!(status == 0 && printout.contains("left out node 2"), "{printout}");
    fs::remove_file(Path::new(pool.path()).join("node-1")).expect("a node");
    let (status, printout) = printed(&pool, &["--force"]);
    assert!(
        status == 3 && printout.contains("node-1: the file of node 1 is missing"),
        "{printout}"
    );
}

/// A command that has clients at work, and ends when this is dropped.
struct AtWork(Child);

impl Drop for AtWork {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client that is stopped over a repair would go on writing later, with a control file of its
/// own.
#[test]
fn a_pool_whose_clients_live_is_not_repaired() {
    let pool = TestPool::create();
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(["torture", pool.path(), "--clients", "1", "--seconds", "60"]);
    let at_work = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let at_work = AtWork(at_work.expect("the command line can be run"));
    let opened = Pool::open(pool.path(), OpenOptions::default()).expect("a pool");
    let client = || opened.clients().first().map(|client| client.process);
    wait_until("a client is at work", || client().is_some());
    let process = client().expect("it is at work");
    let id = Pid::from_raw(process as i32).expect("it is not 0");
    kill_process(id, Signal::STOP).expect("it is this test's");
    drop(opened);
    fs::remove_file(Path::new(pool.path()).join("control")).expect("a file");
    for args in [&[][..], &["--force"]] {
        let (status, printout) = printed(&pool, args);
        assert_eq!(status, 3);
        assert!(
            printout.contains(&process.to_string()) && printout.contains("is open in"),
            "{printout}"
        );
    }
    kill_process(id, Signal::KILL).expect("it is this test's");
    drop(at_work);
    wait_until("its files are closed", || printed(&pool, &[]).0 == 0);
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    assert_eq!(pool.status("info", &["--verify"]), 0);
}

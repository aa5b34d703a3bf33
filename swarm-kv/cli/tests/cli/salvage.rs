//! Torture that fails or is interrupted saves its history, and takes its keys with it.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{TestPool, json, temporary_pools, wait_until};

const EARLIER: &[u8] = b"of an earlier run";

/// Torture on a pool, for long, of so many keys that some are there at any time.
fn start(pool: &TestPool, history: Option<&Path>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(["torture", pool.path(), "--clients", "2", "--keys", "16", "--seconds", "60"]);
    if let Some(history) = history {
        command.arg("--history").arg(history);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the command line can be run")
}

/// Waits until both clients have a thousand records and more.
fn wait_for_records(torture: &Child) {
    let length = |log: PathBuf| fs::metadata(log).map_or(0, |meta| meta.len());
    wait_until("both clients work", || {
        let logs = temporary_pools(torture.id());
        let both = |logs: &PathBuf| (0..2).all(|n| length(logs.join(format!("log-{n}"))) > 24_000);
        logs.iter().any(both)
    });
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<Pid> {
    let is_child = |stat: &str| stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok();
    fs::read_dir("/proc")
        .expect("Linux has it")
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, path)| {
            fs::read_to_string(path.join("stat")).is_ok_and(|stat| is_child(&stat) == Some(parent))
        })
        .filter_map(|(id, _)| Pid::from_raw(id))
        .collect()
}

/// Kills a client of torture, as somebody else may, and waits until torture has ended.
fn end_by_a_kill(torture: Child) -> (Output, String) {
    let client = children(torture.id())[0];
    kill_process(client, Signal::KILL).expect("it runs");
    let output = torture.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("ended without a report; was it killed?"), "{printed}");
    (output, printed)
}

/// The names in the pool's directory that have to do with the history.
fn beside(pool: &TestPool) -> Vec<String> {
    let directory = pool.file("");
    let names = fs::read_dir(directory).expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("history")).collect()
}

/// The history is whole, and lies where it was to.
fn is_saved(pool: &TestPool, file: &Path) {
    let printout = json(&["check", &file.to_string_lossy(), "--json"]);
    assert_eq!(printout["linearizable"], true, "{printout}");
    assert!(printout["operations"].as_u64() > Some(1000), "{printout}");
    assert_eq!(beside(pool), ["history"]);
}

/// What was logged until then is the evidence of what went wrong: it had gone with the logs, and left an
/// empty file.
#[test]
fn the_history_of_a_run_that_failed_is_saved() {
    let pool = TestPool::create();
    let file = pool.file("history");
    fs::write(&file, EARLIER).expect("it is writable");
    let torture = start(&pool, Some(&file));
    wait_for_records(&torture);
    assert_eq!(fs::read(&file).expect("it is there"), EARLIER);
    let (_, printed) = end_by_a_kill(torture);
    assert!(printed.contains("the history so far is in"), "{printed}");
    is_saved(&pool, &file);
}

#[test]
fn the_history_of_a_run_that_was_interrupted_is_saved() {
    for signal in [Signal::INT, Signal::TERM] {
        let pool = TestPool::create();
        let file = pool.file("history");
        fs::write(&file, EARLIER).expect("it is writable");
        let torture = start(&pool, Some(&file));
        wait_for_records(&torture);
        kill_process(Pid::from_child(&torture), signal).expect("it runs");
        let output = torture.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        is_saved(&pool, &file);
    }
}

/// Whatever cannot be written is reported before the run, which would be in vain.
#[test]
fn a_history_that_cannot_be_written_is_reported_at_once() {
    let pool = TestPool::create();
    let directory = pool.file("history-directory");
    fs::create_dir(&directory).expect("its parent is writable");
    for place in [directory.clone(), pool.file("nowhere/history"), pool.file("pool/geometry/x")] {
        let torture = start(&pool, Some(&place));
        let output = torture.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{printed}");
        assert!(printed.contains(&format!("cannot write {}", place.display())), "{printed}");
        assert!(!printed.contains("history so far"), "{printed}");
    }
    assert_eq!(beside(&pool), ["history-directory"]);
}

/// A file takes the place of a file; a link stays one, and so does a pipe.
#[test]
fn a_link_is_followed_and_a_pipe_is_written_to() {
    let pool = TestPool::create();
    let (file, link, pipe) = (pool.file("history"), pool.file("link"), pool.file("pipe"));
    fs::write(&file, EARLIER).expect("it is writable");
    std::os::unix::fs::symlink(&file, &link).expect("it can be made");
    let args = ["torture", "--seconds", "1", "--clients", "1", "--json", "--history"];
    let printout = json(&[&args[..], &[&link.to_string_lossy()]].concat());
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    let again = json(&["check", &file.to_string_lossy(), "--json"]);
    assert_eq!(again["operations"], printout["operations"]);

    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it is there").success());
    let check = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["check", &pipe.to_string_lossy(), "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line can be run");
    let printout = json(&[&args[..], &[&pipe.to_string_lossy()]].concat());
    assert!(fs::metadata(&pipe).expect("it is there").file_type().is_fifo());
    let again = check.wait_with_output().expect("it ends").stdout;
    let again: serde_json::Value = serde_json::from_slice(&again).expect("it is JSON");
    assert_eq!(again["operations"], printout["operations"]);
}

/// They had stayed in somebody's pool, and nothing reported it.
#[test]
fn no_key_of_a_run_that_did_not_end_well_stays() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["mine", "value"]), 0);
    let torture = start(&pool, None);
    wait_for_records(&torture);
    end_by_a_kill(torture);
    assert_eq!(pool.output("export", &[]), b"mine\tvalue\n");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let torture = start(&pool, None);
        wait_for_records(&torture);
        kill_process(Pid::from_child(&torture), signal).expect("it runs");
        let output = torture.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(pool.output("export", &[]), b"mine\tvalue\n");
    }
}

/// The pool is out of reach while torture ends: it reports which keys stay, and how they are removed.
#[test]
fn keys_that_cannot_be_deleted_are_reported() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["mine", "value"]), 0);
    let torture = start(&pool, None);
    wait_for_records(&torture);
    fs::rename(pool.path(), pool.file("away")).expect("it is ours");
    let (_, printed) = end_by_a_kill(torture);
    fs::rename(pool.file("away"), pool.path()).expect("it is ours");
    assert!(printed.contains("keys that begin with torture-"), "{printed}");
    assert_ne!(pool.output("export", &[]), b"mine\tvalue\n");
    let command = printed.split('`').nth(1).expect("the message shows how");
    let swarm = Path::new(env!("CARGO_BIN_EXE_swarm")).parent().expect("it is in a directory");
    let path = format!("{}:{}", swarm.display(), std::env::var("PATH").unwrap_or_default());
    let removed = Command::new("sh").args(["-c", command]).env("PATH", path).status();
    assert!(removed.expect("there is a shell").success(), "{command}");
    assert_eq!(pool.output("export", &[]), b"mine\tvalue\n");
}

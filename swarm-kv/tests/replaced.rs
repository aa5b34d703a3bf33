//! Nodes that are lost and replaced while clients of other processes work.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use swarm_core::node::{NodeId, NodeState};
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool, ReplaceOptions};
use swarm_kv::{Options, ReplaceStep, Verdict};

/// For a re-executed test: what it does, and with which pool.
const ROLE: &str = "SWARM_KV_TEST_ROLE";
const POOL: &str = "SWARM_KV_TEST_POOL";
const KEYS: usize = 40;
/// How often the process that fills stops.
const PARTS: u64 = 6;

fn open(path: &Path) -> Pool {
    let options = OpenOptions { degraded: true, ..OpenOptions::default() };
    Pool::open(path, options).expect("a majority")
}

fn key(of: &str, number: usize) -> Vec<u8> {
    format!("{of} {number}").into_bytes()
}

/// What a client wrote last, in which round.
fn value(round: u64, number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(10) { 3000 } else { 8 + number };
    round.to_le_bytes().into_iter().cycle().take(length).collect()
}

/// Not a test itself: what the other processes do.
#[test]
fn child() {
    let Some(role) = env::var_os(ROLE) else { return };
    let path = PathBuf::from(env::var_os(POOL).expect("a pool"));
    let role = role.into_string().expect("text");
    match role.split_once(' ') {
        Some(("works", name)) => work(&path, name),
        Some(("replaces", node)) => replace(&path, node.parse().expect("a number")),
        _ => panic!("{role}"),
    }
}

/// Writes and reads its own keys, without one that fails, and reports which round is done. Goes on for
/// each line that it receives, and ends with them.
fn work(path: &Path, name: &str) {
    let pool = open(path);
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let store = client.blocking();
    let mut lines = std::io::stdin().lines();
    let mut round = 0;
    while let Some(Ok(_)) = lines.next() {
        for _ in 0..2 {
            round += 1;
            for number in 0..KEYS {
                let key = key(name, number);
                let value = value(round, number);
                if number % 7 == 3 {
                    store.delete(&key).expect("a majority");
                    assert!(store.insert(&key, &value).expect("a majority"));
                } else if number % 7 == 5 {
                    store.swap(&key, &value).expect("a majority");
                } else {
                    store.put(&key, &value).expect("a majority");
                }
                let found = store.get(&key).expect("a majority");
                assert!(found.as_deref() == Some(&value[..]), "{name} {number} in round {round}");
            }
        }
        println!("says: {round}");
    }
    std::process::exit(0);
}

/// Replaces a node, and reports each step. Goes on for each line that it receives.
fn replace(path: &Path, node: u8) {
    let mut lines = std::io::stdin().lines();
    let pool = open(path);
    let replacement =
        pool.replace(NodeId(node), &ReplaceOptions::default()).expect("it is replaced by nobody");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let mut waits = false;
    let mut goes_on = |step| {
        match step {
            // Parts of it are filled beside clients that work.
            ReplaceStep::Fills(filled) => {
                if !filled.done.is_multiple_of(filled.first_buckets.div_ceil(PARTS)) {
                    return true;
                }
                println!("says: {}", 1 + filled.done);
            }
            // The first look alone: clients that work may hold it up for many.
            _ if waits => return true,
            _ => {
                waits = true;
                println!("says: 0");
            }
        }
        lines.next().is_some()
    };
    assert!(shm::replace(&replacement, &client, &mut goes_on).expect("a majority"));
    println!("says: {}", u64::MAX);
    std::process::exit(0);
}

/// A process that goes on for each line that it receives, and reports how far it is.
struct Other {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(role: &str, pool: &Path) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(POOL, pool);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let input = process.stdin.take().expect("its input");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Self { process, input, lines }
    }

    fn send(&mut self) {
        self.input.write_all(b"\n").expect("it lives");
    }

    fn receive(&mut self) -> u64 {
        let report = self.lines.find_map(|line| line.ok()?.split_once("says: ")?.1.parse().ok());
        report.expect("it did not fail")
    }

    fn kill(mut self) {
        self.process.kill().expect("SIGKILL");
        self.process.wait().expect("it ends");
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.process.wait().expect("it ends").success());
    }
}

/// A pool that three processes work on.
struct Busy {
    _dir: tempfile::TempDir,
    path: PathBuf,
    clients: Vec<Other>,
    rounds: Vec<u64>,
}

impl Busy {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let options =
            CreateOptions { capacity: 32 << 20, max_clients: 16, ..CreateOptions::default() };
        drop(Pool::create(&path, &options).expect("a pool"));
        let start = |number| Other::start(&format!("works {number}"), &path);
        let clients: Vec<_> = (0..3).map(start).collect();
        let mut busy = Self { _dir: dir, path, rounds: vec![0; clients.len()], clients };
        busy.works();
        busy
    }

    /// Each client does a few rounds.
    fn works(&mut self) {
        self.clients.iter_mut().for_each(Other::send);
        self.take_reports();
    }

    fn take_reports(&mut self) {
        self.rounds = self.clients.iter_mut().map(Other::receive).collect();
    }

    fn lose(&self, node: u8) {
        fs::remove_file(self.path.join(format!("node-{node}"))).expect("it is there");
    }

    /// Replaces a node to its end, beside clients that work.
    fn replace(&mut self, node: u8) {
        let mut other = Other::start(&format!("replaces {node}"), &self.path);
        loop {
            self.clients.iter_mut().for_each(Other::send);
            if other.receive() == u64::MAX {
                break;
            }
            other.send();
            self.take_reports();
        }
        self.take_reports();
        other.end();
    }

    /// All that was written is there.
    fn has_all(&self) {
        let pool = open(&self.path);
        let client = shm::open(&pool, Options::default()).expect("a slot");
        for (name, round) in self.rounds.iter().enumerate() {
            for number in 0..KEYS {
                let found = client.blocking().get(&key(&name.to_string(), number));
                let found = found.expect("a majority");
                assert!(found.as_deref() == Some(&value(*round, number)[..]), "{name} {number}");
            }
        }
    }

    fn verified(&self) -> Verdict {
        let pool = Pool::open(&self.path, OpenOptions::default()).expect("all are there");
        shm::verify(&pool, &mut |_, _| {}).expect("all answer")
    }

    fn end(self) {
        self.clients.into_iter().for_each(Other::end);
    }
}

/// One node after the other is lost and replaced; no operation fails, and nothing is lost, whichever
/// other node is.
#[test]
fn nodes_are_lost_and_replaced_one_after_the_other_while_processes_work() {
    let mut busy = Busy::new();
    for node in [0, 1, 2, 1] {
        busy.lose(node);
        busy.works();
        busy.replace(node);
        busy.works();
        let verdict = busy.verified();
        assert!(verdict.is_sound() && verdict.busy == 0, "{verdict:?}");
        for other in (0..3).filter(|&other| other != node) {
            let (place, away) = (busy.path.join(format!("node-{other}")), busy.path.join("away"));
            fs::rename(&place, &away).expect("it is there");
            busy.has_all();
            fs::rename(&away, &place).expect("back");
        }
    }
    // Clients that met all of it go on without any one node.
    busy.lose(0);
    busy.works();
    busy.has_all();
    busy.end();
}

/// SIGKILL of the process that replaces: the clients go on without the node, and the next one begins anew.
#[test]
fn a_replacement_that_is_killed_is_taken_up_by_the_next() {
    let mut busy = Busy::new();
    for at in [0, 1, 2, 4, 6] {
        busy.lose(1);
        let mut other = Other::start("replaces 1", &busy.path);
        for step in 0..at {
            busy.works();
            assert!(other.receive() < u64::MAX);
            if step + 1 < at {
                other.send();
            }
        }
        other.kill();
        busy.works();
        busy.has_all();
        // Once the node is gone for all, the pool opens with no option to go on without it.
        let is_gone = open(&busy.path).configuration().state(NodeId(1)) == NodeState::Filling;
        assert!(is_gone || at == 0);
        if is_gone {
            drop(Pool::open(&busy.path, OpenOptions::default()).expect("nothing is amiss"));
        }
        busy.replace(1);
        assert!(!busy.path.join("node-1.new").exists());
        busy.works();
        let verdict = busy.verified();
        assert!(verdict.is_sound() && verdict.busy == 0, "{verdict:?}");
        busy.has_all();
    }
    busy.lose(2);
    busy.works();
    busy.has_all();
    busy.end();
}

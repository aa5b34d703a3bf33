//! Who holds a pool's memory, and ending a client that holds it for too long.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use swarm_core::fabric::EpochDomain;
use swarm_kv::shm::{self, ClientInfo, ClientState, OpenOptions, Pool};

use crate::common::{TestPool, json, swarm, wait_until};

/// A command that has a client at work, and ends when this is dropped.
struct AtWork(Child);

impl AtWork {
    fn start(pool: &TestPool) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
        command.args(["torture", pool.path(), "--clients", "1", "--seconds", "60"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("the command line can be run"))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(process: u32, signal: Signal) {
    let id = Pid::from_raw(process as i32).expect("it is not 0");
    kill_process(id, signal).expect("it is this test's");
}

/// Stops a client in the middle of an operation.
fn stop_at_work(pool: &Pool) -> ClientInfo {
    let other = |tenant: &ClientInfo| {
        tenant.process != std::process::id() && tenant.condition != ClientState::Dead
    };
    for _ in 0..1000 {
        let Some(tenant) = pool.clients().into_iter().find(other) else {
            std::thread::yield_now();
            continue;
        };
        signal(tenant.process, Signal::STOP);
        wait_until("it has stopped", || {
            pool.clients()
                .iter()
                .find(|it| other(it))
                .is_none_or(|it| it.condition == ClientState::Stopped)
        });
        match pool.clients().into_iter().find(other) {
            Some(stopped) if stopped.since.is_some() => return stopped,
            _ => signal(tenant.process, Signal::CONT),
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    panic!("it was never in the middle of anything");
}

fn holder(info: &Value, client: usize) -> Value {
    let holders = info["owners"].as_array().expect("a list");
    let found = holders.iter().find(|holder| holder["client"] == client);
    found.unwrap_or_else(|| panic!("no client {client}: {info}")).clone()
}

/// A stopped process held up the recycling of all others for as long as it was stopped, and nothing
/// showed which one it was.
#[test]
fn a_stopped_client_is_shown_with_what_it_holds_up_and_can_be_evicted() {
    let made = TestPool::create();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    let client = shm::open(&pool, shm_options()).expect("a slot");
    let client = client.blocking();
    client.put(b"key", b"value").expect("a put");
    let at_work = AtWork::start(&made);
    let stopped = stop_at_work(&pool);
    // Or it would take the slot to clear up behind its client.
    signal(at_work.0.id(), Signal::STOP);
    let since = stopped.since.expect("it is in the middle of something");
    for round in 0..1000_u64 {
        client.put(b"key", &round.to_le_bytes()).expect("there is memory");
    }
    assert!(pool.epoch() <= since + 1, "epoch {} is held up since {since}", pool.epoch());

    let info = json(&["info", made.path(), "--exact", "--json"]);
    let it = holder(&info, stopped.slot);
    assert_eq!((&it["state"], &it["process"]), (&"stopped".into(), &stopped.process.into()));
    assert_eq!((&it["pinned_epoch"], &info["epoch"]), (&since.into(), &pool.epoch().into()));
    assert_eq!(it["epochs_behind"], pool.epoch() - since);
    let output = swarm(&["info", made.path()]).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = format!("swarm evict {} {}", made.path(), stopped.slot);
    assert!(output.status.success() && printed.contains(&advice), "{printed}");

    let slot = stopped.slot.to_string();
    let evicted = json(&["evict", made.path(), &slot, "--json"]);
    assert_eq!(evicted["processes"][0], stopped.process);
    for round in 0..1000_u64 {
        client.put(b"key", &round.to_le_bytes()).expect("there is memory");
    }
    assert!(pool.epoch() > since + 2, "epoch {} goes on from {since}", pool.epoch());
    assert_eq!(
        holder(&json(&["info", made.path(), "--exact", "--json"]), stopped.slot)["state"],
        "dead"
    );
    let next = pool.attach().expect("its slot is free");
    assert_eq!(next.session().client, stopped.slot);
}

/// One that is at work is none, however long its operation takes.
#[test]
fn a_client_that_is_stopped_for_long_enough_is_evicted_without_being_named() {
    let made = TestPool::create();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    let keeps = pool.attach().expect("a slot");
    let _ = keeps.domain().pin();
    let for_long = |time| json(&["evict", made.path(), "--stopped-for", time, "--json"]);
    let nobody = serde_json::json!({ "evicted": [], "left_alone": [] });
    assert_eq!(for_long("1ms"), nobody, "this process is at work");
    let at_work = AtWork::start(&made);
    let stopped = stop_at_work(&pool);
    // Or it would take the slot to clear up behind its client.
    signal(at_work.0.id(), Signal::STOP);
    let evicted = for_long("300ms")["evicted"][0].clone();
    assert_eq!((&evicted["client"], &evicted["error"]), (&stopped.slot.into(), &Value::Null));
    assert_eq!(evicted["processes"][0], stopped.process);
    assert!(evicted["halted_ns"].as_u64() >= Some(300_000_000), "{evicted}");
    assert_eq!(
        (&evicted["state"], &evicted["pinned_epoch"]),
        (&"stopped".into(), &stopped.since.into())
    );
    assert!(!pool.live_clients().contains(&stopped.slot), "its slot is free");
    keeps.domain().unpin();
    let output = swarm(&["evict", made.path(), "--stopped-for", "1ms"]).output().expect("it runs");
    let printout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && printout.contains("no client was stopped"), "{printout}");
    for usage in [&[][..], &["3", "--stopped-for", "1s"], &["--stopped-for", "soon"]] {
        assert_eq!(made.status("evict", usage), 2, "{usage:?}");
    }
}

/// Of a client that cannot be seen nothing is reported but that an operation is open.
#[test]
fn a_client_that_cannot_be_seen_is_named_and_left_alone() {
    let inside = |program: &str, args: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", program]);
        unshare.args(args).output()
    };
    if !inside("true", &[]).is_ok_and(|output| output.status.success()) {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        assert!(!required, "a pid namespace cannot be made here");
        eprintln!("SKIPPED who_cannot_be_seen: a pid namespace cannot be made here");
        return;
    }
    let made = TestPool::create();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    let keeps = pool.attach().expect("a slot");
    let since = keeps.domain().pin();
    let program = env!("CARGO_BIN_EXE_swarm");
    let evict = ["evict", made.path(), "--stopped-for", "50ms"];
    let output = inside(program, &[&evict[..], &["--json"]].concat()).expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let printout: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let [it] = &printout["left_alone"].as_array().expect("a list")[..] else {
        panic!("{printout}")
    };
    assert_eq!((&it["client"], &it["why"]), (&keeps.session().client.into(), &"unseen".into()));
    assert_eq!((&it["pinned_epoch"], &it["stopped_threads"]), (&since.into(), &Value::Null));
    assert!(it["seen_ns"].as_u64() >= Some(50_000_000), "{it}");
    let output = inside(program, &evict).expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("cannot be seen from here") && !printed.contains("is stopped,"),
        "{printed}"
    );
    keeps.domain().unpin();
    let output = inside(program, &evict).expect("it runs");
    assert!(output.stderr.is_empty(), "it is in no operation any more: {output:?}");
}

/// It lives, so that nothing but the time tells it from a client that is at work.
#[test]
fn a_client_that_keeps_an_operation_under_way_is_shown() {
    let made = TestPool::create();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    let [keeps, looks] = [0, 1].map(|_| pool.attach().expect("a slot"));
    let since = keeps.domain().pin();
    assert_eq!(
        (looks.domain().try_advance(), looks.domain().try_advance()),
        (since + 1, since + 1)
    );
    let printed = || {
        let output = swarm(&["info", made.path()]).output().expect("it runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let advice = format!("swarm evict {} {}", made.path(), keeps.session().client);
    // As long as is worth a word.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let printout = printed();
    assert!(printout.contains("has been pinned for") && printout.contains(&advice), "{printout}");
    let it = holder(&json(&["info", made.path(), "--exact", "--json"]), keeps.session().client);
    assert_eq!((&it["state"], &it["epochs_behind"]), (&"alive".into(), &1.into()));
    assert!(it["held_up_ns"].as_u64() >= Some(1_000_000_000), "{it}");
    keeps.domain().unpin();
    assert_eq!(printed(), "", "it is over");
}

/// Takes back after every few writes, so that the epoch is asked for all the time.
fn shm_options() -> swarm_kv::Options {
    swarm_kv::Options::default().reclaimed_at_once(8)
}

#[test]
fn holders_of_memory_are_shown_even_when_no_client_is_there() {
    let made = TestPool::create();
    let empty = json(&["info", made.path(), "--exact", "--json"]);
    assert_eq!(empty["owners"].as_array().map(Vec::len), Some(0), "{empty}");
    assert_eq!((&empty["allocated_bytes"], &empty["live_bytes"]), (&0.into(), &0.into()));
    for (key, size) in [("a", 40), ("b", 3000), ("c", 200_000)] {
        assert_eq!(made.status("put", &[key, &"x".repeat(size.min(100_000))]), 0);
    }
    let info = json(&["info", made.path(), "--exact", "--json"]);
    let number = |name: &str| info[name].as_u64().expect("a number");
    let it = holder(&info, 0);
    assert_eq!((&it["state"], &it["process"]), (&"detached".into(), &Value::Null));
    // Of what it needed little of, it has a part of what clients share.
    let holders = info["owners"].as_array().expect("a list");
    let shared = holders.iter().find(|it| it["state"] == "shared").expect("what is shared");
    assert_eq!((&shared["client"], &shared["process"]), (&Value::Null, &Value::Null));
    let both = |name: &str| {
        let [own, shared] = [&it, shared].map(|it| it[name].as_u64().expect("a number"));
        own + shared
    };
    assert_eq!(both("allocated_bytes"), number("allocated_bytes"));
    assert!(number("live_bytes") > 103_000, "{info}");
    let live = number("live_bytes") + number("index_bytes");
    assert!(number("index_bytes") > 0 && number("allocated_bytes") >= live, "{info}");
    assert_eq!(number("allocated_bytes") - live, number("reclaimable_bytes"));
    assert_eq!(both("reclaimable_bytes"), number("reclaimable_bytes"), "nobody else holds any");
    assert!(both("owned_bytes") >= both("allocated_bytes"), "{info}");
    assert_eq!(number("used_bytes") + number("free_bytes"), number("capacity_bytes"));
    let printout = String::from_utf8_lossy(&made.output("info", &[])).into_owned();
    assert!(printout.contains("detached") && printout.contains("allocated"), "{printout}");
}

#[test]
fn a_client_that_is_not_there_cannot_be_evicted() {
    let made = TestPool::create();
    for client in ["0", "7", "8", "99999999"] {
        assert_eq!(made.status("evict", &[client]), 3, "{client}");
    }
    for bad in ["-1", "x", ""] {
        assert_eq!(made.status("evict", &[bad]), 2, "{bad}");
    }
}

/// A control group that freezes, and goes with the value.
struct Group {
    directory: PathBuf,
    file: PathBuf,
    thaws: &'static str,
}

impl Group {
    /// One with this process in it, frozen, where this test may make such.
    fn frozen(process: u32) -> Option<Self> {
        let versions = [
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
        ];
        versions.into_iter().find_map(|(mount, file, freezes, thaws)| {
            let directory = Path::new(mount).join(format!("swarm-test-{process}"));
            fs::create_dir(&directory).ok()?;
            let group = Self { file: directory.join(file), directory, thaws };
            fs::write(group.directory.join("cgroup.procs"), process.to_string()).ok()?;
            fs::write(&group.file, freezes).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, self.thaws);
        // It is empty once the client that was in it is gone.
        for _ in 0..1000 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// A container that was paused looked as if it were at work.
#[test]
fn a_frozen_client_is_shown_with_what_thaws_it() {
    let made = TestPool::create();
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(["import", made.path(), "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    // It holds a slot for as long as there may be more to read.
    let importer = AtWork(command.spawn().expect("the command line can be run"));
    let process = importer.0.id();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    wait_until("it has a slot", || !pool.live_clients().is_empty());
    let Some(group) = Group::frozen(process) else {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        assert!(!required, "no control group that freezes can be made here");
        eprintln!("SKIPPED a_frozen_client: no control group that freezes can be made here");
        drop(importer);
        return;
    };
    let info = || json(&["info", made.path(), "--json"]);
    wait_until("it is frozen", || holder(&info(), 0)["state"] == "frozen");
    let by = holder(&info(), 0)["frozen_by"][0].clone();
    assert_eq!(
        (by["file"].as_str(), by["thaw"].as_str()),
        (group.file.to_str(), Some(group.thaws))
    );
    let output = swarm(&["info", made.path()]).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = format!("echo {} > {}", group.thaws, group.file.display());
    assert!(printed.contains(&format!("client 0, process {process}, is frozen")), "{printed}");
    assert!(printed.contains(&advice) && printed.contains("swarm evict"), "{printed}");
    fs::write(&group.file, group.thaws).expect("it thaws");
    wait_until("it goes on", || holder(&info(), 0)["state"] == "alive");
    assert!(holder(&info(), 0)["frozen_by"].is_null());
    // A client that is in it goes first.
    drop((importer, group));
}

//! Who holds a pool's memory, and ending whoever holds it for too long.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use swarm_core::fabric::Board;
use swarm_kv::shm::{self, Condition, OpenOptions, Pool, Tenant};

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
fn stop_at_work(pool: &Pool) -> Tenant {
    let other = |tenant: &Tenant| {
        tenant.process != std::process::id() && tenant.condition != Condition::Dead
    };
    for _ in 0..1000 {
        let Some(tenant) = pool.census().into_iter().find(other) else {
            std::thread::yield_now();
            continue;
        };
        signal(tenant.process, Signal::STOP);
        wait_until("it has stopped", || {
            pool.census()
                .iter()
                .find(|it| other(it))
                .is_none_or(|it| it.condition == Condition::Stopped)
        });
        match pool.census().into_iter().find(other) {
            Some(stopped) if stopped.since.is_some() => return stopped,
            _ => signal(tenant.process, Signal::CONT),
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    panic!("it was never in the middle of anything");
}

fn holder(info: &Value, client: usize) -> Value {
    let holders = info["holders"].as_array().expect("a list");
    let found = holders.iter().find(|holder| holder["client"] == client);
    found.unwrap_or_else(|| panic!("no client {client}: {info}")).clone()
}

/// A stopped process held up the recycling of all others for as long as it was stopped, and nothing
/// told who that was.
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
    assert_eq!((&it["since_epoch"], &info["epoch"]), (&since.into(), &pool.epoch().into()));
    assert_eq!(it["epochs_behind"], pool.epoch() - since);
    let output = swarm(&["info", made.path()]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = format!("swarm evict {} {}", made.path(), stopped.slot);
    assert!(output.status.success() && told.contains(&advice), "{told}");

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

/// It lives, so that nothing but the time tells it from a client that is at work.
#[test]
fn a_client_that_keeps_an_operation_under_way_is_shown() {
    let made = TestPool::create();
    let pool = Pool::open(made.path(), OpenOptions::default()).expect("it is a pool");
    let [keeps, looks] = [0, 1].map(|_| pool.attach().expect("a slot"));
    let since = keeps.board().enter();
    assert_eq!((looks.board().advance(), looks.board().advance()), (since + 1, since + 1));
    let told = || {
        let output = swarm(&["info", made.path()]).output().expect("it runs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let advice = format!("swarm evict {} {}", made.path(), keeps.session().client);
    // As long as is worth a word.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let said = told();
    assert!(
        said.contains("has had an operation under way for") && said.contains(&advice),
        "{said}"
    );
    let it = holder(&json(&["info", made.path(), "--exact", "--json"]), keeps.session().client);
    assert_eq!((&it["state"], &it["epochs_behind"]), (&"alive".into(), &1.into()));
    assert!(it["held_up_ns"].as_u64() >= Some(1_000_000_000), "{it}");
    keeps.board().leave();
    assert_eq!(told(), "", "it is over");
}

/// Takes back after every few writes, so that the epoch is asked for all the time.
fn shm_options() -> swarm_kv::Options {
    swarm_kv::Options::default().reclaimed_at_once(8)
}

#[test]
fn who_holds_memory_is_told_also_when_nobody_is_there() {
    let made = TestPool::create();
    let empty = json(&["info", made.path(), "--exact", "--json"]);
    assert_eq!(empty["holders"].as_array().map(Vec::len), Some(0), "{empty}");
    assert_eq!((&empty["set_aside_bytes"], &empty["live_bytes"]), (&0.into(), &0.into()));
    for (key, size) in [("a", 40), ("b", 3000), ("c", 200_000)] {
        assert_eq!(made.status("put", &[key, &"x".repeat(size.min(100_000))]), 0);
    }
    let info = json(&["info", made.path(), "--exact", "--json"]);
    let number = |name: &str| info[name].as_u64().expect("a number");
    let it = holder(&info, 0);
    assert_eq!((&it["state"], &it["process"]), (&"detached".into(), &Value::Null));
    // Of what it needed little of, it has a part of what clients share.
    let holders = info["holders"].as_array().expect("a list");
    let shared = holders.iter().find(|it| it["state"] == "shared").expect("what is shared");
    assert_eq!((&shared["client"], &shared["process"]), (&Value::Null, &Value::Null));
    let both = |name: &str| {
        let [own, shared] = [&it, shared].map(|it| it[name].as_u64().expect("a number"));
        own + shared
    };
    assert_eq!(both("set_aside_bytes"), number("set_aside_bytes"));
    assert!(number("live_bytes") > 103_000, "{info}");
    let live = number("live_bytes") + number("index_bytes");
    assert!(number("index_bytes") > 0 && number("set_aside_bytes") >= live, "{info}");
    assert_eq!(number("set_aside_bytes") - live, number("not_live_bytes"));
    assert_eq!(both("not_live_bytes"), number("not_live_bytes"), "nobody else holds any");
    assert!(both("held_bytes") >= both("set_aside_bytes"), "{info}");
    assert_eq!(number("used_bytes") + number("free_bytes"), number("capacity_bytes"));
    let said = String::from_utf8_lossy(&made.output("info", &[])).into_owned();
    assert!(said.contains("detached") && said.contains("set aside"), "{said}");
}

#[test]
fn who_is_not_there_cannot_be_evicted() {
    let made = TestPool::create();
    for client in ["0", "7", "8", "99999999"] {
        assert_eq!(made.status("evict", &[client]), 3, "{client}");
    }
    for bad in ["-1", "x", ""] {
        assert_eq!(made.status("evict", &[bad]), 2, "{bad}");
    }
}

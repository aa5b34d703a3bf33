//! `swarm lock` and `swarm locks`, as a shell sees them.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{TestPool, json, swarm, wait_until};

/// Holds a lock until its standard input is closed.
struct Holder(Child);

impl Holder {
    fn start(pool: &TestPool, name: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
        command.args(["lock", pool.path(), name, "--", "cat"]).stdin(Stdio::piped());
        Self(command.spawn().expect("the command line can be run"))
    }

    fn id(&self) -> u64 {
        u64::from(self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // `cat` ends as well.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What is shown of the only lock.
fn shown(pool: &TestPool) -> Value {
    let output = swarm(&["locks", pool.path(), "--json"]).output().expect("it can be run");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn is_held_by(pool: &TestPool, holder: &Holder) -> bool {
    shown(pool)["holders"][0]["process"].as_u64() == Some(holder.id())
}

#[test]
fn a_command_runs_under_a_lock_and_its_exit_status_is_passed_on() {
    let pool = TestPool::create();
    let run = |command: &[&str]| pool.status("lock", &[&["l", "--"], command].concat());
    assert_eq!(run(&["true"]), 0);
    assert_eq!(run(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]), 128 + 15);
    assert_eq!(run(&["/no/such/program"]), 127);
    assert_eq!(run(&["/"]), 126);
    assert_eq!([pool.status("lock", &["l"]), pool.status("lock", &["", "--", "true"])], [2, 2]);
    let token = pool.output("lock", &["l", "--", "sh", "-c", "echo $SWARM_LOCK_TOKEN"]);
    assert_eq!(token, b"6\n");
    let lock = json(&["locks", pool.path(), "--json"]);
    let free = (&lock["name"], &lock["kind"], &lock["token"], lock["holders"].as_array());
    assert_eq!(free, (&"l".into(), &"lock".into(), &6.into(), Some(&vec![])));
    assert_eq!(pool.status("put", &["k", "value"]), 0);
    assert_eq!(pool.status("lock", &["k", "--", "true"]), 3);
}

#[test]
fn a_lock_that_is_held_is_waited_for_until_its_holder_ends() {
    let pool = TestPool::create();
    let holder = Holder::start(&pool, "l");
    wait_until("it holds the lock", || is_held_by(&pool, &holder));
    assert_eq!(shown(&pool)["holders"][0]["state"], "alive");
    assert_eq!(pool.status("lock", &["l", "--timeout", "0s", "--", "true"]), 1);
    let chosen = ["l", "--timeout", "20ms", "--conflict-exit-code", "9", "--", "true"];
    assert_eq!(pool.status("lock", &chosen), 9);
    let mut next = Holder::start(&pool, "l");
    wait_until("it waits", || shown(&pool)["waiters"].as_array().is_some_and(|it| it.len() == 1));
    let text = String::from_utf8(pool.output("locks", &[])).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "l: a lock, last token 1");
    assert!(lines[1].contains(&format!("process {}, alive, token 1", holder.id())), "{text}");
    assert!(lines[2].contains(&format!("process {}, alive waits", next.id())), "{text}");
    // Nobody asks it.
    kill_process(Pid::from_child(&holder.0), Signal::KILL).expect("it is a child");
    wait_until("it has ended, and the next one holds it", || is_held_by(&pool, &next));
    assert_eq!(shown(&pool)["token"], 2);
    // A signal ends the command as well, and then the lock is free.
    let _input = next.0.stdin.take();
    kill_process(Pid::from_child(&next.0), Signal::TERM).expect("it is a child");
    assert_eq!(next.0.wait().expect("it ends").code(), Some(128 + 15));
    assert_eq!(shown(&pool)["holders"], Value::Array(vec![]));
}

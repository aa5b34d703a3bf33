//! Torture and check: what clients are answered while things fail is linearizable, and a history that is
//! not is told from one that is.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{TestPool, json, swarm, temporary_pools};

/// Runs `check` on some text; its exit status and what it printed.
fn check(text: &str, flags: &[&str]) -> (i32, String) {
    let output = swarm(&[&["check", "-"], flags].concat()).write_stdin(text).output();
    let output = output.expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!printed.contains("panicked"), "{printed}");
    let status = output.status.code().expect("it was not killed");
    (status, String::from_utf8_lossy(&output.stdout).into_owned() + &printed)
}

/// A line of a history; `printed` is the outcome, or what was read.
fn line(client: u32, op: &str, value: Option<&str>, times: (u64, u64), printed: &str) -> String {
    let outcome = ["ok", "absent", "exists", "unknown"].contains(&printed);
    let line = json!({
        "client": client,
        "op": op,
        "key": "k",
        "value": value,
        "call_ns": times.0,
        "return_ns": (printed != "unknown").then_some(times.1),
        "outcome": if outcome { printed } else { "ok" },
        "read": (!outcome).then_some(printed),
    });
    format!("{line}\n")
}

/// What a torture prints that went on for so long that it did as much as is to be judged: a machine with other work gets less
/// done in a second. However long, all that was done has to be right.
fn torture(args: &[&str], is_enough: impl Fn(&Value) -> bool) -> Value {
    let mut printout = Value::Null;
    for seconds in ["2", "4", "8", "16", "32"] {
        printout = json(&[&["torture", "--json", "--seconds", seconds], args].concat());
        assert_eq!(printout["linearizable"], true, "{printout}");
        are_served(&printout);
        if is_enough(&printout) {
            return printout;
        }
    }
    panic!("too little was done: {printout}");
}

/// Whether more than so many of what it names were counted.
fn more_than(printout: &Value, counted: &[(&str, u64)]) -> bool {
    counted
        .iter()
        .all(|&(name, count)| printout.pointer(name).and_then(Value::as_u64) > Some(count))
}

#[test]
fn what_clients_see_while_things_fail_is_linearizable() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("history").to_string_lossy().into_owned();
    let flags = ["--kill-clients", "--kill-node", "--freeze-node", "--clients", "6", "--keys", "3"];
    let printed = [("/get/absent", 0), ("/insert/exists", 0), ("/update/absent", 0)];
    let printout = torture(&[&flags[..], &["--history", &file]].concat(), |printout| {
        more_than(printout, &[("/operations", 1000), ("/kills", 3), ("/freezes", 1)])
            && more_than(printout, &printed)
            && more_than(printout, &[("/cas/ok", 0), ("/cas/exists", 0), ("/incr/ok", 0)])
            && more_than(printout, &[("/put_with_ttl/ok", 0), ("/persist/ok", 0), ("/ttl/ok", 0)])
    });
    assert_eq!(printout["killed_nodes"].as_array().map(Vec::len), Some(1));
    let again = json(&["check", &file, "--json"]);
    for field in ["linearizable", "operations", "keys", "unknown"] {
        assert_eq!(again[field], printout[field], "{field}");
    }
    doctored(Path::new(&file));
}

/// The same history with one answer changed is not linearizable.
fn doctored(file: &Path) {
    let text = std::fs::read_to_string(file).expect("it was written");
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let reads = |line: &Value| line["read"].is_string() && line["op"] != "ttl";
    let first = lines.iter().position(reads).expect("something was read");
    let key = lines[first]["key"].clone();
    let last = lines.iter().rposition(|line| reads(line) && line["key"] == key);
    let last = last.expect("there is at least one");
    // A stale read: by the end, the first value has been overwritten thousands of times.
    assert_ne!(lines[first]["read"], lines[last]["read"]);
    lines[last]["read"] = lines[first]["read"].clone();
    let text: Vec<_> = lines.iter().map(Value::to_string).collect();
    let (status, printout) = check(&text.join("\n"), &[]);
    assert_eq!(status, 1, "{printout}");
    assert!(printout.contains("NOT linearizable") && printout.contains("├"), "{printout}");
    let (status, printout) = check(&text.join("\n"), &["--json"]);
    let printout: Value = serde_json::from_str(printout.trim()).expect("it is JSON");
    assert_eq!((status, &printout["linearizable"]), (1, &Value::Bool(false)));
    assert_eq!(printout["wrong_keys"], json!([key]));
    assert!(printout["window"]["operations"].as_array().map(Vec::len) < Some(40), "{printout}");
}

/// It read `gone for good 2`: two of them, or the third?
#[test]
fn a_node_that_is_gone_is_called_by_its_number() {
    let args = ["torture", "--seconds", "1", "--clients", "1", "--kill-node", "--seed", "7"];
    let output = swarm(&args).output().expect("the command line can be run");
    let printout = String::from_utf8_lossy(&output.stdout).into_owned();
    let node = printout.split("gone for good: node ").nth(1).and_then(|rest| rest.lines().next());
    assert!(["0", "1", "2"].map(Some).contains(&node), "{printout}");
    let output = swarm(&args[..5]).output().expect("the command line can be run");
    let printout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printout.contains("gone for good: none\n"), "{printout}");
}

#[test]
fn a_pool_that_is_there_is_left_as_it_was() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["mine", "value"]), 0);
    let args = ["torture", pool.path(), "--seconds", "1", "--clients", "2", "--freeze-node"];
    let printout = json(&[&args[..], &["--json"]].concat());
    assert_eq!(printout["linearizable"], true);
    assert_eq!(pool.output("export", &[]), b"mine\tvalue\n");
    assert_eq!(temporary_pools(std::process::id()), Vec::<std::path::PathBuf>::new());
}

/// What others have put in leaves no room for a client's first chunks. That was called linearizable, by eleven
/// operations.
#[test]
fn a_full_pool_ends_it_early_without_a_verdict() {
    let pool = TestPool::absent();
    let made = swarm(&["create", pool.path(), "--capacity", "8MiB", "--max-clients", "8"]).output();
    assert!(made.expect("the command line can be run").status.success());
    for size in [60_000, 6000, 600, 60, 6] {
        let value = "x".repeat(size);
        let lines: String = (0..2000).map(|key| format!("{size}-{key}\t{value}\n")).collect();
        // It ends where the pool is full.
        let import = swarm(&["import", pool.path(), "-"]).write_stdin(lines).output();
        assert_eq!(import.expect("the command line can be run").status.code(), Some(3));
    }
    let args = ["torture", pool.path(), "--seconds", "20", "--clients", "2", "--json"];
    let output = swarm(&args).output().expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("no verdict: the pool was full after"), "{printed}");
    let printout: Value = serde_json::from_slice(&output.stdout).expect("it prints one JSON value");
    assert_eq!((&printout["linearizable"], &printout["pool_full"]), (&Value::Null, &json!(true)));
    assert!(
        printout["no_verdict"].as_str().is_some_and(|why| why.contains("more room")),
        "{printout}"
    );
    // Clients that did not wait for the others had ended before they were to begin, after no time at all.
    assert!((0.0..15.0).contains(&printout["seconds"].as_f64().unwrap_or(0.0)), "{printout}");
    // What takes no memory is served all the same.
    assert_eq!(printout["live"]["unserved"], Value::Null, "{printout}");
    // Where clients are stopped they go on, as what those hold back comes again. Here nothing does: that the last writes
    // are refused, too, is no failure.
    let args =
        ["torture", pool.path(), "--seconds", "2", "--clients", "2", "--stop-clients", "--json"];
    let output = swarm(&args).output().expect("the command line can be run");
    let printout: Value = serde_json::from_slice(&output.stdout).expect("it prints one JSON value");
    assert_ne!(output.status.code(), Some(1), "{printout}");
    assert_eq!(
        (&printout["pool_full"], &printout["live"]["unserved"]),
        (&json!(true), &Value::Null),
        "{printout}"
    );
}

/// Programs use a pool's memory themselves, by another path than the one on which nodes can be taken away: no
/// processes had been on it. A client that is stopped in the middle of an operation goes on when the others have
/// done thousands.
#[test]
fn what_clients_of_near_memory_see_is_linearizable() {
    let args = ["--near", "--clients", "4", "--keys", "3", "--kill-clients", "--stop-clients"];
    torture(&args, |printout| more_than(printout, &[("/kills", 1), ("/stops", 1)]));
}

/// Every node freezes, thaws, goes down and comes back, one at a time.
#[test]
fn nodes_go_and_come_one_after_the_other() {
    let args = ["--clients", "3", "--roll-nodes", "--stop-clients"];
    torture(&args, |printout| more_than(printout, &[("/freezes", 1), ("/downs", 0)]));
}

/// All clients that were left got what they asked for when nothing failed any more.
fn are_served(printout: &Value) {
    let live = &printout["live"];
    assert_eq!(live["unserved"], Value::Null, "{printout}");
    assert!(live["operations"].as_u64() > Some(0), "{printout}");
    assert!(live["most_roundtrips"].as_u64() > Some(0), "{printout}");
}

#[test]
fn near_nodes_cannot_be_taken_away() {
    for flag in ["--kill-node", "--freeze-node", "--roll-nodes"] {
        let output = swarm(&["torture", "--near", "--seconds", "1", flag]).output();
        assert_eq!(output.expect("the command line can be run").status.code(), Some(2), "{flag}");
    }
}

/// Timestamps end half a second after a register's birth: all keys move all the time, under clients
/// that die. An insert over a deleted key begins with a register of its own, so that of a few keys none
/// lives long enough: there are as many as the machine does operations in a fifth of a second.
#[test]
fn keys_that_move_every_second_are_linearizable() {
    let pool = TestPool::absent();
    let size = ["--capacity", "64MiB", "--max-clients", "16", "--pointer-bits", "39"];
    let made = swarm(&[&["create", pool.path()][..], &size].concat()).output();
    assert!(made.expect("the command line can be run").status.success());
    let of_keys = |keys: u64, is_enough: fn(&Value) -> bool| {
        let keys = keys.to_string();
        let args = [pool.path(), "--keys", &keys, "--clients", "3", "--kill-clients"];
        torture(&args, is_enough)
    };
    let number = |printout: &Value, name: &str| printout[name].as_u64().expect("a number");
    let first = of_keys(1000, |_| true);
    let a_second = number(&first, "operations") as f64 / first["seconds"].as_f64().expect("some");
    let printout = of_keys((a_second as u64 / 5).clamp(50, 20_000), |printout| {
        more_than(printout, &[("/operations", 1000), ("/kills", 3)])
    });
    // One operation in ten or so; where timestamps last for hours it is one in sixty at most, as
    // values outgrow their places.
    assert!(40 * number(&printout, "moved") > number(&printout, "operations"), "{printout}");
}

#[test]
fn doctored_histories_are_not_linearizable() {
    let put = |value, times| line(1, "put", Some(value), times, "ok");
    let get = |times, printed| line(2, "get", None, times, printed);
    let histories = [
        ("a stale read", put("a", (1, 2)) + &put("b", (3, 4)) + &get((5, 6), "a")),
        (
            "a lost update",
            put("a", (1, 2)) + &line(3, "update", Some("b"), (3, 4), "ok") + &get((5, 6), "a"),
        ),
        (
            "two inserts that both succeed",
            line(1, "insert", Some("a"), (1, 5), "ok")
                + &line(2, "insert", Some("b"), (2, 6), "ok"),
        ),
        ("a value that nobody wrote", put("a", (1, 2)) + &get((3, 4), "x")),
        ("a read before its write", get((1, 2), "a") + &put("a", (3, 4))),
        (
            "an insert refused where nothing is",
            line(1, "delete", None, (1, 2), "ok") + &line(2, "insert", Some("a"), (3, 4), "exists"),
        ),
        (
            "a write of unknown outcome that is seen, then not",
            line(1, "put", Some("a"), (1, 0), "unknown")
                + &get((2, 3), "a")
                + &get((4, 5), "absent"),
        ),
    ];
    for (what, history) in histories {
        let (status, printout) = check(&history, &[]);
        assert_eq!(status, 1, "{what}: {printout}");
        assert!(printout.contains("\"k\" is not linearizable"), "{what}: {printout}");
    }
}

/// A line of a cas or an incr, as `check --help` says.
fn change(client: u32, op: &str, fields: Value, times: (u64, u64)) -> String {
    let mut line = json!({
        "client": client, "op": op, "key": "k", "call_ns": times.0, "return_ns": times.1, "read": null,
    });
    let all = line.as_object_mut().expect("it is one");
    all.extend(fields.as_object().expect("it is one").clone());
    format!("{line}\n")
}

#[test]
fn changes_that_go_wrong_are_not_linearizable() {
    let put = line(1, "put", Some("5"), (1, 2), "ok");
    let get = |value| line(9, "get", None, (20, 21), value);
    let cas = |client, new, outcome, read: Value, times| {
        let fields = json!({"expected": "5", "value": new, "outcome": outcome, "read": read});
        change(client, "cas", fields, times)
    };
    let incr = |client, by, sum, times| {
        change(client, "incr", json!({"value": by, "outcome": "ok", "read": sum}), times)
    };
    let expiring = |ttl: u64| {
        let fields = json!({"value": "7", "ttl_ns": ttl, "outcome": "ok"});
        change(1, "put_with_ttl", fields, (1, 2))
    };
    let persist =
        |outcome| change(2, "persist", json!({"value": null, "outcome": outcome}), (3, 4));
    let ttl =
        |read| change(2, "ttl", json!({"value": null, "outcome": "ok", "read": read}), (5, 6));
    let won = cas(2, "a", "ok", Value::Null, (3, 10));
    let lost = |found: &str| cas(3, "b", "exists", json!(found), (4, 11));
    for right in [
        put.clone() + &won + &lost("a") + &get("a"),
        put.clone() + &incr(2, "1", "6", (3, 10)) + &incr(3, "7", "13", (4, 11)) + &get("13"),
        put.clone() + &incr(2, "1", "6", (3, 10)) + &cas(3, "b", "exists", json!("6"), (11, 12)),
        expiring(18) + &get("absent"),
        expiring(19) + &persist("ok") + &get("7"),
        expiring(100) + &ttl("expires") + &get("7"),
    ] {
        let (status, printout) = check(&right, &[]);
        assert_eq!(status, 0, "{right}: {printout}");
    }
    for (what, wrong) in [
        ("a cas that is lost and took effect", put.clone() + &won + &lost("a") + &get("b")),
        ("two of which one is lost", put.clone() + &won + &cas(3, "b", "ok", Value::Null, (4, 11))),
        ("a lost update", put.clone() + &incr(2, "1", "6", (3, 10)) + &get("5")),
        (
            "a lost increment",
            put.clone() + &incr(2, "1", "6", (3, 10)) + &incr(3, "7", "12", (4, 11)),
        ),
        ("an increment applied twice", put + &incr(2, "1", "6", (3, 10)) + &get("7")),
        ("what has expired too early", expiring(21) + &get("absent")),
        ("what has expired although it was to stay", expiring(9) + &persist("ok") + &get("absent")),
        ("what stays that expires", expiring(100) + &ttl("stays")),
        ("what expires that stays", expiring(100) + &persist("ok") + &ttl("expires")),
    ] {
        let (status, printout) = check(&wrong, &[]);
        assert_eq!(status, 1, "{what}: {printout}");
        assert!(printout.contains("\"k\" is not linearizable"), "{what}: {printout}");
    }
}

#[test]
fn right_histories_are_linearizable() {
    let get = |times, printed| line(2, "get", None, times, printed);
    let dead = line(1, "put", Some("a"), (1, 0), "unknown");
    for history in [
        dead.clone() + &get((2, 3), "absent") + &get((4, 5), "a"),
        dead + &get((2, 3), "absent"),
        line(1, "insert", Some("a"), (1, 5), "ok")
            + &line(2, "insert", Some("b"), (2, 6), "ok")
            + &line(3, "delete", None, (1, 7), "ok"),
    ] {
        let (status, printout) = check(&history, &[]);
        assert_eq!(status, 0, "{history}: {printout}");
    }
}

#[test]
fn what_is_no_history_is_refused() {
    let good = line(1, "put", Some("a"), (1, 2), "ok");
    for bad in ["garbage", "{}", "[1,2]", "null", "{\"client\":1", "\u{0}\u{1}"] {
        let (status, printout) = check(&format!("{good}{bad}\n{good}"), &[]);
        assert_eq!(status, 3, "{bad}: {printout}");
        assert!(printout.contains("line 2"), "{bad}: {printout}");
    }
    // A field that was left out is not null: a write that answered in time would be one that never did.
    for field in ["client", "op", "key", "value", "call_ns", "return_ns", "outcome", "read"] {
        let mut less: Value = serde_json::from_str(&good).expect("it is JSON");
        less.as_object_mut().and_then(|line| line.remove(field)).expect("all fields are there");
        let (status, printout) = check(&format!("{good}{less}\n{good}"), &[]);
        assert_eq!(status, 3, "{field}: {printout}");
        assert!(
            printout.contains("line 2") && printout.contains(&format!("missing field `{field}`")),
            "{printout}"
        );
    }
    // A line that was cut off.
    let (status, printout) = check(&good[..good.len() / 2], &["--json"]);
    assert!(status == 3 && printout.contains("line 1"), "{printout}");
    let missing = swarm(&["check", "/nowhere/history"]).output();
    assert_eq!(missing.expect("the command line can be run").status.code(), Some(3));
}

/// Fields that contradict the rest of their line were passed over, and with them what had gone wrong where
/// it was written.
#[test]
fn fields_that_contradict_the_others_are_refused() {
    let good = line(1, "put", Some("a"), (1, 2), "ok");
    let with_read = |line: String| {
        let mut line: Value = serde_json::from_str(&line).expect("it is JSON");
        line["read"] = json!("a");
        format!("{line}\n")
    };
    for (bad, why) in [
        (line(1, "get", Some("a"), (3, 4), "a"), "get has a value"),
        (line(1, "get", Some("a"), (3, 4), "absent"), "get has a value"),
        (line(1, "get", Some("a"), (3, 4), "unknown"), "get has a value"),
        (line(1, "delete", Some("a"), (3, 4), "ok"), "delete has a value"),
        (line(1, "delete", Some("a"), (3, 4), "unknown"), "delete has a value"),
        (line(1, "put", Some("b"), (3, 4), "a"), "only a get, swap, incr or ttl that is ok"),
        (
            with_read(line(1, "insert", Some("b"), (3, 4), "exists")),
            "only a get, swap, incr or ttl that is ok",
        ),
        (
            with_read(line(1, "get", None, (3, 4), "absent")),
            "only a get, swap, incr or ttl that is ok",
        ),
        (
            with_read(line(1, "get", None, (3, 4), "unknown")),
            "only a get, swap, incr or ttl that is ok",
        ),
        (
            with_read(line(1, "put", Some("b"), (3, 4), "unknown")),
            "only a get, swap, incr or ttl that is ok",
        ),
    ] {
        let (status, printout) = check(&format!("{good}{bad}{good}"), &[]);
        assert_eq!(status, 3, "{bad}: {printout}");
        assert!(printout.contains("line 2") && printout.contains(why), "{bad}: {printout}");
    }
}

/// A history that was lost is an empty file, and was called linearizable: true of nothing, and of no use.
#[test]
fn a_history_that_holds_nothing_is_no_verdict() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("history");
    std::fs::write(&file, "").expect("it is writable");
    let file = file.to_string_lossy();
    let output = swarm(&["check", &file]).output().expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains(&format!("{file} holds no operation")), "{printed}");
    let (status, printout) = check("\n \n", &["--json"]);
    assert!(
        status == 3 && printout.contains(r#"{"error":"standard input holds no operation"}"#),
        "{printout}"
    );
}

/// In the window that is shown, a control character was a dot, and a value that is called like an outcome was not told from
/// one.
#[test]
fn values_are_shown_as_what_they_are() {
    for (value, shown) in [("\u{1b}.", "\"\\u{1b}.\""), ("absent", "\"absent\""), ("", "\"\"")] {
        let read = json!({
            "client": 2, "op": "get", "key": "k", "value": null, "call_ns": 3, "return_ns": 4,
            "outcome": "ok", "read": value,
        });
        let history = line(1, "put", Some("a"), (1, 2), "ok") + &read.to_string();
        let (status, printout) = check(&history, &[]);
        assert_eq!(status, 1, "{printout}");
        assert!(printout.contains(&format!("-> {shown}  ")), "{printout}");
    }
}

/// The error was that there is no minority, and not why that would be needed. And a client that was refused had
/// lost the history of an earlier run.
#[test]
fn a_single_node_is_not_taken_away() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("history");
    std::fs::write(&file, "of an earlier run").expect("it is writable");
    for flag in ["--kill-node", "--freeze-node", "--roll-nodes"] {
        let path = file.to_string_lossy();
        let args = ["torture", "--nodes", "1", "--seconds", "1", flag, "--history", &path];
        let output = swarm(&args).output().expect("the command line can be run");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains("time-out") && printed.contains("three nodes"), "{printed}");
        assert_eq!(std::fs::read(&file).expect("it is there"), b"of an earlier run");
    }
}

#[test]
fn help_lists_every_exit_status() {
    for command in ["torture", "check", "soak"] {
        let output = swarm(&[command, "--help"]).output().expect("the command line can be run");
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        let list = help.split("Exit status:").nth(1).unwrap_or_default();
        for code in ["0 ", "1 ", "2 wrong usage", "3 "] {
            assert!(list.contains(code), "{command}, {code}: {help}");
        }
    }
}

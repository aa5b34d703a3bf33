//! create, info and destroy; and pools that are not what they should be.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::common::{TestPool, json, swarm, wait_until};

#[test]
fn a_pool_is_made_described_and_removed() {
    let pool = TestPool::absent();
    let made = json(&["create", pool.path(), "--nodes", "5", "--capacity", "8MiB", "--json"]);
    assert_eq!(made["capacity_bytes"], 8 << 20);
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    let info = json(&["info", pool.path(), "--exact", "--json"]);
    assert_eq!(info["nodes"], 5);
    assert_eq!(info["capacity_bytes"], 8 << 20);
    assert_eq!(info["keys"], 1);
    assert_eq!(info["clients"], 0);
    assert!(info["used_bytes"].as_u64() > Some(0));
    assert!(info["layout_version"].as_u64() > Some(0));
    let clock = info["clock"].as_str().expect("what it goes by");
    assert!(["time-stamp counter", "monotonic clock", "wall clock"].contains(&clock), "{clock}");
    let text = String::from_utf8(pool.output("info", &[])).expect("text");
    assert!(text.lines().any(|line| line == format!("{:<16}{clock}", "clock")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(pool.status("destroy", &[]), 0);
    assert_eq!(pool.status("info", &[]), 3);
    assert_eq!(pool.status("destroy", &[]), 3);
}

/// Nothing reported it, and people found out by a crash.
#[test]
fn what_is_left_after_a_crash_is_reported() {
    let pool = TestPool::absent();
    let made = String::from_utf8(pool.output("create", &["--capacity", "4MiB"])).expect("text");
    assert!(made.contains("crash of the host") && made.contains("swarm backup"), "{made}");
    let help = swarm(&["create", "--help"]).output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("text");
    let printout = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in
        ["killed", "crashes", "tmpfs", "disk", "DAX", "reboot", "logout", "RemoveIPC", "Copies"]
    {
        assert!(printout.contains(word), "{word}: {help}");
    }
}

/// Of a large pool as much is counted as can be soon; `info` shows by how much that may be off, and counts all if it is asked to.
#[test]
fn what_a_large_pool_holds_is_estimated() {
    let pool = TestPool::absent();
    assert_eq!(pool.status("create", &["--capacity", "1GiB"]), 0);
    let lines: String = (0..20_000).map(|key| format!("key-{key}\tvalue\n")).collect();
    swarm(&["import", pool.path(), "-"]).write_stdin(lines).assert().code(0);
    let exact = json(&["info", pool.path(), "--exact", "--json"]);
    assert_eq!((&exact["keys"], &exact["exact"]), (&20_000.into(), &true.into()));
    let estimate = json(&["info", pool.path(), "--json"]);
    let number = |name: &str| estimate[name].as_f64().expect("a number");
    assert!(number("counted_share") > 0.0);
    assert!((number("keys") - 20_000.0).abs() <= 5.0 * number("keys_error"), "{estimate}");
    assert_eq!(estimate["used_bytes"], exact["used_bytes"]);
    let text = String::from_utf8(pool.output("info", &[])).expect("text");
    assert_eq!(text.contains("--exact counts all"), text.contains("about"), "{text}");
}

#[test]
fn an_existing_pool_is_not_overwritten() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    assert_eq!(pool.status("create", &["--capacity", "16MiB"]), 3);
    assert_eq!(pool.output("get", &["k"]), b"v");
}

/// Nodes of a NUMA machine are known to the kernel alone, if it has any.
#[test]
fn a_numa_node_that_is_not_there_is_an_error_and_leaves_nothing_behind() {
    let pool = TestPool::absent();
    let node = format!("bind:{}", u32::MAX);
    assert_eq!(pool.status("create", &["--capacity", "4MiB", "--numa", &node]), 3);
    assert!(!fs::exists(pool.path()).expect("its parent is readable"));
    assert_eq!(pool.status("create", &["--capacity", "4MiB", "--numa", "default"]), 0);
}

#[test]
fn numbers_that_cannot_be_are_wrong_usage() {
    let pool = TestPool::absent();
    for bad in [
        ["--nodes", "2"],
        ["--nodes", "0"],
        ["--nodes", "9"],
        ["--nodes", "three"],
        ["--capacity", "0"],
        ["--capacity", "-1MiB"],
        ["--capacity", "12 parsecs"],
        ["--capacity", "1KiB"],
        ["--capacity", "99999999TiB"],
        ["--max-clients", "0"],
        ["--max-clients", "100000"],
        ["--max-clients", "-1"],
        ["--numa", "nowhere"],
        ["--numa", "bind:"],
        ["--numa", "prefer:-1"],
        ["--numa", "interleave:0"],
        ["--colour", "red"],
    ] {
        assert_eq!(pool.status("create", &bad), 2, "{bad:?}");
        assert!(!fs::exists(pool.path()).expect("its parent is readable"), "{bad:?}");
    }
    swarm(&[]).assert().code(2);
    swarm(&["fly"]).assert().code(2);
    swarm(&["--help"]).assert().code(0);
}

/// What it asked for was refused in turn.
#[test]
fn a_pool_that_is_too_small_for_its_clients_is_refused_with_a_size_that_does() {
    let pool = TestPool::absent();
    let create = |capacity: &str| {
        let made = ["create", pool.path(), "--max-clients", "1024", "--capacity", capacity];
        swarm(&[&made[..], &["--nodes", "1", "--json"]].concat()).assert()
    };
    let refused = create("4MiB").code(2);
    let printed = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    let needed = printed.split("give it at least ").nth(1).and_then(|rest| rest.split(' ').next());
    let made = create(needed.expect("how much")).success();
    let made: serde_json::Value =
        serde_json::from_slice(&made.get_output().stdout).expect("an object");
    assert_eq!(made["writing_clients"], 1024, "they need little: {made}");
}

#[test]
fn a_pool_without_room_is_a_failure_and_leaves_nothing() {
    let pool = TestPool::absent();
    assert_eq!(pool.status("create", &["--capacity", "15TiB"]), 3);
    assert!(!fs::exists(pool.path()).expect("its parent is readable"));
}

/// Files and all, it exited with 3 and named one that was never there.
#[test]
fn a_capacity_that_is_no_multiple_is_wrong_usage() {
    let pool = TestPool::absent();
    let failed = swarm(&["create", pool.path(), "--capacity", "4194305"]).assert().code(2);
    let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(printed.contains("a multiple of 8 bytes") && printed.contains("4194312"), "{printed}");
    assert!(
        !printed.contains("node-0") && !fs::exists(pool.path()).expect("its parent is readable")
    );
}

/// The command line in a shell that sets a limit first.
fn limited(limit: &str, args: &[&str]) -> std::process::Output {
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("{limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_swarm")]);
    shell.args(args).output().expect("a shell")
}

/// It died of SIGXFSZ, and left files.
#[test]
fn a_limit_of_files_sizes_is_named() {
    let pool = TestPool::absent();
    for limit in ["ulimit -f 4096", "ulimit -f 16"] {
        let failed = limited(limit, &["create", pool.path(), "--capacity", "16MiB"]);
        let printed = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(3), "{printed}");
        assert!(printed.contains("ulimit -f"), "{printed}");
        assert!(!fs::exists(pool.path()).expect("its parent is readable"));
    }
}

#[test]
fn a_limit_of_open_files_is_named() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    let mut refused = 0;
    for limit in 4..20 {
        let output =
            limited(&format!("ulimit -n {limit}"), &["get", pool.path(), "k", "--degraded"]);
        let printed = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            assert_eq!((&output.stdout[..], &printed[..]), (&b"v"[..], ""), "{limit}");
            break;
        }
        assert_eq!(output.status.code(), Some(3), "{limit}: {printed}");
        assert!(printed.contains("ulimit -n"), "{limit}: {printed}");
        refused += 1;
    }
    assert!(refused > 0, "one of them is too low");
}

/// A control group that limits memory. It is removed with the value, once nobody is in it.
struct MemoryGroup {
    directory: PathBuf,
    limit: PathBuf,
}

impl MemoryGroup {
    /// One of this size, without swap, where this test may make such.
    fn of(bytes: u64) -> Option<Self> {
        let versions = [
            ("memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", bytes),
            ("", "memory.max", "memory.swap.max", 0),
        ];
        versions.into_iter().find_map(|(controller, limit, swap, least)| {
            let name = format!("swarm-test-memory-{}", std::process::id());
            let directory = Path::new("/sys/fs/cgroup").join(controller).join(name);
            fs::create_dir(&directory).ok()?;
            let group = Self { limit: directory.join(limit), directory };
            // Where the kernel puts no such file, nothing is limited.
            let is_there = |file: &Path| file.exists().then_some(());
            is_there(&group.limit)?;
            fs::write(&group.limit, bytes.to_string()).ok()?;
            let swap = group.directory.join(swap);
            is_there(&swap).map_or(Some(()), |()| fs::write(&swap, least.to_string()).ok())?;
            Some(group)
        })
    }

    /// The command line in this group.
    fn run(&self, args: &[&str]) -> Output {
        let enter = format!("echo $$ > '{}/cgroup.procs'", self.directory.display());
        limited(&enter, args)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let is_gone = || fs::remove_dir(&self.directory).is_ok();
        for _ in 0..1000 {
            if is_gone() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// The kernel killed it without a word, and its files stayed.
#[test]
fn a_control_group_that_is_too_small_is_named() {
    const LIMIT: u64 = 64 << 20;
    let shared_memory = Path::new("/dev/shm");
    let group = shared_memory.is_dir().then(|| MemoryGroup::of(LIMIT)).flatten();
    let Some(group) = group else {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        assert!(!required, "no control group that limits memory can be made here");
        let _ = writeln!(std::io::stderr(), "SKIPPED a_control_group_that_is_too_small_is_named");
        return;
    };
    let directory = tempfile::tempdir_in(shared_memory).expect("a directory");
    let pool = directory.path().join("pool");
    let pool = pool.to_str().expect("a path in UTF-8");
    let failed = group.run(&["create", pool, "--capacity", "64MiB"]);
    let printed = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(3), "{printed}");
    assert!(printed.contains(&*group.limit.to_string_lossy()), "{printed}");
    assert!(
        printed.contains(&(3 * LIMIT).to_string()) && printed.contains(&LIMIT.to_string()),
        "{printed}"
    );
    assert!(!fs::exists(pool).expect("its parent is readable"));
    let made = group.run(&["create", pool, "--capacity", "4MiB"]);
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(group.run(&["destroy", pool]).status.code(), Some(0));
}

#[test]
fn every_command_refuses_what_is_no_pool() {
    let pool = TestPool::absent();
    let every: [(&str, &[&str]); 9] = [
        ("info", &[]),
        ("destroy", &[]),
        ("get", &["k"]),
        ("put", &["k", "v"]),
        ("insert", &["k", "v"]),
        ("update", &["k", "v"]),
        ("delete", &["k"]),
        ("import", &["-"]),
        ("export", &[]),
    ];
    for (command, args) in every {
        assert_eq!(pool.status(command, args), 3, "{command} where nothing is");
    }
    fs::create_dir(pool.path()).expect("its parent is writable");
    fs::write(format!("{}/letter", pool.path()), "dear").expect("it is writable");
    for (command, args) in every {
        assert_eq!(pool.status(command, args), 3, "{command} on another directory");
    }
    let letter = fs::read_to_string(format!("{}/letter", pool.path()));
    assert_eq!(letter.expect("it is still there"), "dear");
}

#[test]
fn a_damaged_pool_is_a_failure_that_names_the_file() {
    type Harm = fn(&str);
    let damage: [(&str, Harm); 5] = [
        ("control", |file| fs::remove_file(file).expect("it is there")),
        ("node-1", |file| fs::write(file, "not a node").expect("it is writable")),
        ("node-2", |file| fs::remove_file(file).expect("it is there")),
        ("node-0", |file| {
            let file = OpenOptions::new().write(true).open(file).expect("it is there");
            file.set_len(4096).expect("it can be cut");
        }),
        ("node-1", |file| {
            let file = OpenOptions::new().write(true).open(file).expect("it is there");
            file.write_all_at(&[0xff; 64], 0).expect("it is writable");
        }),
    ];
    for (name, harm) in damage {
        let pool = TestPool::create();
        assert_eq!(pool.status("put", &["k", "v"]), 0);
        harm(&format!("{}/{name}", pool.path()));
        let failed = swarm(&["get", pool.path(), "k"]).assert().code(3);
        let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(printed.starts_with("swarm: ") && printed.contains(name), "{name}: {printed}");
        let failed = swarm(&["get", pool.path(), "k", "--json"]).assert().code(3);
        let printed: serde_json::Value =
            serde_json::from_slice(&failed.get_output().stdout).expect("it is JSON");
        assert!(printed["error"].is_string());
    }
}

/// The nodes in front of the damaged one were gone when it was found.
#[test]
fn a_damaged_pool_is_destroyed_by_force_alone() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    let node = format!("{}/node-2", pool.path());
    let whole = fs::read(&node).expect("it is there");
    fs::write(&node, "not a node").expect("it is writable");
    let failed = swarm(&["destroy", pool.path()]).assert().code(3);
    let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(printed.contains("node-2") && printed.contains("use force"), "{printed}");
    fs::write(&node, whole).expect("it is writable");
    assert_eq!(pool.output("get", &["k"]), b"v");
    fs::write(&node, "not a node").expect("it is writable");
    assert_eq!(pool.status("destroy", &["--force"]), 0);
    assert!(!fs::exists(pool.path()).expect("its parent is readable"));
}

/// Garbage in all nodes was reported without the pool's name, and as anything but damage.
#[test]
fn damaged_memory_is_a_failure_that_names_the_pool() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    for node in 0..3 {
        let file = format!("{}/node-{node}", pool.path());
        let file = OpenOptions::new().write(true).open(file).expect("it is there");
        file.write_all_at(&vec![0xa5; (16 << 20) - 4096], 4096).expect("it is writable");
    }
    let every: [(&str, &[&str]); 6] = [
        ("info", &[]),
        ("export", &[]),
        ("get", &["k"]),
        ("put", &["k", "w"]),
        ("insert", &["l", "w"]),
        ("delete", &["k"]),
    ];
    for (command, args) in every {
        let failed = swarm(&[&[command, pool.path()], args].concat()).assert().code(3);
        let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(printed.starts_with(&format!("swarm: {}: ", pool.path())), "{command}: {printed}");
        assert!(
            printed.contains("damaged") && printed.contains("into a new pool"),
            "{command}: {printed}"
        );
    }
}

#[test]
fn a_full_pool_is_a_failure_that_names_it_and_its_capacity() {
    let pool = TestPool::absent();
    let made = ["create", pool.path(), "--capacity", "4MiB", "--max-clients", "1"];
    let made = swarm(&made).assert().success();
    let printed = String::from_utf8_lossy(&made.get_output().stdout).into_owned();
    let of = "3 memory nodes of 4.0 MiB, for up to 1 client; memory for all of them to write\n";
    assert!(printed.contains(of), "{printed}");
    let lines: String = (0..100).map(|n| format!("{n}\t{}\n", "v".repeat(100_000))).collect();
    let failed = swarm(&["import", pool.path(), "-"]).write_stdin(lines).assert().code(3);
    let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(printed.starts_with("swarm: line "), "{printed}");
    assert!(printed.contains(&format!(": {}: the pool is full", pool.path())), "{printed}");
    assert!(
        printed.contains(" 4194304 bytes ") && printed.contains("export and import"),
        "{printed}"
    );
}

/// It needed a slot, and failed just when someone asked why others failed.
#[test]
fn a_pool_is_described_when_all_its_slots_are_taken() {
    let pool = TestPool::absent();
    swarm(&["create", pool.path(), "--capacity", "4MiB", "--max-clients", "1"]).assert().success();
    let client = swarm_kv::shm::open_path(pool.path()).expect("the only slot");
    client.blocking().put(b"k", b"v").expect("put");
    assert_eq!(pool.status("get", &["k"]), 3);
    let info = json(&["info", pool.path(), "--exact", "--json"]);
    assert_eq!((&info["keys"], &info["clients"]), (&1.into(), &1.into()));
}

/// A command line that cannot go on without a lost minority would be down where the pool is not.
#[test]
fn a_pool_goes_on_without_a_minority_if_asked_to() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    fs::remove_file(format!("{}/node-1", pool.path())).expect("it is there");
    assert_eq!(pool.status("get", &["k"]), 3);
    assert_eq!(pool.output("get", &["k", "--degraded"]), b"v");
    assert_eq!(pool.status("put", &["k", "w", "--degraded"]), 0);
    assert_eq!(pool.status("insert", &["l", "x", "--degraded"]), 0);
    assert_eq!(pool.output("export", &["--degraded"]).split(|b| *b == b'\n').count(), 3);
    assert_eq!(pool.output("get", &["k", "--degraded"]), b"w");
    assert_eq!(json(&["info", pool.path(), "--degraded", "--exact", "--json"])["keys"], 2);
    fs::remove_file(format!("{}/node-2", pool.path())).expect("it is there");
    let failed = swarm(&["get", pool.path(), "k", "--degraded"]).assert().code(3);
    let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    assert!(printed.contains("majority gone: the files of 2 of 3"), "{printed}");
}

/// What a damaged file took with it was the pool, until somebody removed the file.
#[test]
fn a_pool_goes_on_without_a_damaged_node_and_names_it() {
    type Harm = fn(&str);
    let harms: [(Harm, &str); 3] = [
        (
            |file| fs::write(file, "not a node".repeat(100)).expect("writable"),
            "is no file of a pool",
        ),
        (|file| fs::write(file, "").expect("it is writable"), "its length is 0"),
        (|file| fs::remove_file(file).expect("it is there"), "is missing"),
    ];
    for (harm, why) in harms {
        let pool = TestPool::create();
        assert_eq!(pool.status("put", &["k", "v"]), 0);
        harm(&format!("{}/node-1", pool.path()));
        assert_eq!(pool.status("get", &["k"]), 3);
        let got = swarm(&["get", pool.path(), "k", "--degraded"]).assert().success();
        let printed = String::from_utf8_lossy(&got.get_output().stderr).into_owned();
        assert_eq!(got.get_output().stdout, b"v");
        assert!(
            printed.starts_with("going on without node 1: ") && printed.contains(why),
            "{printed}"
        );
        let info = json(&["info", pool.path(), "--degraded", "--json"]);
        let wrong = |node: usize| info["memory_nodes"][node]["wrong"].clone();
        assert!(wrong(0).is_null() && wrong(2).is_null(), "{info}");
        assert!(wrong(1).as_str().is_some_and(|printed| printed.contains(why)), "{info}");
        let text = String::from_utf8(pool.output("info", &["--degraded"])).expect("text");
        assert!(text.contains("3, of which 0, 2 are there") && text.contains(why), "{text}");
    }
}

/// `get`, `create`, `destroy` and `destroy --force` contradicted each other.
#[test]
fn a_pool_without_its_control_file_is_one_story() {
    let pool = TestPool::create();
    fs::remove_file(format!("{}/control", pool.path())).expect("it is there");
    let calls: [&[&str]; 3] = [
        &["get", pool.path(), "k"],
        &["create", pool.path(), "--capacity", "16MiB"],
        &["destroy", pool.path()],
    ];
    let printed = calls.map(|call| {
        let failed = swarm(call).assert().code(3);
        String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
    });
    assert!(printed[0].contains("control: is missing") && printed[0].contains("destroy --force"));
    assert!(printed.iter().all(|other| *other == printed[0]), "{printed:?}");
    assert_eq!(pool.status("destroy", &["--force"]), 0);
    assert!(!fs::exists(pool.path()).expect("its parent is readable"));
}

/// Its directory stayed, and nothing reported that.
#[test]
fn what_stays_of_a_destroyed_pool_is_reported() {
    let pool = TestPool::create();
    fs::write(format!("{}/letter", pool.path()), "dear").expect("it is writable");
    let text = String::from_utf8(pool.output("destroy", &[])).expect("text");
    assert!(text.contains("removed the pool in") && text.contains(" stays: something"), "{text}");
    assert_eq!(pool.status("create", &["--capacity", "16MiB"]), 0);
    let printed = json(&["destroy", pool.path(), "--json"]);
    assert!(printed["left"]["directory"].is_string(), "{printed}");
    assert_eq!(pool.status("create", &["--capacity", "16MiB"]), 0);
    fs::remove_file(format!("{}/letter", pool.path())).expect("it is there");
    let printed = json(&["destroy", pool.path(), "--json"]);
    assert!(printed["left"].is_null() && printed["done"] == true, "{printed}");
}

/// Standard output on a full device was a panic.
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "v"]), 0);
    let calls: [&[&str]; 6] = [
        &["info", pool.path()],
        &["info", pool.path(), "--exact", "--json"],
        &["get", pool.path(), "k", "--json"],
        &["get", pool.path(), "absent", "--json"],
        &["put", pool.path(), "k", "v", "--json"],
        &["export", pool.path(), "--json"],
    ];
    for call in calls {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_swarm"))
            .args(call)
            .stdout(full)
            .output()
            .expect("the command line can be run");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{call:?}: {printed}");
        assert!(printed.starts_with("swarm: cannot write the output"), "{call:?}: {printed}");
    }
    let full = OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["get", pool.path(), "absent"])
        .stderr(full)
        .status();
    assert_eq!(status.expect("the command line can be run").code(), Some(1));
}

/// Where nothing was amiss, "4 bad" of RDMA were.
#[test]
fn a_host_of_shared_memory_is_sound() {
    let pool = TestPool::create();
    let printed = json(&["doctor", pool.path(), "--json"]);
    let findings = printed["findings"].as_array().expect("a list");
    let of = |probe: &str| findings.iter().find(|finding| finding["probe"] == probe);
    assert_eq!(printed["bad"], 0, "{printed}");
    for probe in ["/dev/shm", "memory limit", "open files", "RemoveIPC", "clock source", "pool"] {
        assert!(of(probe).is_some(), "{probe}: {printed}");
    }
    assert_eq!(of("pool").expect("it is there")["verdict"], "ok");
    fs::remove_file(format!("{}/control", pool.path())).expect("it is there");
    assert_eq!(pool.status("doctor", &[]), 1);
}

/// Each process that came to put something looked for memory, for as long as nobody gave any back.
#[test]
fn what_nobody_uses_is_given_back_in_whole_chunks() {
    let pool = TestPool::create();
    let client = swarm_kv::shm::open_path(pool.path()).expect("a slot");
    let store = client.blocking();
    let key = |number: usize| number.to_string().into_bytes();
    let stored = (0..).take_while(|&number| store.insert(&key(number), &[1; 9000]).is_ok()).count();
    assert!(stored > 500, "{stored}");
    let gone = || (0..stored).filter(|number| number % 10 != 0);
    gone().for_each(|number| store.delete(&key(number)).expect("a delete"));
    drop(client);
    let gc = json(&["gc", pool.path(), "--json"]);
    let of = |name: &str| gc[name].as_u64().expect("a number");
    assert!(of("garbage_objects") as usize >= gone().count(), "{gc}");
    assert!(
        of("freed_chunks") > of("all_chunks") / 2 && of("freed_chunks") <= of("free_chunks"),
        "{gc}"
    );
    assert_eq!(of("freed_bytes"), of("freed_chunks") * of("chunk_bytes"));
    assert_eq!(gc["held_up"], false);
    let info = json(&["info", pool.path(), "--exact", "--json"]);
    assert_eq!(info["keys"], stored - gone().count());
    let printed = String::from_utf8(pool.output("gc", &[])).expect("text");
    assert!(printed.starts_with("gave back ") && printed.contains(" are free; "), "{printed}");
    // It needs a slot, and all nodes.
    std::fs::remove_file(std::path::Path::new(pool.path()).join("node-2")).expect("a node");
    assert_eq!(pool.status("gc", &[]), 3);
}

/// Somebody else may read a pool's files, and write none of them.
#[test]
fn a_user_with_read_permission_alone_reads() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["key", "value"]), 0);
    assert_eq!(pool.status("put", &["long", &"v".repeat(5000)]), 0);
    let exported = pool.output("export", &[]);
    let path = Path::new(pool.path());
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
    };
    open(path.parent().expect("a directory"), 0o755);
    open(path, 0o755);
    for name in ["control", "node-0", "node-1", "node-2"] {
        open(&path.join(name), 0o444);
    }
    let before: Vec<_> = ["control", "node-1"].map(|name| fs::read(path.join(name))).into();
    // Root may do anything; somebody else has to try, with a copy of the program where he finds it.
    let program = path.with_file_name("swarm");
    fs::copy(env!("CARGO_BIN_EXE_swarm"), &program).expect("room for it");
    open(&program, 0o755);
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(args);
        if OpenOptions::new().write(true).open(path.join("control")).is_ok() {
            command.uid(65534).gid(65534);
        }
        command.output()
    };
    let get = run(&["get", pool.path(), "key"]);
    let Ok(get) = get else {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        assert!(!required, "the program cannot be run as another user here");
        let _ = writeln!(std::io::stderr(), "SKIPPED a_user_with_read_permission_alone_reads");
        return;
    };
    let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((get.status.code(), &get.stdout[..]), (Some(0), &b"value"[..]), "{}", printed(&get));
    assert!(printed(&get).contains("reading alone"), "{}", printed(&get));
    let run = |args: &[&str]| run(args).expect("as before");
    assert_eq!(run(&["get", pool.path(), "absent"]).status.code(), Some(1));
    let export = run(&["export", pool.path()]);
    assert_eq!(export.status.code(), Some(0), "{}", printed(&export));
    assert_eq!(export.stdout, exported);
    let info = run(&["info", pool.path()]);
    assert_eq!(info.status.code(), Some(0), "{}", printed(&info));
    assert!(String::from_utf8_lossy(&info.stdout).contains("keys"));
    assert_eq!(run(&["keys", pool.path(), "lo"]).stdout, b"long\n");
    assert_eq!(run(&["info", "--verify", pool.path()]).status.code(), Some(0));
    let put = run(&["put", pool.path(), "key", "another"]);
    assert_eq!(put.status.code(), Some(3));
    assert!(printed(&put).contains("no permission"), "{}", printed(&put));
    let after: Vec<_> = ["control", "node-1"].map(|name| fs::read(path.join(name))).into();
    for (before, after) in before.into_iter().zip(after) {
        assert!(before.expect("ours") == after.expect("ours"), "nothing was written");
    }
}

/// Clients elsewhere go on writing.
#[test]
fn a_pool_on_a_read_only_mount_is_read() {
    let pool = TestPool::create();
    let client = swarm_kv::shm::open_path(pool.path()).expect("a slot");
    client.blocking().put(b"key", b"value").expect("memory");
    let run = |program: &str, args: &[&str]| {
        let script =
            "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && shift && exec \"$@\"";
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", pool.path(), program]).args(args);
        command.output()
    };
    if !run("true", &[]).is_ok_and(|output| output.status.success()) {
        let required = std::env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
        assert!(!required, "no mount can be made read-only here");
        let _ = writeln!(std::io::stderr(), "SKIPPED a_pool_on_a_read_only_mount_is_read");
        return;
    }
    let run = |args: &[&str]| run(env!("CARGO_BIN_EXE_swarm"), args).expect("as before");
    let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let get = run(&["get", pool.path(), "key"]);
    assert_eq!((get.status.code(), &get.stdout[..]), (Some(0), &b"value"[..]), "{}", printed(&get));
    assert!(printed(&get).contains("read-only mount"), "{}", printed(&get));
    client.blocking().put(b"key", b"another").expect("memory");
    assert_eq!(run(&["get", pool.path(), "key"]).stdout, b"another");
    assert_eq!(run(&["export", pool.path()]).stdout, b"key\tanother\n");
    assert_eq!(run(&["keys", pool.path()]).stdout, b"key\n");
    assert_eq!(run(&["info", pool.path()]).status.code(), Some(0));
    let put = run(&["put", pool.path(), "key", "third"]);
    assert_eq!(put.status.code(), Some(3));
    assert!(printed(&put).contains("Read-only file system"), "{}", printed(&put));
}

/// All client slots are taken, and this user may write.
#[test]
fn a_pool_is_read_alone_if_that_is_asked_for() {
    let pool = TestPool::absent();
    swarm(&["create", pool.path(), "--capacity", "4MiB", "--max-clients", "1"]).assert().success();
    let client = swarm_kv::shm::open_path(pool.path()).expect("the only slot");
    client.blocking().put(b"key", b"value").expect("memory");
    let image = || {
        let files = ["control", "node-0", "node-1", "node-2"].into_iter();
        files
            .map(|name| fs::read(Path::new(pool.path()).join(name)).expect("ours"))
            .collect::<Vec<_>>()
    };
    let before = image();
    for (command, args, right) in [
        ("get", &["key"][..], "value"),
        ("export", &[], "key\tvalue\n"),
        ("keys", &["k"], "key\n"),
        ("keys", &["x"], ""),
    ] {
        assert_eq!(pool.status(command, args), 3, "{command}: no slot is free");
        let args = [&[command, pool.path(), "--read-only"], args].concat();
        let printed = swarm(&args).assert().code(0);
        assert_eq!(String::from_utf8_lossy(&printed.get_output().stdout), right, "{command}");
        assert!(printed.get_output().stderr.is_empty(), "{command}");
    }
    assert_eq!(pool.status("get", &["--read-only", "absent"]), 1);
    assert_eq!(pool.status("info", &["--read-only", "--verify"]), 0);
    let info = json(&["info", pool.path(), "--read-only", "--exact", "--json"]);
    assert_eq!(info["keys"], 1);
    assert!(before == image(), "nothing was written");
    assert_eq!(
        swarm(&["get", "rdma:nodes.toml", "key", "--read-only"])
            .output()
            .expect("it runs")
            .status
            .code(),
        Some(2)
    );
}

/// Cut short under a process that has it open, and puts more. It died of SIGBUS.
#[test]
fn files_that_are_cut_short_end_no_process() {
    for (file, status) in [("node-1", Some(0)), ("control", Some(3))] {
        let pool = TestPool::create();
        let mut import = std::process::Command::new(env!("CARGO_BIN_EXE_swarm"))
            .args(["import", pool.path(), "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command line can be run");
        let mut lines = import.stdin.take().expect("its input");
        lines.write_all(b"before\tvalue\n").expect("it listens");
        wait_until("the first line is stored", || pool.output("get", &["before"]) == b"value");
        let cut = OpenOptions::new().write(true).open(Path::new(pool.path()).join(file));
        cut.expect("it is there").set_len(0).expect("it is ours");
        lines.write_all(b"behind\tvalue\n").expect("it listens");
        drop(lines);
        let output = import.wait_with_output().expect("it ends");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), status, "{file}: {printed}");
        if file == "control" {
            assert!(printed.contains("control file was cut short"), "{printed}");
            continue;
        }
        for key in ["before", "behind"] {
            assert_eq!(pool.output("get", &["--degraded", key]), b"value");
        }
        assert_eq!(pool.status("get", &["before"]), 3, "not without being asked to");
    }
}

/// A build without RDMA offers nothing that needs it.
#[test]
fn help_offers_rdma_where_it_is_built_in() {
    for (command, offers) in
        [("doctor", ["--rdma", "--static"]), ("evict", ["rdma:", "nodes.toml"])]
    {
        let help = swarm(&[command, "--help"]).output().expect("it runs").stdout;
        let help = String::from_utf8(help).expect("text");
        for offer in offers {
            assert_eq!(help.contains(offer), cfg!(feature = "rdma"), "{command}, {offer}: {help}");
        }
    }
}

//! What the tests of the command line share.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

/// The command line with these arguments.
pub(crate) fn swarm(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(args);
    command
}

/// A pool that goes when this is dropped.
pub(crate) struct TestPool {
    directory: tempfile::TempDir,
    path: String,
}

impl TestPool {
    /// A small pool of three nodes.
    pub(crate) fn create() -> Self {
        let pool = Self::absent();
        swarm(&["create", pool.path(), "--capacity", "16MiB", "--max-clients", "8"])
            .assert()
            .success();
        pool
    }

    /// The place for a pool.
    pub(crate) fn absent() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("pool").to_string_lossy().into_owned();
        Self { directory, path }
    }

    /// Where the pool lies.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// A file beside the pool.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command on the pool and gives back its exit status.
    pub(crate) fn status(&self, command: &str, args: &[&str]) -> i32 {
        let output = swarm(&[&[command, self.path()], args].concat()).output();
        let output = output.expect("the command line can be run");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!printed.contains("panicked"), "{command} {args:?}: {printed}");
        output.status.code().expect("it was not killed")
    }

    /// The bytes that a command on the pool prints.
    pub(crate) fn output(&self, command: &str, args: &[&str]) -> Vec<u8> {
        let output = swarm(&[&[command, self.path()], args].concat()).output();
        output.expect("the command line can be run").stdout
    }
}

/// The JSON object that a command prints.
pub(crate) fn json(args: &[&str]) -> Value {
    let output = swarm(args).output().expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {printed}");
    serde_json::from_slice(&output.stdout).expect("it prints one JSON value")
}

/// The temporary pools of this process.
pub(crate) fn temporary_pools(process: u32) -> Vec<PathBuf> {
    let prefix = format!("swarm-temporary-{process}-");
    [PathBuf::from("/dev/shm"), std::env::temp_dir()]
        .iter()
        .flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect()
}

/// What has not come about by then never will, however busy the machine is.
const HANGS: Duration = Duration::from_secs(120);

/// Waits for something that is to come about soon.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANGS, "in {HANGS:?} it was not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

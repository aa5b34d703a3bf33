//! What the tests share.

use std::env;
use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::task::{Context, Poll, Waker};

use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::NodeId;
use swarm_shm::{CreateOptions, Pool};

/// Gives a re-executed test its role as a child.
pub(crate) const ROLE: &str = "SWARM_SHM_TEST_ROLE";
/// Gives it the pool to use.
pub(crate) const POOL: &str = "SWARM_SHM_TEST_POOL";

/// Three small nodes, eight clients.
pub(crate) fn small() -> CreateOptions {
    CreateOptions { capacity: 4 << 20, max_clients: 8, ..CreateOptions::default() }
}

/// Makes a temporary directory, and a small pool in it.
pub(crate) fn pool() -> (tempfile::TempDir, Pool) {
    let dir = directory();
    let pool = Pool::create(dir.path().join("pool"), &small()).expect("a pool");
    (dir, pool)
}

/// Makes a temporary directory. Other users may enter it, so that only the pool's own files keep
/// them out.
pub(crate) fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    dir
}

/// Posts a chain and returns the reply, which is there at once.
pub(crate) fn post<F: Fabric>(
    fabric: &F,
    node: NodeId,
    chain: &[Verb<'_>],
) -> Result<Vec<u64>, NodeDown> {
    let completion = pin!(fabric.post(node, chain));
    match completion.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply.map(|reply| reply.to_vec()),
        Poll::Pending => panic!("chains on mapped memory are complete at once"),
    }
}

/// Reports that a test is skipped, and why.
pub(crate) fn skipped(test: &str, why: &str) {
    // Not by `println`, whose output is hidden if a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// The same if the test needs rights that this user or container lacks. A failure if all tests must
/// run, as in `.ci/run`.
pub(crate) fn not_permitted(test: &str, why: &str) {
    let required = env::var_os("SWARM_RIGHTS_REQUIRED").is_some();
    assert!(!required, "{test}: {why}. With SWARM_RIGHTS_REQUIRED set it must not be skipped");
    skipped(test, why);
}

/// Returns the names in a directory, in order.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

/// Returns the role that this process was started in as a child, if it was.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((env::var(ROLE).ok()?, env::var_os(POOL)?.into()))
}

/// Returns the command that runs this test program's test `child` in `role` on the pool at `pool`.
pub(crate) fn child_command(role: &str, pool: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(POOL, pool).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A child and the lines that it prints.
pub(crate) struct Running {
    pub(crate) process: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a child.
    pub(crate) fn start(role: &str, pool: &Path) -> Self {
        Self::of(&mut child_command(role, pool))
    }

    /// Starts a child with this command.
    pub(crate) fn of(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a child process");
        let lines = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, lines }
    }

    /// Waits for the child to print a line, past the output of the test harness.
    pub(crate) fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).expect("the child's output");
            assert_ne!(read, 0, "the child ended without a line");
            if let Some(at) = line.find("says: ") {
                return line[at + 6..].trim().to_owned();
            }
        }
    }
}

/// Prints a line for the parent.
pub(crate) fn report(what: impl std::fmt::Display) {
    println!("says: {what}");
}

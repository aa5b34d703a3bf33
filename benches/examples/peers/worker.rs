//! A process at work, as the one sees it that leads them all.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;
use crate::systems::System;
use crate::work::Workload;

/// The first argument of such a process.
pub(crate) const ROLE: &str = "worker";

pub(crate) struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one, and waits until it knows all keys.
    pub(crate) fn start(system: System, place: &Path, keys: u64, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ROLE).arg(system.name()).arg(place).args([keys, seed].map(|it| it.to_string()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("no standard input")?;
        let from = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut worker = Self { child, to, from };
        worker.line()?;
        Ok(worker)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Has it measure for so long.
    pub(crate) fn go(&mut self, workload: Workload, seconds: f64) -> Result<()> {
        Ok(writeln!(self.to, "{} {seconds}", workload.name())?)
    }

    /// The operations a second that it measured.
    pub(crate) fn rate(&mut self) -> Result<f64> {
        Ok(self.line()?.trim().parse()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.from.read_line(&mut line)? {
            0 => Err(format!("process {} ended: {}", self.process(), self.child.wait()?).into()),
            _ => Ok(line),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

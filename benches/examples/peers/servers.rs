//! Servers of this run's own, behind sockets in its directory.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::Result;

pub(crate) struct Server(Child);

impl Server {
    /// `None` if it is not installed.
    pub(crate) fn redis(socket: &Path) -> Result<Option<Self>> {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--unixsocket").arg(socket).arg("--dir").arg(socket.with_file_name(""));
        Self::start(command, socket)
    }

    /// `None` if it is not installed.
    pub(crate) fn memcached(socket: &Path, keys: u64) -> Result<Option<Self>> {
        let mut command = Command::new("memcached");
        // It runs as root only when an option allows it. Keys that it has no room for it would drop.
        command.args(["-u", "root", "-m", &(64 + keys / 1024).to_string()]);
        command.arg("-s").arg(socket);
        Self::start(command, socket)
    }

    /// Starts it, and waits until it answers.
    fn start(mut command: Command, socket: &Path) -> Result<Option<Self>> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        for _ in 0..1000 {
            if UnixStream::connect(socket).is_ok() {
                return Ok(Some(server));
            }
            if let Some(status) = server.0.try_wait()? {
                return Err(format!("{:?} ended: {status}", command.get_program()).into());
            }
            sleep(Duration::from_millis(10));
        }
        Err(format!("{:?} does not open {}", command.get_program(), socket.display()).into())
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

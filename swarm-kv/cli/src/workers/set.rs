//! A set of concurrent workers, in processes or threads, as their parent uses it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use rustix::process::Pid;
use swarm_worker::job::{Job, Message, Order, monotonic_ns};
use swarm_worker::work;

use crate::common::args::DeviceArgs;
use crate::common::exit::Failure;
use crate::workers::process::{Channels, to_line};

/// How long before a start it is announced, so that all workers learn of it in time.
const NOTICE: Duration = Duration::from_millis(20);

/// The environment of worker processes.
static HANDED_DOWN: OnceLock<Vec<(&'static str, String)>> = OnceLock::new();

/// Makes worker processes use this device.
pub(crate) fn hand_down(device: &DeviceArgs) {
    // The command line is parsed once.
    let _ = HANDED_DOWN.set(device.environment());
}

/// What a client runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Isolation {
    Process,
    Thread,
}

enum Member {
    Process {
        child: Child,
        input: ChildStdin,
    },
    Thread {
        orders: Sender<Order>,
    },
    /// A process that has ended, without open descriptors.
    Ended,
}

/// A set of workers. Processes are killed when this is dropped.
pub(crate) struct WorkerSet {
    members: Vec<Member>,
    inbox: Receiver<(usize, Message)>,
    messages: Sender<(usize, Message)>,
}

impl WorkerSet {
    /// Starts a worker for each job.
    pub(crate) fn start(jobs: Vec<Job>, shell: Isolation) -> Result<Self, Failure> {
        let (messages, inbox) = mpsc::channel();
        let mut workers = Self { members: Vec::new(), inbox, messages };
        for (number, job) in jobs.into_iter().enumerate() {
            let messages = workers.messages.clone();
            workers.members.push(match shell {
                Isolation::Process => start_process(number, &job, messages)?,
                Isolation::Thread => start_thread(number, job, messages),
            });
        }
        Ok(workers)
    }

    /// Starts one more worker process, and returns its number.
    pub(crate) fn add(&mut self, job: &Job) -> Result<usize, Failure> {
        let number = self.members.len();
        self.members.push(start_process(number, job, self.messages.clone())?);
        Ok(number)
    }

    /// Returns the next message and its worker. `None` if none arrives in time.
    pub(crate) fn next(&self, patience: Duration) -> Option<(usize, Message)> {
        self.inbox.recv_timeout(patience).ok()
    }

    /// Waits until each worker has sent a message that matches `is_it`.
    pub(crate) fn gather(&self, is_it: impl Fn(&Message) -> bool) -> Result<(), Failure> {
        let mut missing = self.members.len();
        while missing > 0 {
            match self.next(Duration::MAX) {
                Some((_, message)) if is_it(&message) => missing -= 1,
                Some((_, Message::Failed(why))) => return Err(Failure::Failed(why)),
                Some((number, Message::Gone)) => return Err(gone(number)),
                Some(_) => {}
                None => return Err(Failure::Failed("all clients have ended early".to_owned())),
            }
        }
        Ok(())
    }

    /// Sends a command to all workers.
    pub(crate) fn order(&mut self, order: Order) -> Result<(), Failure> {
        let line = to_line(&order)?;
        for (number, member) in self.members.iter_mut().enumerate() {
            let sent = match member {
                Member::Process { input, .. } => input.write_all(line.as_bytes()).is_ok(),
                Member::Thread { orders } => orders.send(order).is_ok(),
                Member::Ended => true,
            };
            if !sent {
                return Err(gone(number));
            }
        }
        Ok(())
    }

    /// Starts all workers at the same time, and returns that time.
    pub(crate) fn go(&mut self) -> Result<u64, Failure> {
        let at_ns = monotonic_ns() + NOTICE.as_nanos() as u64;
        self.order(Order::Go { at_ns })?;
        Ok(at_ns)
    }

    /// Kills a worker process with SIGKILL, and waits for its end. Returns its process id.
    pub(crate) fn kill(&mut self, number: usize) -> Result<u32, Failure> {
        let member = std::mem::replace(&mut self.members[number], Member::Ended);
        let Member::Process { mut child, .. } = member else {
            unreachable!("only processes can be killed, and once")
        };
        child
            .kill()
            .and_then(|()| child.wait())
            .map(|_| child.id())
            .map_err(|error| Failure::because(format!("cannot kill client {number}"), error))
    }

    /// Returns a worker's process, unless it has ended. Its process id is not reused before
    /// [`kill`](Self::kill) or [`reap`](Self::reap).
    pub(crate) fn process(&self, number: usize) -> Option<Pid> {
        match &self.members[number] {
            Member::Process { child, .. } => Some(Pid::from_child(child)),
            Member::Thread { .. } | Member::Ended => None,
        }
    }

    /// Kills all worker processes that have not ended. Returns their process ids.
    pub(crate) fn disband(mut self) -> Vec<u32> {
        let processes = |number: &usize| matches!(self.members[*number], Member::Process { .. });
        let left: Vec<usize> = (0..self.members.len()).filter(processes).collect();
        left.into_iter().filter_map(|number| self.kill(number).ok()).collect()
    }

    /// Waits for the end of a process after its last message.
    pub(crate) fn reap(&mut self, number: usize) {
        let member = std::mem::replace(&mut self.members[number], Member::Ended);
        if let Member::Process { mut child, .. } = member {
            // Its exit status does not matter any more.
            let _ = child.wait();
        }
    }
}

/// Returns the failure of a worker that ended without a message.
pub(crate) fn gone(number: usize) -> Failure {
    Failure::Failed(format!("client {number} ended without a report; was it killed?"))
}

impl Drop for WorkerSet {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Member::Process { child, .. } = member {
                // A process that has ended already is only waited for.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn start_process(
    number: usize,
    job: &Job,
    messages: Sender<(usize, Message)>,
) -> Result<Member, Failure> {
    let failed = |error| Failure::because(format!("cannot start client {number}"), error);
    // This very program, even if its file has been replaced since.
    let mut child = Command::new("/proc/self/exe")
        .arg0("swarm")
        .args(["worker", &std::process::id().to_string()])
        .envs(HANDED_DOWN.get().into_iter().flatten().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("it was asked for");
    let output = child.stdout.take().expect("it was asked for");
    input.write_all(to_line(job)?.as_bytes()).map_err(failed)?;
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let message = serde_json::from_str(&line)
                .unwrap_or_else(|_| Message::Failed(format!("client {number} wrote: {line}")));
            if messages.send((number, message)).is_err() {
                return;
            }
        }
        // The receiver may be gone.
        let _ = messages.send((number, Message::Gone));
    });
    Ok(Member::Process { child, input })
}

fn start_thread(number: usize, job: Job, messages: Sender<(usize, Message)>) -> Member {
    let (orders, inbox) = mpsc::channel();
    thread::spawn(move || {
        let parent = Channels { member: number, orders: inbox, messages: messages.clone() };
        // A failure to report means that the parent has ended.
        let _ = work(&job, &parent);
        let _ = messages.send((number, Message::Gone));
    });
    Member::Thread { orders }
}

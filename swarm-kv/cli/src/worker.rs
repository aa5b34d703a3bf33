//! A client of bench, demo, torture or soak: a process that takes its job on standard input, or a thread.
//!
//! A process ends with its parent, by the kernel's hand, and a thread with its process.

use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, Sender};

use rustix::process;

use super::demo_worker;
use super::job::{Job, Message, Order, to_line};
use super::measure;
use super::outcome::{Answer, Failure};
use super::{soak_worker, torture_worker};

/// The way to whoever leads.
pub(crate) trait Lead {
    /// Tells.
    fn tell(&self, message: Message) -> Result<(), Failure>;
    /// Waits to be told.
    fn wait(&self) -> Result<Order, Failure>;
}

/// `swarm worker`.
pub(crate) fn run(parent: i32) -> Result<Answer, Failure> {
    process::set_parent_process_death_signal(Some(process::Signal::KILL))
        .map_err(|error| Failure::because("cannot ask to end with the parent", error))?;
    // It may have died before it could be asked for.
    if process::getppid().map(process::Pid::as_raw_pid) != Some(parent) {
        return Err(Failure::OutputClosed);
    }
    let lead = Pipes { input: RefCell::new(io::stdin().lock()) };
    let job = lead.line()?;
    let job = serde_json::from_str(&job)
        .map_err(|error| Failure::because("standard input does not begin with a job", error))?;
    work(&job, &lead)?;
    Ok(Answer::Yes)
}

/// Does the job and tells how it went.
pub(crate) fn work(job: &Job, lead: &dyn Lead) -> Result<(), Failure> {
    let result = match job {
        Job::Bench(job) => measure::run(job, lead),
        Job::Demo(job) => demo_worker::run(job, lead),
        Job::Torture(job) => torture_worker::run(job, lead),
        Job::Soak(job) => soak_worker::run(job, lead),
    };
    lead.tell(match result {
        Ok(report) => Message::Report(Box::new(report)),
        Err(failure) => match failure.message() {
            Some(message) => Message::Failed(message),
            None => return Ok(()),
        },
    })
}

struct Pipes {
    input: RefCell<io::StdinLock<'static>>,
}

impl Pipes {
    fn line(&self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.input.borrow_mut().read_line(&mut line) {
            Ok(1..) => Ok(line),
            _ => Err(Failure::OutputClosed),
        }
    }
}

impl Lead for Pipes {
    fn tell(&self, message: Message) -> Result<(), Failure> {
        let line = to_line(&message)?;
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| Failure::output(&error))
    }

    fn wait(&self) -> Result<Order, Failure> {
        serde_json::from_str(&self.line()?)
            .map_err(|error| Failure::because("standard input does not hold an order", error))
    }
}

/// The same between threads.
pub(crate) struct Channels {
    pub(crate) member: usize,
    pub(crate) orders: Receiver<Order>,
    pub(crate) messages: Sender<(usize, Message)>,
}

impl Lead for Channels {
    fn tell(&self, message: Message) -> Result<(), Failure> {
        self.messages.send((self.member, message)).map_err(|_| Failure::OutputClosed)
    }

    fn wait(&self) -> Result<Order, Failure> {
        self.orders.recv().map_err(|_| Failure::OutputClosed)
    }
}

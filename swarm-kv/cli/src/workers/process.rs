//! A worker of bench, demo, torture or soak: a process that reads its job from standard input, or a
//! thread.
//!
//! The kernel kills a worker process when its parent ends. A thread ends with its process.

use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, Sender};

use rustix::process;
use serde::Serialize;
use swarm_worker::job::{Message, Order};
use swarm_worker::{ParentChannel, work};

use crate::common::exit::{Answer, Failure};

/// `swarm worker`.
pub(crate) fn run(parent: i32) -> Result<Answer, Failure> {
    process::set_parent_process_death_signal(Some(process::Signal::KILL))
        .map_err(|error| Failure::because("cannot ask to end with the parent", error))?;
    // The parent may have ended before the request to be killed with it.
    if process::getppid().map(process::Pid::as_raw_pid) != Some(parent) {
        return Err(Failure::OutputClosed);
    }
    let parent = Pipes { input: RefCell::new(io::stdin().lock()) };
    let job = parent.line()?;
    let job = serde_json::from_str(&job)
        .map_err(|error| Failure::because("standard input does not begin with a job", error))?;
    work(&job, &parent)?;
    Ok(Answer::Yes)
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

impl ParentChannel for Pipes {
    fn send(&self, message: Message) -> Result<(), Failure> {
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

/// The same channel between threads.
pub(crate) struct Channels {
    pub(crate) member: usize,
    pub(crate) orders: Receiver<Order>,
    pub(crate) messages: Sender<(usize, Message)>,
}

impl ParentChannel for Channels {
    fn send(&self, message: Message) -> Result<(), Failure> {
        self.messages.send((self.member, message)).map_err(|_| Failure::OutputClosed)
    }

    fn wait(&self) -> Result<Order, Failure> {
        self.orders.recv().map_err(|_| Failure::OutputClosed)
    }
}

/// Encodes `message` as a line of JSON, with its newline.
pub(crate) fn to_line(message: &impl Serialize) -> Result<String, Failure> {
    let mut line = serde_json::to_string(message).map_err(|error| {
        Failure::because("cannot write to a client (is the path UTF-8?)", error)
    })?;
    line.push('\n');
    Ok(line)
}

//! What happened in a run, to be printed for a seed that failed.

use core::fmt;
use std::string::String;
use std::vec::Vec;

use crate::node::{Address, NodeId};

/// What a verb did to one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordStep {
    /// It read the word.
    Read {
        /// The word.
        at: Address,
        /// Its value.
        value: u64,
    },
    /// It wrote the word.
    Write {
        /// The word.
        at: Address,
        /// Its new value.
        value: u64,
    },
    /// It compared and perhaps swapped the word.
    Cas {
        /// The word.
        at: Address,
        /// The value that the client expected.
        expect: u64,
        /// The value that the client wanted.
        new: u64,
        /// Its value before.
        was: u64,
    },
}

/// One step of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A task of a client was polled.
    Poll(usize),
    /// A client's chain accessed a word of a node.
    Word(usize, NodeId, WordStep),
    /// The completion of a client's chain to a node was delivered; `false`: as node down.
    Deliver(usize, NodeId, bool),
    /// A node crashed.
    NodeCrash(NodeId),
    /// A node was paused.
    NodeFreeze(NodeId),
    /// A node resumed.
    NodeThaw(NodeId),
    /// A client's connection to a node broke.
    Disconnect(usize, NodeId),
    /// A client died.
    ClientCrash(usize),
    /// A note of a client's task.
    Note(usize, String),
}

impl fmt::Display for WordStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read { at, value } => write!(f, "READ [{}] = {value:#x}", at.0),
            Self::Write { at, value } => write!(f, "WRITE [{}] := {value:#x}", at.0),
            Self::Cas { at, expect, new, was } if was == expect => {
                write!(f, "CAS [{}] {was:#x} -> {new:#x}", at.0)
            }
            Self::Cas { at, expect, new, was } => {
                write!(f, "CAS [{}] {expect:#x} -> {new:#x} failed: {was:#x}", at.0)
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poll(client) => write!(f, "client {client}: polled"),
            Self::Word(client, node, word) => write!(f, "client {client} at {node}: {word}"),
            Self::Deliver(client, node, true) => {
                write!(f, "client {client} receives a completion of {node}")
            }
            Self::Deliver(client, node, false) => {
                write!(f, "client {client} learns that {node} is down")
            }
            Self::NodeCrash(node) => write!(f, "{node} crashes"),
            Self::NodeFreeze(node) => write!(f, "{node} freezes"),
            Self::NodeThaw(node) => write!(f, "{node} goes on"),
            Self::Disconnect(client, node) => {
                write!(f, "client {client}: the connection to {node} breaks")
            }
            Self::ClientCrash(client) => write!(f, "client {client} dies"),
            Self::Note(client, text) => write!(f, "client {client}: {text}"),
        }
    }
}

/// The steps of a run. Displays one per line. The alternate form (`{:#}`) is brief: one line for
/// what one chain does without others in between, and no polls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace(pub Vec<Step>);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return self.brief(f);
        }
        self.0.iter().enumerate().try_for_each(|(index, step)| writeln!(f, "{index:6} {step}"))
    }
}

impl Trace {
    fn brief(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = self.0.iter().filter(|step| !matches!(step, Step::Poll(_))).peekable();
        while let Some(step) = steps.next() {
            let Step::Word(client, node, word) = step else {
                writeln!(f, "  {step}")?;
                continue;
            };
            write!(f, "  client {client} at {node}: ")?;
            let mut run = Run::of(*word);
            while let Some(Step::Word(.., word)) = steps
                .next_if(|next| matches!(next, Step::Word(c, n, _) if c == client && n == node))
            {
                if !run.takes(*word) {
                    write!(f, "{run}, ")?;
                    run = Run::of(*word);
                }
            }
            writeln!(f, "{run}")?;
        }
        Ok(())
    }
}

/// Consecutive words that were read or written one after the other.
struct Run {
    first: WordStep,
    count: u64,
}

impl Run {
    fn of(first: WordStep) -> Self {
        Self { first, count: 1 }
    }

    /// Returns whether `word` continues this run, and if so adds it.
    fn takes(&mut self, word: WordStep) -> bool {
        use WordStep::{Read, Write};
        let takes = match (self.first, word) {
            (Read { at: first, .. }, Read { at, .. })
            | (Write { at: first, .. }, Write { at, .. }) => at.0 == first.0 + self.count,
            _ => false,
        };
        self.count += u64::from(takes);
        takes
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, at) = match self.first {
            first if self.count == 1 => return write!(f, "{first}"),
            WordStep::Read { at, .. } => ("READ", at.0),
            WordStep::Write { at, .. } | WordStep::Cas { at, .. } => ("WRITE", at.0),
        };
        write!(f, "{name} [{at}..{}]", at + self.count)
    }
}

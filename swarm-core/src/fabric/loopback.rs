//! The simplest fabric: memory of this process, where every chain is done when it is posted, and
//! chains never overlap.

use core::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec;
use std::vec::Vec;

use super::interface::{Fabric, MAX_VERBS, NodeDown, Verb};
use crate::fabric::epochs::NoEpochs;
use crate::node::{Address, NodeId};

/// Memory nodes within this process. Clones are other clients of the same nodes.
#[derive(Clone, Debug)]
pub struct Loopback {
    nodes: Arc<Mutex<Vec<Vec<u64>>>>,
    near: bool,
}

impl Loopback {
    /// Makes `nodes` nodes of `words` zeroed words each.
    pub fn new(nodes: usize, words: usize) -> Self {
        // Each is allocated by itself: cloning one would touch every page.
        let nodes = (0..nodes).map(|_| vec![0; words]).collect();
        Self { nodes: Arc::new(Mutex::new(nodes)), near: false }
    }

    /// Returns access to the same nodes as a synchronous fabric, which this one otherwise does not claim to
    /// be: operations take their straight lines.
    #[must_use]
    pub fn near(&self) -> Self {
        Self { near: true, ..self.clone() }
    }

    fn nodes_mut(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.nodes.lock().expect("no client panics while it has the nodes")
    }

    /// Returns the word at `at` of `node`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn word(&self, node: NodeId, at: Address) -> u64 {
        self.nodes_mut()[node.index()][at.0 as usize]
    }

    /// Sets the word at `at` of `node`.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn set_word(&self, node: NodeId, at: Address, value: u64) {
        self.nodes_mut()[node.index()][at.0 as usize] = value;
    }
}

/// Returns the words that a WRITE of `head` and `tail` stores.
pub(crate) fn image<'a>(head: &'a [u64], tail: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
    head.iter().copied().chain(tail.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }))
}

impl Fabric for Loopback {
    type EpochDomain = NoEpochs;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Ready<Result<Vec<u64>, NodeDown>>;

    fn is_near(&self) -> bool {
        self.near
    }

    fn nodes(&self) -> usize {
        self.nodes_mut().len()
    }

    /// A verb that reaches outside of the node's memory touches nothing and ends the chain as if
    /// the node did not answer.
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        assert!(chain.len() <= MAX_VERBS, "a chain holds at most {MAX_VERBS} verbs");
        let memory = &mut self.nodes_mut()[node.index()];
        let mut reply = Vec::new();
        for verb in chain {
            if run(memory, verb, &mut reply).is_none() {
                return ready(Err(NodeDown));
            }
        }
        ready(Ok(reply))
    }
}

/// Runs one verb. `None` if it reaches outside of the memory.
fn run(memory: &mut [u64], verb: &Verb<'_>, reply: &mut Vec<u64>) -> Option<()> {
    let (Verb::Read { at, .. } | Verb::Write { at, .. } | Verb::Cas { at, .. }) = *verb;
    let memory = memory.get_mut(usize::try_from(at.0).ok()?..)?;
    match *verb {
        Verb::Read { words, .. } => reply.extend_from_slice(memory.get(..words)?),
        Verb::Write { head, tail, .. } => {
            let words = memory.get_mut(..head.len() + tail.len().div_ceil(8))?;
            words.iter_mut().zip(image(head, tail)).for_each(|(word, new)| *word = new);
        }
        Verb::Cas { expect, new, .. } => {
            let word = memory.first_mut()?;
            reply.push(*word);
            if *word == expect {
                *word = new;
            }
        }
    }
    Some(())
}

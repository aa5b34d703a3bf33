//! A fabric: memory nodes in memory that cores, or the handlers of interrupts, share.

use core::future::{Ready, ready};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use heapless::Vec;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};

/// `NODES` nodes of `WORDS` words each. A reply has at most `REPLY` words.
#[derive(Debug)]
pub(crate) struct Memory<const NODES: usize, const WORDS: usize, const REPLY: usize>(
    [[AtomicU64; WORDS]; NODES],
);

impl<const NODES: usize, const WORDS: usize, const REPLY: usize> Memory<NODES, WORDS, REPLY> {
    /// Makes nodes that hold zeros.
    pub(crate) const fn new() -> Self {
        Self([const { [const { AtomicU64::new(0) }; WORDS] }; NODES])
    }

    /// Runs a chain. `None` if a verb reaches outside of the memory, or the reply is too long.
    ///
    /// All accesses are in one order, the same for all clients, in which each client's are as it
    /// posted them. A fabric may do with less; it may not do with more disorder between verbs than
    /// [`Fabric`] allows.
    fn run(&self, node: NodeId, chain: &[Verb<'_>]) -> Option<Vec<u64, REPLY>> {
        let memory = self.0.get(node.index())?;
        let span =
            |at: Address, words: usize| memory.get(usize::try_from(at.0).ok()?..)?.get(..words);
        let mut reply = Vec::new();
        for verb in chain {
            match *verb {
                Verb::Read { at, words } => {
                    for word in span(at, words)? {
                        reply.push(word.load(SeqCst)).ok()?;
                    }
                }
                Verb::Write { at, head, tail } => {
                    let words = span(at, head.len() + tail.len().div_ceil(8))?;
                    let (first, rest) = words.split_at_checked(head.len())?;
                    first.iter().zip(head).for_each(|(word, &new)| word.store(new, SeqCst));
                    for (word, bytes) in rest.iter().zip(tail.chunks(8)) {
                        let mut new = [0; 8];
                        new[..bytes.len()].copy_from_slice(bytes);
                        word.store(u64::from_le_bytes(new), SeqCst);
                    }
                }
                Verb::Cas { at, expect, new } => {
                    let word = span(at, 1)?.first()?;
                    let (Ok(found) | Err(found)) =
                        word.compare_exchange(expect, new, SeqCst, SeqCst);
                    reply.push(found).ok()?;
                }
            }
        }
        Some(reply)
    }
}

impl<const NODES: usize, const WORDS: usize, const REPLY: usize> Fabric
    for &Memory<NODES, WORDS, REPLY>
{
    type EpochDomain = NoEpochs;
    type Reply<'f>
        = Vec<u64, REPLY>
    where
        Self: 'f;
    type Completion<'f>
        = Ready<Result<Vec<u64, REPLY>, NodeDown>>
    where
        Self: 'f;

    fn is_near(&self) -> bool {
        true
    }

    fn nodes(&self) -> usize {
        NODES
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        ready(self.run(node, chain).ok_or(NodeDown))
    }
}

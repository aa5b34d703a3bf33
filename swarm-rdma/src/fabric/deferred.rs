//! A deferred chain: it is posted together with the next chain to its node.
//!
//! Deferring a chain saves one doorbell and one completion. It is safe: a reader that arrives
//! before the chain does the same work itself. Each node has at most one deferred chain, so a
//! client that stops leaves little undone.

use heapless::Vec as Short;
use swarm_core::fabric::{MAX_VERBS, Verb};
use swarm_core::node::Address;

use crate::verbs::MAX_TOGETHER;

/// The most words of payload and reply that a deferred chain may have. A chain with more is posted
/// at once.
const WORDS: usize = 512;

/// A verb whose payload lies in [`DeferredChain::words`].
#[derive(Clone, Copy)]
enum Kept {
    Read { at: Address, words: usize },
    Write { at: Address, start: usize, end: usize },
    Cas { at: Address, expect: u64, new: u64 },
}

/// A copy of the verbs and payload of deferred chains.
pub(crate) struct DeferredChain {
    verbs: Short<Kept, MAX_VERBS>,
    words: Vec<u64>,
}

impl DeferredChain {
    pub(crate) fn new() -> Self {
        Self { verbs: Short::new(), words: Vec::with_capacity(WORDS) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.verbs.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.verbs.clear();
        self.words.clear();
    }

    /// Appends `chain`. Returns `false`, and changes nothing, if there is no room.
    pub(crate) fn take(&mut self, chain: &[Verb<'_>]) -> bool {
        let length = |verb: &Verb<'_>| match verb {
            Verb::Write { head, tail, .. } => head.len() + tail.len().div_ceil(8),
            _ => verb.yields(),
        };
        let words: usize = chain.iter().map(length).sum();
        if self.verbs.len() + chain.len() > MAX_VERBS || self.words.len() + words > WORDS {
            return false;
        }
        for verb in chain {
            let kept = match *verb {
                Verb::Read { at, words } => Kept::Read { at, words },
                Verb::Cas { at, expect, new } => Kept::Cas { at, expect, new },
                Verb::Write { at, head, tail } => {
                    let start = self.words.len();
                    self.words.extend_from_slice(head);
                    let (whole, rest) = tail.as_chunks::<8>();
                    self.words.extend(whole.iter().map(|bytes| u64::from_le_bytes(*bytes)));
                    if !rest.is_empty() {
                        let mut last = [0; 8];
                        last[..rest.len()].copy_from_slice(rest);
                        self.words.push(u64::from_le_bytes(last));
                    }
                    Kept::Write { at, start, end: self.words.len() }
                }
            };
            // The check above leaves room.
            let _ = self.verbs.push(kept);
        }
        true
    }

    /// Returns this chain followed by `chain`, and the number of reply words that belong to this
    /// one.
    pub(crate) fn with<'c>(&'c self, chain: &[Verb<'c>]) -> (Short<Verb<'c>, MAX_TOGETHER>, usize) {
        let verbs = self.verbs.iter().map(|kept| match *kept {
            Kept::Read { at, words } => Verb::Read { at, words },
            Kept::Cas { at, expect, new } => Verb::Cas { at, expect, new },
            Kept::Write { at, start, end } => {
                Verb::Write { at, head: &self.words[start..end], tail: &[] }
            }
        });
        let mut together = Short::new();
        // Each has at most half of the capacity.
        together.extend(verbs);
        let words = together.iter().map(Verb::yields).sum();
        together.extend(chain.iter().copied().take(MAX_VERBS));
        (together, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_come_out_as_they_went_in_and_in_order() {
        let mut deferred = DeferredChain::new();
        let write = Verb::Write { at: Address(8), head: &[1, 2], tail: &[3; 9] };
        let cas = Verb::Cas { at: Address(4), expect: 5, new: 6 };
        assert!(deferred.take(&[write, cas]) && deferred.take(&[cas]));
        let read = Verb::Read { at: Address(0), words: 3 };
        let chain = [read];
        let (together, words) = deferred.with(&chain);
        assert_eq!(words, 2);
        assert_eq!(together.len(), 4);
        let Verb::Write { at: Address(8), head, tail: &[] } = together[0] else { panic!("WRITE") };
        assert_eq!(head, [1, 2, u64::from_le_bytes([3; 8]), 3]);
        assert!(matches!(together[2], Verb::Cas { at: Address(4), expect: 5, new: 6 }));
        assert!(matches!(together[3], Verb::Read { words: 3, .. }));
        drop(together);
        assert!(!deferred.take(&[Verb::Write { at: Address(8), head: &[0; WORDS], tail: &[] }]));
        // The reply of the chain that it is posted with begins after its own, at a 16-bit offset.
        assert!(!deferred.take(&[Verb::Read { at: Address(0), words: WORDS + 1 }]));
        deferred.clear();
        assert!(deferred.is_empty());
    }
}

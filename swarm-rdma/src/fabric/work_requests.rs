//! Plans verbs as work requests, and sets the fence flags.
//!
//! A queue pair's work requests take effect at the node in the order in which they were posted,
//! with one exception: the result of a READ or an atomic may be fetched after a later WRITE took
//! effect (InfiniBand Architecture Specification, volume 1, the chapter on work request ordering).
//!
//! **Invariant:** a WRITE after a READ or a CAS, and a CAS after a READ, carry the fence flag: the
//! device holds them back until those are done. WRITE before any verb, CAS before CAS, and READ
//! after any verb need none. The protocols' chains consist of these (WRITE, CAS, READ), so I1
//! (buffer before CAS) and I3 (CAS before READ) hold without a fence.

use swarm_core::fabric::Verb;
use swarm_core::node::Address;

use crate::verbs::{Limits, MAX_TOGETHER, Work};

/// Which of READs and atomics a later work request may have to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplyLayout {
    pub(crate) reads: bool,
    pub(crate) atomics: bool,
}

impl ReplyLayout {
    pub(crate) fn any(self) -> bool {
        self.reads || self.atomics
    }
}

/// The work requests of a chain.
pub(crate) struct WorkRequests<'c> {
    pub(crate) work: heapless::Vec<(Work<'c>, bool), MAX_TOGETHER>,
    /// Words of the chain's reply, which lies first in its slot.
    pub(crate) words: usize,
    /// Bytes that the chain needs in its slot.
    pub(crate) bytes: usize,
    /// Which of its verbs later work requests may have to wait for.
    pub(crate) asked: ReplyLayout,
}

/// Where a node's words lie, for work requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteMemory {
    pub(crate) base: u64,
    pub(crate) words: u64,
}

impl RemoteMemory {
    /// Returns the remote address of `words` words at `at`, if the node has them.
    fn find(self, at: Address, words: usize) -> Option<u64> {
        let end = at.0.checked_add(words as u64)?;
        (end <= self.words).then(|| self.base + at.0 * 8)
    }
}

/// Plans `chain`, to be posted while the READs and atomics in `before` are in flight. Returns
/// `None` if a verb reaches outside of the node's memory, or if there are too many.
#[inline]
pub(crate) fn plan<'c>(
    chain: &[Verb<'c>],
    reach: RemoteMemory,
    limits: Limits,
    before: ReplyLayout,
) -> Option<WorkRequests<'c>> {
    let words = chain.iter().fold(0_usize, |sum, verb| sum.saturating_add(verb.yields()));
    let mut planned = WorkRequests {
        work: heapless::Vec::new(),
        words,
        bytes: words.checked_mul(8)?,
        asked: ReplyLayout::default(),
    };
    let (mut place, mut before) = (0, before);
    for verb in chain {
        let (work, fenced) = match *verb {
            Verb::Read { words: 0, .. } => continue,
            Verb::Read { at, words } => {
                let remote = reach.find(at, words)?;
                let work = Work::Read { remote, at: place, bytes: words * 8 };
                place += words * 8;
                planned.asked.reads = true;
                (work, false)
            }
            Verb::Write { head: [], tail: [], .. } => continue,
            Verb::Write { at, head, tail } => {
                let words = head.len() + tail.len().div_ceil(8);
                let remote = reach.find(at, words)?;
                let bytes = words * 8;
                let fenced = before.any() || planned.asked.any();
                if bytes <= limits.inline as usize {
                    (Work::Inline { remote, head, tail }, fenced)
                } else {
                    let work = Work::Write { remote, at: planned.bytes, bytes };
                    planned.bytes += bytes;
                    (work, fenced)
                }
            }
            Verb::Cas { at, expect, new } => {
                let remote = reach.find(at, 1)?;
                let work = Work::Cas { remote, at: place, expect, new };
                place += 8;
                let fenced = before.reads || planned.asked.reads;
                (work, fenced)
            }
        };
        if fenced {
            // All earlier READs and atomics are done when this one begins.
            before = ReplyLayout::default();
            planned.asked = ReplyLayout::default();
        }
        planned.asked.atomics |= matches!(verb, Verb::Cas { .. });
        planned.work.push((work, fenced)).ok()?;
    }
    Some(planned)
}

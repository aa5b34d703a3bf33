//! From verbs to work requests.
//!
//! A queue pair's work requests take effect at the node in the order in which they were posted, with
//! one exception: what a READ or an atomic *returns* may be fetched after a later WRITE took effect
//! (InfiniBand Architecture Specification, volume 1, the chapter on work request ordering). So a
//! WRITE behind a READ or a CAS, and a CAS behind a READ, carry the fence flag: the device holds them
//! back until those are done. WRITE before anything, CAS before CAS, and READ behind anything need
//! none; these are what the protocols' chains consist of (WRITE, CAS, READ).

use swarm_core::fabric::Verb;
use swarm_core::node::Address;

use crate::rider::MAX_TOGETHER;
use crate::verbs::{Limits, Work};

/// READs and atomics that a later work request may have to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) reads: bool,
    pub(crate) atomics: bool,
}

impl Asked {
    pub(crate) fn any(self) -> bool {
        self.reads || self.atomics
    }
}

/// The work of a chain.
pub(crate) struct Planned<'c> {
    pub(crate) work: heapless::Vec<(Work<'c>, bool), MAX_TOGETHER>,
    /// Words that the chain yields; they come first in its slot.
    pub(crate) words: usize,
    /// Bytes that it needs in its slot.
    pub(crate) bytes: usize,
    /// What of it later work may have to wait for.
    pub(crate) asked: Asked,
}

/// Where a node's words are, for remote work requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) base: u64,
    pub(crate) words: u64,
}

impl Reach {
    /// The remote address of `words` words at `at`, if the node has them.
    fn find(self, at: Address, words: usize) -> Option<u64> {
        let end = at.0.checked_add(words as u64)?;
        (end <= self.words).then(|| self.base + at.0 * 8)
    }
}

/// Plans `chain`, behind work that has `before` under way. `None` if a verb leads out of the node's
/// memory, or there are too many.
#[inline]
pub(crate) fn plan<'c>(
    chain: &[Verb<'c>],
    reach: Reach,
    limits: Limits,
    before: Asked,
) -> Option<Planned<'c>> {
    let words = chain.iter().fold(0_usize, |sum, verb| sum.saturating_add(verb.yields()));
    let mut planned = Planned {
        work: heapless::Vec::new(),
        words,
        bytes: words.checked_mul(8)?,
        asked: Asked::default(),
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
            // All that was under way is done when this begins.
            before = Asked::default();
            planned.asked = Asked::default();
        }
        planned.asked.atomics |= matches!(verb, Verb::Cas { .. });
        planned.work.push((work, fenced)).ok()?;
    }
    Some(planned)
}

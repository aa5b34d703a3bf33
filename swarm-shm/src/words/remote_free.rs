//! Remote-free queues: clients hint to others which of their records and writes were superseded.
//!
//! Each client slot has a ring of entries, which every client may write. Entries are hints (E4a):
//! one that is overwritten before it is read, or read as halves of two, costs memory at most.
//!
//! ```text
//! word  0  how many entries were begun so far: the next one's place, modulo their number
//!       8  entries: cell's pointer, [ record's pointer | 0 ]
//!             or    key's hash, stamp with its last bit set
//! ```

use swarm_core::fabric::RemoteFree;

use crate::words::sync::{Ordering, Word};

/// Entries in a ring: what others send while a client goes without the processor for a few time
/// slices.
const ENTRIES: usize = 512;
const ENTRY_WORDS: usize = 2;
const FIRST: usize = 8;
/// Words of a ring.
pub(crate) const WORDS: usize = FIRST + ENTRIES * ENTRY_WORDS;

fn entries(ring: &[Word]) -> &[[Word; ENTRY_WORDS]] {
    ring[FIRST..].as_chunks().0
}

/// Writes an entry.
pub(crate) fn push(ring: &[Word], replaced: RemoteFree) {
    let entries = entries(ring);
    let entry = &entries[ring[0].fetch_add(1, Ordering::Relaxed) as usize % entries.len()];
    let [first, second] = replaced.encode();
    entry[0].store(first, Ordering::Relaxed);
    entry[1].store(second, Ordering::Relaxed);
}

/// Reads the entries after the first `drained`. Returns how many there are in all.
pub(crate) fn drain(ring: &[Word], drained: u64, each: &mut dyn FnMut(RemoteFree)) -> u64 {
    let entries = entries(ring);
    let all = ring[0].load(Ordering::Relaxed);
    for back in 1..=all.wrapping_sub(drained).min(entries.len() as u64) {
        let entry = &entries[all.wrapping_sub(back) as usize % entries.len()];
        let words = [0, 1].map(|at| entry[at].load(Ordering::Relaxed));
        each(RemoteFree::decode(words));
    }
    all
}

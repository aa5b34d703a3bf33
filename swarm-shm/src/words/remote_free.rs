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
const NOTES: usize = 512;
const NOTE_WORDS: usize = 2;
const FIRST: usize = 8;
/// Words of a ring.
pub(crate) const WORDS: usize = FIRST + NOTES * NOTE_WORDS;

fn notes(ring: &[Word]) -> &[[Word; NOTE_WORDS]] {
    ring[FIRST..].as_chunks().0
}

/// Writes an entry.
pub(crate) fn push(ring: &[Word], replaced: RemoteFree) {
    let notes = notes(ring);
    let note = &notes[ring[0].fetch_add(1, Ordering::Relaxed) as usize % notes.len()];
    let [first, second] = replaced.encode();
    note[0].store(first, Ordering::Relaxed);
    note[1].store(second, Ordering::Relaxed);
}

/// Reads the entries after the first `drained`. Returns how many there are in all.
pub(crate) fn drain(ring: &[Word], drained: u64, each: &mut dyn FnMut(RemoteFree)) -> u64 {
    let notes = notes(ring);
    let all = ring[0].load(Ordering::Relaxed);
    for back in 1..=all.wrapping_sub(drained).min(notes.len() as u64) {
        let note = &notes[all.wrapping_sub(back) as usize % notes.len()];
        let words = [0, 1].map(|at| note[at].load(Ordering::Relaxed));
        each(RemoteFree::decode(words));
    }
    all
}

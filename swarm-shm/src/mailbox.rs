//! What clients tell each other: which of their records and writes were replaced.
//!
//! A ring of notes for each client slot, into which anybody writes. Notes are hints: one that is written
//! over before it is read, or of which halves of two are read, costs memory at most.
//!
//! ```text
//! word  0  how many notes were begun so far: the next one's place, modulo how many there are
//!       8  notes: cell's pointer, [ record's pointer | 0 ]
//!             or  key's hash, stamp with its last bit set
//! ```

use swarm_core::fabric::Replaced;

use crate::sync::{Ordering, Word};

/// Notes in a ring: what others tell a client in a few slices of processor time that it does not get.
const NOTES: usize = 512;
const NOTE_WORDS: usize = 2;
const FIRST: usize = 8;
/// Words that a ring takes.
pub(crate) const WORDS: usize = FIRST + NOTES * NOTE_WORDS;

fn notes(ring: &[Word]) -> &[[Word; NOTE_WORDS]] {
    ring[FIRST..].as_chunks().0
}

/// Writes a note.
pub(crate) fn tell(ring: &[Word], replaced: Replaced) {
    let notes = notes(ring);
    let note = &notes[ring[0].fetch_add(1, Ordering::Relaxed) as usize % notes.len()];
    let [first, second] = replaced.encode();
    note[0].store(first, Ordering::Relaxed);
    note[1].store(second, Ordering::Relaxed);
}

/// Reads the notes behind the first `heard`. Yields how many there are in all.
pub(crate) fn told(ring: &[Word], heard: u64, each: &mut dyn FnMut(Replaced)) -> u64 {
    let notes = notes(ring);
    let all = ring[0].load(Ordering::Relaxed);
    for back in 1..=all.wrapping_sub(heard).min(notes.len() as u64) {
        let note = &notes[all.wrapping_sub(back) as usize % notes.len()];
        let words = [0, 1].map(|at| note[at].load(Ordering::Relaxed));
        each(Replaced::decode(words));
    }
    all
}

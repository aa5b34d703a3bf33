//! Wait words: clients that wait for a change of a key sleep on one until a client that changed the
//! key wakes them.
//!
//! A pool has [`WORDS`] of them. Each is for all keys of some hashes, so a wake may be for another
//! key. The lower half of a word is what the kernel's futex compares:
//!
//! ```text
//! [ 0 32 | how often waiters were woken 31 | whether any wait 1 ]
//! ```
//!
//! | a client that waits | a client that changes the key |
//! | --- | --- |
//! | sets the last bit ([`prepare`]) | changes it, by a CAS |
//! | a full fence | a full fence, as behind each CAS |
//! | reads the key | loads the word ([`any_wait`]) |
//! | sleeps, if the word is still what it was | if any wait: clears the bit and counts ([`release`]), and wakes all |
//!
//! **Invariant (N1):** a client that sleeps has seen the change, or the word is another one by then, or the
//! client that made the change is about to make it so and to wake. The fences order the two clients:
//! the one finds the other's change, or the other finds the bit. The bit says that some wait, not
//! how many: a client that is killed while it waits costs the next change one wake, and nothing after
//! that.

use crate::words::sync::{Ordering, Word, fence};

/// How many there are.
pub const WORDS: usize = 64;
const WAIT: u64 = 1;
const COUNT: u64 = 2;

/// Returns the place of the word for keys of this hash.
#[inline(always)]
pub(crate) fn place_of(hash: u64) -> usize {
    hash as usize % WORDS
}

/// Records that this client waits from now on. Returns what the word is then. Later loads see every
/// change whose client does not find the bit.
pub fn prepare(word: &Word) -> u32 {
    let before = word.fetch_or(WAIT, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    (before | WAIT) as u32
}

/// Returns whether any client waits. To be called behind a change, which a full fence followed.
#[inline(always)]
pub fn any_wait(word: &Word) -> bool {
    word.load(Ordering::Relaxed) & WAIT != 0
}

/// Counts a wake, unless another client did. A client that finds the same word as before sleeps in vain:
/// those are to be woken behind this.
pub fn release(word: &Word) {
    let next = |now: u64| {
        let counted = (now - WAIT).wrapping_add(COUNT) & u64::from(u32::MAX);
        (now & WAIT != 0).then_some(counted)
    };
    // Relaxed: the word publishes nothing. A client that is woken reads the key anew.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

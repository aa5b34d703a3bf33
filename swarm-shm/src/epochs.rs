//! The epoch's words, and the order in which they are touched.
//!
//! A client's word is 0 while it does nothing, or else the epoch in which the oldest of its operations
//! began. The client alone stores to it, at the beginning and the end of its operations; who wants to move
//! the epoch on reads them all.
//!
//! The full fence behind the exchange at the beginning, and the one in front of those reads, pair:
//! either whoever moves the epoch on sees that the operation is under way, or the operation sees all
//! that took effect before, so that it cannot come across what was retired by then.

use crate::sync::{Ordering, Word, fence, fence_behind_cas};

/// The epoch. The word counts how often it moved on.
#[inline]
pub fn epoch(word: &Word) -> u64 {
    // Acquire: pairs with the release in `advance`, for those who did not look at the others'
    // words themselves.
    word.load(Ordering::Acquire) + 1
}

/// An operation begins, and no other of this client is under way. Yields the epoch in which it does.
#[inline]
pub fn enter(word: &Word, own: &Word) -> u64 {
    let epoch = epoch(word);
    // Release: pairs with the acquire in `advance`, for what this client did before. An exchange
    // rather than a store, because on x86-64 the fence behind it then costs nothing more.
    own.swap(epoch, Ordering::Release);
    fence_behind_cas();
    epoch
}

/// The oldest operation under way began in this epoch now.
pub fn remain(own: &Word, epoch: u64) {
    own.store(epoch, Ordering::Release);
}

/// No operation is under way any more.
#[inline]
pub fn leave(own: &Word) {
    // Release: pairs with the acquire in `advance`. Whoever uses memory again stores there
    // behind all that this client did.
    own.store(0, Ordering::Release);
}

/// How often another generation began.
#[inline]
pub fn generation(word: &Word) -> u64 {
    // Ordered by the fences of `enter` and `renew`; both words are in one cache line.
    word.load(Ordering::Relaxed)
}

/// Another generation begins.
pub fn renew(word: &Word) {
    word.fetch_add(1, Ordering::AcqRel);
    // In front of reading the epoch: who enters in a later one than is read behind this meets
    // the generation.
    fence(Ordering::SeqCst);
}

/// Moves the epoch on if every operation under way began in it, but for those of the dead: `clients` are
/// the words, and `is_dead` says whose client is. Yields the epoch then.
pub fn advance<'w>(
    word: &Word,
    clients: impl Iterator<Item = &'w Word>,
    is_dead: impl Fn(usize) -> bool,
) -> u64 {
    let epoch = epoch(word);
    fence(Ordering::SeqCst);
    for (slot, client) in clients.enumerate() {
        let since = client.load(Ordering::Acquire);
        if since != 0 && since != epoch && !is_dead(slot) {
            return epoch;
        }
    }
    // One step only: another client may have looked, and moved on, meanwhile.
    match word.compare_exchange(epoch - 1, epoch, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => epoch + 1,
        Err(now) => now + 1,
    }
}

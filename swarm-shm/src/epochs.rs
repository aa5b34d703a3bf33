//! The epoch's words, and the order in which they are touched.
//!
//! A client's word is 0 while it does nothing, or else the epoch in which the oldest of its operations
//! began. The client alone stores to it, at the beginning and the end of its operations; who wants to move
//! the epoch on reads them all.
//!
//! The full fence behind the exchange at the beginning, and the one in front of those reads, pair:
//! either whoever moves the epoch on sees that the operation is under way, or the operation sees all
//! that took effect before, so that it cannot come across what was retired by then.
//!
//! # Why the orderings suffice
//!
//! By the memory model of C++20, which is Rust's. `E` is the epoch, `W` a client's word. A client that retires an
//! object (*R*) takes it out with a CAS, which a full fence `Fr` follows ([`fence_behind_cas`]), and reads `E` as `e`
//! behind that. An operation (*O*) marks `W`, has its fence `Fo`, and looks around. Whoever moves the epoch from
//! `e + 1` to `e + 2` (*A*) reads `E`, has its fence `Fa`, and reads the words. The object is used again by a client
//! that finds `e + 2`. So O must be over by then, or not have found the object.
//!
//! 1. R reads an older `E` than A reads, so that its read comes before A's in coherence order, and the fence
//!    in front of the one before the fence behind the other: `Fr` < `Fa` (\[atomics.order\] 4).
//! 2. Where `Fr` < `Fo`, O's looks meet the object taken out, or what came later: it does not find it.
//! 3. Else `Fo` < `Fr` < `Fa`, and A's read of `W` meets O's mark, or what the client stored later. Then O's mark says
//!    `e` or less: had O read `E` as `e + 1` in front of `Fo`, R's older read behind `Fr` would put `Fr` first, as in 1.
//!    Thus A does not move on while O's mark is there.
//! 4. If A reads what stands there later, that was stored with release, behind the end of O, and A reads it with acquire:
//!    all that O did happens before A's look. A's CAS of `E` releases, later ones go on from there with acquire and
//!    release, and whoever finds `e + 2` acquires: all that O did happens before the memory is used again.
//!
//! An operation that begins beside older ones of its client has their mark for its own. Where it finds the epoch that
//! the mark says, it looks around behind their `Fo`. Where it finds a later one, it is to be held up by that one, once the
//! older ones are over and `W` says so: it has an `Fo` of its own, behind its read of that epoch, and 3 holds with what
//! `W` says by then ([`enter_beside`]).
//!
//! Nowhere is it taken for granted that a relaxed load takes effect before a store behind it: 1 to 3 go by the one order
//! of the full fences and by coherence, 4 by what happens before what, and no load reads from a store that it happens
//! before. So all of it holds in executions with *load buffering* as well, which loom does not play.

use crate::sync::{Ordering, Word, fence, fence_behind_cas};

/// The epoch. The word counts how often it moved on.
#[inline]
pub fn epoch(word: &Word) -> u64 {
    // Acquire: pairs with the release in `advance`, for those who use memory again and did not look at
    // the others' words themselves (4).
    word.load(Ordering::Acquire) + 1
}

/// An operation begins, and no other of this client is under way. Yields the epoch in which it does.
#[inline]
pub fn enter(word: &Word, own: &Word) -> u64 {
    let epoch = epoch(word);
    // Release: pairs with the acquire in `advance`, for what this client did before: whoever reads this mark
    // and not the end of the operation before knows that one to be over as well (4). An exchange
    // rather than a store, because on x86-64 the fence behind it then costs nothing more.
    own.swap(epoch, Ordering::Release);
    // Full: `Fo`.
    fence_behind_cas();
    epoch
}

/// An operation begins beside others of this client, which began in an earlier epoch and hold that up. Yields the epoch
/// in which it does.
#[inline]
pub fn enter_beside(word: &Word) -> u64 {
    let epoch = epoch(word);
    // Full: `Fo` of those that go by this epoch from here on. The one behind the older operations' mark is in front of
    // this read of the epoch, and what was retired before it may be taken out behind that.
    fence(Ordering::SeqCst);
    epoch
}

/// The oldest operation under way began in this epoch now.
pub fn remain(own: &Word, epoch: u64) {
    // Release: whoever reads this knows those to be over that began earlier (4). No fence: what is still under way
    // has its own, in `enter_beside`, and until here an earlier mark held up more than this one does.
    own.store(epoch, Ordering::Release);
}

/// No operation is under way any more.
#[inline]
pub fn leave(own: &Word) {
    // Release: pairs with the acquire in `advance`. Whoever uses memory again stores there
    // behind all that this client did (4).
    own.store(0, Ordering::Release);
}

/// How often another generation began.
#[inline]
pub fn generation(word: &Word) -> u64 {
    // Relaxed: ordered by the fences of `enter` and `renew`, as said there. Both words are in one cache line.
    word.load(Ordering::Relaxed)
}

/// Another generation begins.
pub fn renew(word: &Word) {
    // The order of its own is nothing that anybody rests on: the fence is.
    word.fetch_add(1, Ordering::AcqRel);
    // In front of reading the epoch: who enters in a later one than is read behind this meets
    // the generation, and what took effect before it. Its read of the epoch comes after that one in coherence order, so
    // that this fence is before `Fo`, and what stands in front of the one is seen behind the other.
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
    // Full: `Fa`, behind the read of the epoch (1) and in front of those of the words (3).
    fence(Ordering::SeqCst);
    for (slot, client) in clients.enumerate() {
        // Acquire: pairs with the release of the mark, or of its end (4).
        let since = client.load(Ordering::Acquire);
        if since != 0 && since != epoch && !is_dead(slot) {
            return epoch;
        }
    }
    // One step only: another client may have looked, and moved on, meanwhile. Release: pairs with the acquire in
    // `epoch` (4). Acquire, also where another was first: the caller uses memory again by the epoch that this yields, which
    // others' looks have brought about.
    match word.compare_exchange(epoch - 1, epoch, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => epoch + 1,
        Err(now) => now + 1,
    }
}

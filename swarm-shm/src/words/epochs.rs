//! The epoch's words, and the order in which they are accessed.
//!
//! A client's word is 0 while it is not pinned, or else the epoch in which its oldest operation
//! began. Only the client stores to it, at the beginning and the end of its operations; a client
//! that tries to advance the epoch reads all of them.
//!
//! **Invariant (E2):** the epoch advances only when every operation in progress began in it. The
//! full fence after the exchange that pins pairs with the one before the reads of an advance.
//! Either the advance sees that the operation is in progress, or the operation sees all that took
//! effect before, so that it cannot reach what was retired by then.
//!
//! # Why the orderings suffice
//!
//! By the memory model of C++20, which is Rust's. `E` is the epoch, `W` a client's word. A client
//! that retires an object (*R*) unlinks it with a CAS, which a full fence `Fr` follows
//! ([`fence_behind_cas`]), and reads `E` as `e` after that. An operation (*O*) stores its epoch in
//! `W`, has its fence `Fo`, and then READs. An advance from `e + 1` to `e + 2` (*A*) reads `E`, has
//! its fence `Fa`, and reads the words. A client that finds `e + 2` reuses the object. So O must be
//! over by then, or not have found the object.
//!
//! 1. R reads an older `E` than A reads, so its read precedes A's in coherence order. Hence the
//!    fence before R's read precedes the fence after A's: `Fr` < `Fa` (\[atomics.order\] 4).
//! 2. If `Fr` < `Fo`, O's READs see the object unlinked, or something later: O does not find it.
//! 3. Else `Fo` < `Fr` < `Fa`, and A's read of `W` sees O's store, or a later one of the client.
//!    Then O stored `e` or less: had O read `E` as `e + 1` before `Fo`, R's older read after `Fr`
//!    would put `Fr` first, as in 1. Thus A does not advance while O's value is in `W`.
//! 4. If A reads a later value of `W`, that was stored with release, after the end of O, and A
//!    reads it with acquire: all that O did happens before A's read. A's CAS of `E` releases, later
//!    ones continue with acquire and release, and a client that finds `e + 2` acquires: all that O
//!    did happens before the memory is reused.
//!
//! An operation that begins beside older ones of its client shares their value of `W`. If it finds
//! the epoch that `W` says, it READs after their `Fo`. If it finds a later epoch, that epoch must
//! be held up for it, once the older operations are over and `W` says so: it has an `Fo` of its
//! own, after its read of that epoch, and 3 holds with what `W` says by then ([`pin_beside`]).
//!
//! Nothing assumes that a relaxed load takes effect before a later store: 1 to 3 follow from the
//! single order of the full fences and from coherence, 4 from happens-before, and no load reads
//! from a store that it happens before. So all of it holds in executions with *load buffering* as
//! well, which loom does not simulate.

use crate::words::sync::{Ordering, Word, fence, fence_behind_cas};

/// Returns the epoch. The word counts how often it advanced.
#[inline]
pub fn epoch(word: &Word) -> u64 {
    // Acquire: pairs with the release in `advance`, for clients that reuse memory and did not read
    // the others' words themselves (4).
    word.load(Ordering::Acquire) + 1
}

/// Pins: an operation begins, and no other of this client is in progress. Returns its epoch.
#[inline]
pub fn pin(word: &Word, own: &Word) -> u64 {
    let epoch = epoch(word);
    // Release: pairs with the acquire in `advance`, for what this client did before: a client that
    // reads this value, not the end of the previous operation, knows that one to be over as well
    // (4). An exchange rather than a store, because on x86-64 the fence after it then costs nothing
    // more.
    own.swap(epoch, Ordering::Release);
    // Full: `Fo` (E2).
    fence_behind_cas();
    epoch
}

/// Pins beside other operations of this client, which began in an earlier epoch and hold that up.
/// Returns the epoch of this operation.
#[inline]
pub fn pin_beside(word: &Word) -> u64 {
    let epoch = epoch(word);
    // Full: `Fo` of operations that use this epoch from here on (E2). The one after the older
    // operations' store precedes this read of the epoch, and what was retired before this read may
    // be unlinked after that fence.
    fence(Ordering::SeqCst);
    epoch
}

/// Repins: the oldest operation in progress began in this epoch.
pub fn remain(own: &Word, epoch: u64) {
    // Release: a client that reads this knows operations of earlier epochs to be over (4). No
    // fence: an operation in progress has its own, in `pin_beside`, and until here an earlier
    // value held up more than this one does.
    own.store(epoch, Ordering::Release);
}

/// Unpins: no operation is in progress any more.
#[inline]
pub fn unpin(own: &Word) {
    // Release: pairs with the acquire in `advance`. A client that reuses memory stores there after
    // all that this client did (4).
    own.store(0, Ordering::Release);
}

/// Returns how many generations have begun.
#[inline]
pub fn generation(word: &Word) -> u64 {
    // Relaxed: ordered by the fences of `pin` and `renew`, as argued there. Both words are in one
    // cache line.
    word.load(Ordering::Relaxed)
}

/// Begins another generation.
pub fn renew(word: &Word) {
    // Nothing rests on this ordering: the fence is what counts.
    word.fetch_add(1, Ordering::AcqRel);
    // E7: before the caller reads the epoch: a client that pins in a later epoch than the one read
    // after this sees the generation, and what took effect before it. Its read of the epoch follows
    // that one in coherence order, so that this fence precedes `Fo`, and what precedes the one is
    // visible after the other.
    fence(Ordering::SeqCst);
}

/// Advances the epoch if every operation in progress began in it, except those of dead clients.
/// `clients` are the words, and `is_dead` says whether the client of a word is dead. Returns the
/// epoch after that.
pub fn advance<'w>(
    word: &Word,
    clients: impl Iterator<Item = &'w Word>,
    is_dead: impl Fn(usize) -> bool,
) -> u64 {
    let epoch = epoch(word);
    // Full: `Fa`, after the read of the epoch (1) and before those of the words (3). E2.
    fence(Ordering::SeqCst);
    for (slot, client) in clients.enumerate() {
        // Acquire: pairs with the release of a pin or unpin (4).
        let since = client.load(Ordering::Acquire);
        if since != 0 && since != epoch && !is_dead(slot) {
            return epoch;
        }
    }
    // One step only: another client may have checked and advanced meanwhile. Release: pairs with
    // the acquire in `epoch` (4). Acquire, also if another client was first: the caller reuses
    // memory by the returned epoch, which rests on other clients' checks.
    match word.compare_exchange(epoch - 1, epoch, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => epoch + 1,
        Err(now) => now + 1,
    }
}

//! The cell: replicated read-modify-write, on the memory that registers use.
//!
//! Registers cannot decide which of two changes comes first; a cell can. It is CASPaxos over words.
//! Each node's word names a *record* (the whole state, out of place) and the ballot of the round
//! that put it there. A change replaces the record by one that names it as its predecessor.
//! **Invariant (C2, C5):** a record is built only on a committed one, and a ballot chooses the last
//! record that may be committed. So committed records form one chain.
//!
//! A word is *confirmed* unless it comes from a fast round that is not known to have succeeded at all
//! nodes.
//!
//! | round | roundtrips | committed when |
//! | --- | --- | --- |
//! | [fast](fn@propose), even ballot | 1 | all words went from one accepted word to the record |
//! | [classic](fn@propose), odd ballot | 2: prepare, accept | a majority's words went to it |
//! | [read](fn@read) | 1, or 2 if out of place | the words prove it; else a classic round |
//!
//! Linearization: a change at the CAS that commits its record, whichever client posts it; a read
//! when what it returns is committed or when it begins, whichever is later. (Not when the last of
//! the words that prove it is READ: by then the next record may be committed at other nodes.) A
//! change that is lost is a read.
//!
//! **Invariant (S1):** objects that are created with a record (registers, cells of a split) are in
//! memory at a node before the word that names the record. Chains are FIFO, and a client that
//! brings a record to a node that lacked it first brings what was created with it.

mod accept_request;
mod classic;
mod converged;
mod decide;
mod fast_path;
mod fill;
mod propose;
mod read;
mod record;
mod view;

pub use accept_request::{CreatedPart, CreatedParts, InitialWrite, MAX_CREATED_PARTS, Replicas};
pub use converged::converged;
pub use decide::committed;
pub use fast_path::{FastRound, try_propose, try_read};
pub use fill::fill;
pub use propose::{Proposal, Proposed, propose, propose_on};
pub use read::{Committed, read};
pub use view::View;

use crate::clock::Clock;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Location, cell, cell_checksum};
use crate::quorum::{Event, Group, Round};
use crate::words::CellWord;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use zerocopy::IntoBytes;

/// Maximum number of rounds that an operation begins. Each but the last was lost to another
/// client's higher ballot, and back-off makes room; the deadline usually ends it sooner.
const ATTEMPTS: u32 = 4096;

/// Where a cell lies, and the payload capacity of its in-place copy and of each of its records.
///
/// Zeroed memory is a cell in which nothing was committed yet. It has four words and the payload's,
/// unless its copy lies further behind the word.
#[derive(Clone, Copy, Debug)]
pub struct CellRef {
    /// Where it lies.
    pub place: Location,
    /// Payload capacity in words.
    pub room: usize,
    /// Offset of the in-place copy in the replica at home, in words.
    pub in_place: usize,
}

impl CellRef {
    /// Returns the cell at `place`, with the in-place copy right behind its word.
    pub fn new(place: Location, room: usize) -> Self {
        Self { place, room, in_place: cell::IN_PLACE }
    }

    /// Returns how many words from the cell's word on a read takes of a node's replica.
    pub fn words_to_read(&self, is_home: bool) -> usize {
        if is_home { self.in_place + cell::IN_PLACE_WORDS + self.room } else { 1 }
    }
}

/// Returns the verb that puts `payload` in place at the home node, for `word`.
///
/// Only a hint for readers (C8): one that finds another word there or a wrong checksum fetches the
/// record.
fn in_place<'a>(at: &CellRef, n: usize, head: &'a [u64; 3], payload: &'a [u64]) -> Verb<'a> {
    let at = at.place.at(at.place.home, n).plus(at.in_place);
    Verb::Write { at, head, tail: payload.as_bytes() }
}

/// Returns the words before the payload in place.
#[inline]
fn in_place_head(word: CellWord, payload: &[u64]) -> [u64; cell::IN_PLACE_WORDS] {
    [word.0, cell_checksum(word, payload), payload.len() as u64]
}

/// Returns the event that `round` has ready, without waiting.
async fn ready<'f, F: Fabric, C: Clock>(
    round: &mut Round<'f, F, C>,
) -> Option<Event<F::Reply<'f>>> {
    let mut next = pin!(round.next());
    poll_fn(|cx| match next.as_mut().poll(cx) {
        Poll::Ready(event) => Poll::Ready(Some(event)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Waits for a random time that grows with `attempt`, so that duelling proposers stop colliding.
async fn back_off<F: Fabric, C: Clock>(group: &Group<F, C>, attempt: u32) {
    group.count_retry();
    group.pause(group.dice(u64::from(attempt)) % (1024 << attempt.min(10))).await;
}

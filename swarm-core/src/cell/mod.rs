//! The cell: replicated read-modify-write, on the memory that registers use.
//!
//! Registers cannot decide which of two changes comes first; a cell can. It is CASPaxos over words:
//! each node's word names a *record* (the whole state, out of place) and the ballot of the round
//! that put it there, and a change replaces the record by one that names it as its predecessor. It
//! all rests on this: *a record is built only on a committed one, and whoever may choose chooses
//! the last record that may be committed*, so committed records form one chain.
//!
//! | round | roundtrips | committed when |
//! | --- | --- | --- |
//! | [fast](propose), even ballot | 1 | every node's word went from the same accepted word to the record |
//! | [classic](propose), odd ballot | 2: prepare, accept | a majority's words did |
//! | [read] | 1, or 2 with the record out of place | words tell; else a classic round |
//!
//! Linearization: a change at the CAS that commits its record, whoever posts it; a read when what it
//! returns is committed or when it begins, whichever is later. (Not when the last of the words that
//! tell is READ: at other nodes the next record may be committed by then.) A change that is lost is
//! a read.
//!
//! What is *born* with a record (registers, cells of a split) is in memory at every node in front of
//! the word that names the record: chains are FIFO, and who brings a record to a node that did not
//! have it brings what was born with it first.

mod classic;
mod judge;
mod offer;
mod propose;
mod quiet;
mod read;
mod record;
mod view;

pub use judge::committed;
pub use offer::{Birth, Births, MAX_BIRTHS, Newborn, Replicas};
pub use propose::{Proposal, Proposed, propose};
pub use quiet::quiet;
pub use read::{Committed, read};
pub use view::View;

use crate::clock::Clock;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Place, cell, cell_checksum};
use crate::quorum::{Event, Group, Round};
use crate::words::CellWord;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use zerocopy::IntoBytes;

/// Rounds that an operation begins at most. Each but the last was lost to another client's higher
/// ballot, and back-off makes room; the deadline usually ends it sooner.
const ATTEMPTS: u32 = 4096;

/// Where a cell lies, and how many words of payload its in-place copy and each of its records have
/// room for.
#[derive(Clone, Copy, Debug)]
pub struct CellRef {
    /// Where it lies.
    pub place: Place,
    /// Words of payload.
    pub room: usize,
}

/// The verb that puts `payload` in place at the home node, for `word`.
///
/// Only a hint for readers: who finds another word there or a wrong checksum fetches the record.
fn in_place<'a>(at: &CellRef, n: usize, head: &'a [u64; 3], payload: &'a [u64]) -> Verb<'a> {
    let at = at.place.at(at.place.home, n).plus(cell::IN_PLACE);
    Verb::Write { at, head, tail: payload.as_bytes() }
}

/// The words in front of the payload in place.
fn in_place_head(word: CellWord, payload: &[u64]) -> [u64; cell::IN_PLACE_WORDS] {
    [word.0, cell_checksum(word, payload), payload.len() as u64]
}

/// What `round` has ready, without waiting.
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

/// Gets out of a duelling proposer's way, for a random while that grows.
async fn back_off<F: Fabric, C: Clock>(group: &Group<F, C>, attempt: u32) {
    group.count_retry();
    group.pause(group.dice(u64::from(attempt)) % (1024 << attempt.min(10))).await;
}

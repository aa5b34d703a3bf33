//! The first roundtrip of a read, and the fast round, on synchronous fabrics: straight-line code.
//!
//! A read goes by a majority's words, home first, and otherwise starts over in the general path: it has
//! changed nothing. The fast round does what the general [fast round](fn@super::propose) does if the view allows one, nothing is
//! created with the record and its memory need not be saved: all nodes are asked, whatever the first ones show, and all of them have
//! answered when the last chain was posted. If every word went from the base to the record, the change
//! is committed. Otherwise the general path continues with what the words showed, and with the same
//! record, which some nodes may name.

use zerocopy::IntoBytes;

use super::accept_request::accepted_at;
use super::decide::{confirmed_word, fast_after};
use super::propose::{Fast, Proposal};
use super::read::Committed;
use super::view::{View, Words, last_for_changes};
use super::{CellRef, in_place_head};
use crate::clock::Clock;
use crate::fabric::{Fabric, Store, Swap};
use crate::layout::{RecordHeader, cell, record};
use crate::node::{MAX_NODES, NodeSet};
use crate::quorum::Group;
use crate::words::{CellFlags, CellWord};

/// A fast round that did not commit its record.
pub struct FastRound {
    /// The word that every node was expected to show.
    pub(super) base: CellWord,
    /// What they showed.
    pub(super) words: Words,
    /// What that means.
    pub(super) outcome: Fast,
}

impl FastRound {
    /// Whether the change is lost unless [`propose_on`](super::propose_on) goes on with it: no ballot chooses
    /// its record.
    #[inline]
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, Fast::Refused)
    }
}

/// Does the first roundtrip of a [read](super::read()): the words of a majority, and the copy in place at
/// home. Returns the committed record's payload if the words prove it and the copy is whole.
#[inline]
pub fn try_read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
) -> Option<Committed<'f, F>> {
    let (n, fabric, home) = (group.nodes(), group.fabric(), at.place.home);
    if !fabric.is_near() || !group.suspects().is_empty() {
        return None;
    }
    let at_home = at.place.at(home, n).plus(cell::WORD);
    let words = at.words_to_read(true);
    let reply = fabric.fetch(home, at_home, words)?;
    let mut seen = [None; MAX_NODES];
    seen[home.index()] = reply.first().copied().map(CellWord);
    let others = NodeSet::ring(home, group.majority(), n).minus(NodeSet::ring(home, 1, n));
    for node in others {
        let at = at.place.at(node, n).plus(cell::WORD);
        seen[node.index()] = fabric.load::<1>(node, at).map(|[word]| CellWord(word));
    }
    fabric.charge(1 + others.len(), 8 * (words + others.len()));
    Committed::in_place(View::of(group.format(), n, &seen)?, seen[home.index()]?, at, reply)
}

/// Does the fast round of a proposal. Returns the view if its record is committed. Otherwise leaves
/// in `round` what [`propose_on`](super::propose_on) continues from; nothing, if nothing was posted.
#[inline]
pub fn try_propose<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    on: &View,
    proposal: &Proposal<'_>,
    round: &mut Option<FastRound>,
) -> Option<View> {
    let (n, format, fabric) = (group.nodes(), group.format(), group.fabric());
    let Proposal { change, record, payload, initial_writes, sparing } = *proposal;
    let is_plain = initial_writes.is_empty() && !sparing && payload.len() <= at.room;
    if !fabric.is_near() || !is_plain {
        return None;
    }
    let base = on.fast_base(format, n, group.suspects())?;
    // S6: what is exhausted takes no change. The view has no other word.
    if format.ballot(base).0 > last_for_changes(format) {
        return None;
    }
    let ballot = fast_after(format.ballot(base));
    let new = format.cell(ballot, record, CellFlags::ACCEPTED);
    let head = RecordHeader::new(record, base, change, payload).encode();
    let accepted = accepted_at(record);
    let body = accepted.plus(record::BODY - record::ACCEPTED);
    let store = Store { at: body, head: &head, tail: payload.as_bytes() };
    // C4: by CAS, before a word names the record.
    let accept = Swap { at: accepted, expect: 0, new: ballot.0 };
    let (mut found, mut all) = ([None; MAX_NODES], true);
    for node in NodeSet::all(n) {
        let word = at.place.at(node, n).plus(cell::WORD);
        let name = Swap { at: word, expect: base.0, new: new.0 };
        let was = fabric.write_cas_cas(node, store, [accept, name]).map(CellWord);
        found[node.index()] = was;
        all &= was == Some(base);
    }
    let (verbs, bytes) = (3 * n, n * 8 * (head.len() + payload.len() + 2));
    // C1: all n, as in the general fast round.
    if !all {
        fabric.charge(verbs, bytes);
        *round = Some(missed(group, on, (base, new), &found));
        return None;
    }
    let confirmed = confirmed_word(format, new);
    let head = in_place_head(confirmed, payload);
    for node in NodeSet::all(n) {
        let at_node = at.place.at(node, n);
        let copy = Store { at: at_node.plus(at.in_place), head: &head, tail: payload.as_bytes() };
        let confirm = Swap { at: at_node.plus(cell::WORD), expect: new.0, new: confirmed.0 };
        fabric.write_cas(node, (node == at.place.home).then_some(copy), confirm);
    }
    fabric.charge(verbs + n + 1, bytes + 8 * (n + head.len() + payload.len()));
    Some(View::everywhere(record, confirmed, n))
}

/// Returns what a round that did not commit its record leaves to do: from `base` to `new`, where the
/// nodes' words were `found`.
#[cold]
fn missed<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    on: &View,
    (base, new): (CellWord, CellWord),
    found: &[Option<CellWord>; MAX_NODES],
) -> FastRound {
    let (n, format) = (group.nodes(), group.format());
    let mut words = Words::new(format, n, on);
    let mut missed = NodeSet::EMPTY;
    for node in NodeSet::all(n) {
        match found[node.index()] {
            Some(was) if was == base => words.saw(node, new),
            Some(was) => {
                words.saw(node, was);
                missed.insert(node);
            }
            // Its chain may have taken effect.
            None => words.expect(node, new),
        }
    }
    let is_refused = missed.len() >= group.majority();
    FastRound { base, words, outcome: if is_refused { Fast::Refused } else { Fast::Open } }
}

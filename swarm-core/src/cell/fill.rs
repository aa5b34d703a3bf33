//! Filling: a cell is brought to the node that takes a lost one's place.
//!
//! The steps around it are those of a register's [fill](crate::register::fill): the lost node is
//! gone for every client, every operation that began before is over, and only clients that fill
//! post to the new node until it votes.
//!
//! **Invariant (H2):** the new node shows the committed record, accepted under a ballot under which
//! another node accepted it. The client that proposed that ballot had chosen the record, and may have asked
//! the lost node as well. So the new node is one that missed what came later, and nothing else. A
//! record that was committed before the lost node was gone is at f of the others at least, and any
//! f + 1 of them include one: what a read among them returns is that record or one built on it
//! (C2). A later ballot is promised and accepted by f + 1 of the others, which every majority with
//! the new node meets.
//!
//! What was created with the record is not brought. A client that fills a cell fills what its record
//! lists as well, before the new node votes (S1); the words that lie there may belong to other
//! objects by now (E4a).

use super::accept_request::{Chain, CreatedParts, accepted_at, push};
use super::read::{Committed, read};
use super::record::{WhenLate, fetch};
use super::{ATTEMPTS, CellRef, in_place, in_place_head};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, NodeDown, Verb};
use crate::layout::{cell, record};
use crate::node::{NodeId, NodeSet};
use crate::quorum::Group;
use crate::words::{Ballot, CellFlags, CellWord, Pointer};
use core::ops::Deref;
use zerocopy::IntoBytes;

/// Brings the cell to `node`, which takes a lost node's place and does not vote yet. Returns the
/// committed record, whose objects are to be filled as well.
///
/// `group` sees the other nodes alone: its fabric answers for `node` that it is down. `joining`
/// posts to the new node. The caller is pinned, so that the record is not reused meanwhile. A vacant
/// cell takes nothing. A second fill, by whichever client, changes nothing or brings a later record.
///
/// Four roundtrips; more if a change is in progress among the others: this completes it.
///
/// # Cancel safety
/// Dropping the future leaves the cell at the new node half filled; another fill completes it.
///
/// # Errors
/// Those of [`read`]; [`Error::Contended`] also if other fillers always have a later record;
/// [`Error::NoMajority`] also if the new node does not answer.
pub async fn fill<'f, F: Fabric, N: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    created_parts: &dyn CreatedParts,
    joining: (&N, NodeId),
) -> Result<Committed<'f, F>, Error> {
    for _ in 0..ATTEMPTS {
        let found = read(group, at, created_parts).await?;
        if found.view.record().is_null() || put(group, at, found.view.record(), joining).await? {
            return Ok(found);
        }
    }
    Err(Error::Contended)
}

/// Puts the committed record at the new node. Returns `false` if that names a later one, which
/// another filler read.
async fn put<F: Fabric, N: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    pointer: Pointer,
    (joining, node): (&N, NodeId),
) -> Result<bool, Error> {
    let (n, format) = (group.nodes(), group.format());
    let body = fetch(group, at, pointer, (NodeSet::all(n), WhenLate::Wait)).await?;
    // H2: as one of the others accepted it.
    let ballot = body.accepted();
    let word = format.cell(ballot, pointer, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
    let (head, in_place_head) = (body.header.encode(), in_place_head(word, body.payload()));
    let mut chain = Chain::new();
    let image = accepted_at(pointer).plus(record::BODY - record::ACCEPTED);
    push(&mut chain, Verb::Write { at: image, head: &head, tail: body.payload().as_bytes() });
    if node == at.place.home {
        push(&mut chain, in_place(at, n, &in_place_head, body.payload()));
    }
    // I4: control words are not written. C4: the word waits for its record's accepted ballot, which
    // a filler that died may have left smaller. Ends, as it only grows.
    let mut from = Ballot(0);
    push(&mut chain, raise(pointer, from, ballot));
    loop {
        let was = Ballot(last_word(joining.post(node, &chain).await)?);
        if was == from || was >= ballot {
            break;
        }
        from = was;
        chain.clear();
        push(&mut chain, raise(pointer, from, ballot));
    }
    // The word only grows as well, from what a filler that died left there. What is named is what
    // the caller fills next, so a later record is not passed over (S1).
    let at = at.place.at(node, n).plus(cell::WORD);
    let mut expect = CellWord(0);
    loop {
        let chain = [Verb::Cas { at, expect: expect.0, new: word.0 }];
        let was = CellWord(last_word(joining.post(node, &chain).await)?);
        if was == expect || format.record(was) == pointer {
            return Ok(true);
        }
        if was.0 > word.0 {
            return Ok(false);
        }
        expect = was;
    }
}

/// Returns the CAS that raises the record's accepted ballot.
fn raise(record: Pointer, from: Ballot, to: Ballot) -> Verb<'static> {
    Verb::Cas { at: accepted_at(record), expect: from.0, new: to.0 }
}

/// Returns the last word of the new node's answer.
fn last_word<R: Deref<Target = [u64]>>(answer: Result<R, NodeDown>) -> Result<u64, Error> {
    let reply = answer.map_err(|_| Error::NO_ANSWER)?;
    Ok(reply.last().copied().unwrap_or_default())
}

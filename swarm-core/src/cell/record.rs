//! Records: fetching them, and what was created with them; following their predecessors.

use heapless::Vec;

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{RecordHeader, record};
use crate::node::NodeSet;
use crate::quorum::{Group, Next};
use crate::words::{Ballot, Pointer, WriteNumber};

use super::CellRef;
use crate::cell::accept_request::{
    Chain, CreatedPart, CreatedParts, MAX_CREATED_PARTS, accepted_at, push,
};

/// A complete record. Holds the fabric's reply.
pub(super) struct Body<'f, F: Fabric + 'f> {
    reply: F::Reply<'f>,
    pub(super) header: RecordHeader,
}

impl<'f, F: Fabric> Body<'f, F> {
    /// Validates a reply. Returns `None` if the node does not have the record, or not all of it.
    fn check(pointer: Pointer, room: usize, reply: F::Reply<'f>) -> Option<Self> {
        let header = RecordHeader::decode(reply.get(record::BODY..)?)?;
        // The accepted ballot was READ first, and is raised after the record was written. C5: 0
        // means that the rest may belong to an earlier use of the memory, with a valid checksum.
        if reply[record::ACCEPTED] == 0 || header.length > room {
            return None;
        }
        let payload = reply.get(record::HEADER_WORDS..record::HEADER_WORDS + header.length)?;
        header.agrees(pointer, payload).then_some(())?;
        Some(Self { reply, header })
    }

    /// Returns the ballot under which it was accepted there.
    pub(super) fn accepted(&self) -> Ballot {
        Ballot(self.reply[record::ACCEPTED])
    }

    /// Returns the record's payload.
    pub(super) fn payload(&self) -> &[u64] {
        &self.reply[record::HEADER_WORDS..record::HEADER_WORDS + self.header.length]
    }

    /// Returns the reply, and the position and length of the payload in it.
    pub(super) fn into_reply(self) -> (F::Reply<'f>, usize, usize) {
        (self.reply, record::HEADER_WORDS, self.header.length)
    }
}

/// Returns the node of `among` to ask first: the home node, unless it is suspect and others are
/// not.
fn first<F: Fabric, C: Clock>(group: &Group<F, C>, at: &CellRef, among: NodeSet) -> NodeSet {
    let healthy = among.minus(group.suspects());
    let mut from = if healthy.is_empty() { among } else { healthy };
    let home = at.place.home;
    if from.contains(home) {
        return NodeSet::ring(home, 1, group.nodes());
    }
    from.next().map_or(NodeSet::EMPTY, |node| NodeSet::ring(node, 1, group.nodes()))
}

/// What to do when all nodes that may have something are late.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenLate {
    /// Wait for them: it is known to be nowhere else.
    Wait,
    /// Give up: a later ballot determines whether it matters.
    GiveUp,
}

impl WhenLate {
    /// Returns what a round does at a node that cannot help.
    fn elsewhere<T>(self) -> Next<T> {
        match self {
            Self::Wait => Next::NoVote,
            Self::GiveUp => Next::Missing,
        }
    }
}

/// Fetches the record at `pointer` from a node of `among` that has all of it. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`] if none answers with the complete record, [`Error::Damaged`] if all nodes
/// to wait for answer without it.
pub(super) async fn fetch<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    pointer: Pointer,
    (among, when_late): (NodeSet, WhenLate),
) -> Result<Body<'f, F>, Error> {
    let accepted = accepted_at(pointer);
    let body = record::HEADER_WORDS - record::BODY + at.room;
    let chain = [
        Verb::Read { at: accepted, words: 1 },
        Verb::Read { at: accepted.plus(record::BODY - record::ACCEPTED), words: body },
    ];
    let (mut found, mut torn) = (None, NodeSet::EMPTY);
    let step = |node, reply: Option<F::Reply<'f>>| match reply {
        None if !among.contains(node) => when_late.elsewhere(),
        None => Next::Post(group.fabric().post(node, &chain)),
        Some(reply) => {
            found = Body::check(pointer, at.room, reply);
            if found.is_some() {
                return Next::Vote;
            }
            torn.insert(node);
            Next::NoVote
        }
    };
    match group.collect_votes(first(group, at, among), 1, step).await {
        // All of them answered; what must be there is not.
        Err(Error::NoMajority { .. }) if when_late == WhenLate::Wait && torn == among => {
            Err(Error::Damaged)
        }
        settled => settled.and(found.ok_or(Error::Damaged)),
    }
}

/// What was created with a record, and a reply with the words to copy.
pub(super) struct Fetched<'f, F: Fabric + 'f> {
    pub(super) created_parts: Vec<CreatedPart, MAX_CREATED_PARTS>,
    copies: Option<F::Reply<'f>>,
}

impl<F: Fabric> Fetched<'_, F> {
    /// Returns the words to copy, one part's after the other's.
    pub(super) fn copies(&self) -> &[u64] {
        self.copies.as_deref().unwrap_or(&[])
    }
}

/// Fetches what was created with a record of this payload from one of `holders`, which had all of
/// it before their words named the record. One roundtrip, none if nothing is to be copied.
///
/// # Errors
/// [`Error::NoMajority`] if no holder answers, [`Error::Damaged`] if there are too many parts.
pub(super) async fn fetch_to_adopt<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    payload: &[u64],
    created_parts: &dyn CreatedParts,
    holders: NodeSet,
) -> Result<Fetched<'f, F>, Error> {
    let mut all = Vec::new();
    let mut overflow = false;
    created_parts.created_parts(payload, &mut |part| overflow |= all.push(part).is_err());
    if overflow {
        return Err(Error::Damaged);
    }
    let n = group.nodes();
    let mut copies = None;
    if all.iter().any(|part| matches!(part, CreatedPart::Copy { .. })) {
        let step = |node, reply: Option<F::Reply<'f>>| match reply {
            // If holders die, another ballot determines whether the record matters.
            None if !holders.contains(node) => WhenLate::GiveUp.elsewhere(),
            None => {
                let mut chain = Chain::new();
                for part in &all {
                    if let CreatedPart::Copy { place, from, words } = *part {
                        push(&mut chain, Verb::Read { at: place.at(node, n).plus(from), words });
                    }
                }
                Next::Post(group.fabric().post(node, &chain))
            }
            Some(reply) => {
                copies = Some(reply);
                Next::Vote
            }
        };
        group.collect_votes(first(group, at, holders), 1, step).await?;
    }
    Ok(Fetched { created_parts: all, copies })
}

/// A path along the predecessors of committed records.
///
/// Both ends must be committed. A record that was not may have been written to memory that a record
/// of an earlier use names.
pub(super) struct Way {
    /// The record at which the path starts.
    pub(super) from: Pointer,
    /// The record at which it ends, committed before `from` was built.
    pub(super) to: Pointer,
    /// At least the ballot under which `from` was committed.
    pub(super) top: Ballot,
}

/// Returns whether a record of `change` is on the path (C6); `body` is its start, if that was
/// fetched. One roundtrip for each record on it.
///
/// The path has one record for each change that others made while this client was stopped, so it is
/// bounded by the ballots and the deadline. Each record was committed under a ballot of its own,
/// smaller than that of the record built on it. The client that built that one knew it to be
/// committed, and from then on no ballot chooses an earlier one (C2). So every ballot under which a
/// record was accepted anywhere is smaller than the smallest under which the next one was
/// committed. After `n` records there are `n` ballots fewer. Otherwise the records form a cycle, or
/// lead somewhere else.
///
/// # Errors
/// [`Error::Damaged`] if the records do not lead to its end, [`Error::Contended`] if they have not
/// by the deadline; those of [`fetch`].
pub(super) async fn includes<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    Way { from: mut record, to, top }: Way,
    body: Option<&Body<'f, F>>,
    change: WriteNumber,
) -> Result<bool, Error> {
    let mut wait = Wait::new(group.clock().now());
    let mut at_hand = body.map(|body| (body.header, body.accepted()));
    for passed in 0..=top.0 {
        if record == to {
            return Ok(false);
        }
        if record.is_null() {
            break;
        }
        let (header, accepted) = match at_hand.take() {
            Some(body) => body,
            None => {
                let everyone = (NodeSet::all(group.nodes()), WhenLate::Wait);
                let body = fetch(group, at, record, everyone).await?;
                (body.header, body.accepted())
            }
        };
        if header.writer == change {
            return Ok(true);
        }
        // (The first record may be on its way to an even larger ballot.)
        if passed > 0 && accepted.0.saturating_add(passed) > top.0 {
            break;
        }
        if wait.is_over(group.timeouts().deadline, group.clock().now()) {
            return Err(Error::Contended);
        }
        record = group.format().record(header.base);
    }
    Err(Error::Damaged)
}

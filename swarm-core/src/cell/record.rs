//! Records: fetching them, and what was born with them; walking back along them.

use heapless::Vec;

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{RecordHeader, record};
use crate::node::NodeSet;
use crate::quorum::{Group, Next};
use crate::words::{Ballot, Pointer, WriteNumber};

use super::CellRef;
use super::offer::{Birth, Births, Chain, MAX_BIRTHS, accepted_at, push};

/// A record that is whole. Holds the fabric's reply.
pub(super) struct Body<'f, F: Fabric + 'f> {
    reply: F::Reply<'f>,
    pub(super) header: RecordHeader,
}

impl<'f, F: Fabric> Body<'f, F> {
    /// `None` if the node does not have the record, or not all of it.
    fn check(pointer: Pointer, room: usize, reply: F::Reply<'f>) -> Option<Self> {
        let header = RecordHeader::decode(reply.get(record::BODY..)?)?;
        // The accepted ballot was READ first, and is raised behind the record: 0 means that what
        // follows may be a former life's, which agrees with itself.
        if reply[record::ACCEPTED] == 0 || header.length > room {
            return None;
        }
        let payload = reply.get(record::HEADER_WORDS..record::HEADER_WORDS + header.length)?;
        header.agrees(pointer, payload).then_some(())?;
        Some(Self { reply, header })
    }

    /// Under which ballot it was accepted there.
    fn accepted(&self) -> Ballot {
        Ballot(self.reply[record::ACCEPTED])
    }

    /// What the record says.
    pub(super) fn payload(&self) -> &[u64] {
        &self.reply[record::HEADER_WORDS..record::HEADER_WORDS + self.header.length]
    }

    /// The reply, and where in it the payload lies.
    pub(super) fn into_reply(self) -> (F::Reply<'f>, usize, usize) {
        (self.reply, record::HEADER_WORDS, self.header.length)
    }
}

/// One of `among` to turn to first: the home node, unless it or all others are suspect.
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
    /// Do without: a later ballot tells whether it matters.
    GiveUp,
}

impl WhenLate {
    /// What a round does at a node that cannot help it.
    fn elsewhere<T>(self) -> Next<T> {
        match self {
            Self::Wait => Next::NoVote,
            Self::GiveUp => Next::Missing,
        }
    }
}

/// Fetches the record at `pointer` from one of `among` that has it whole. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`] if none answers with the whole record, [`Error::Damaged`] if all that are
/// to be waited for answer without.
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
    match group.settle(first(group, at, among), 1, step).await {
        // They did answer; what must be there is not.
        Err(Error::NoMajority { .. }) if when_late == WhenLate::Wait && torn == among => {
            Err(Error::Damaged)
        }
        settled => settled.and(found.ok_or(Error::Damaged)),
    }
}

/// What was born with a record, and a reply with the words to copy of it.
pub(super) struct Brought<'f, F: Fabric + 'f> {
    pub(super) births: Vec<Birth, MAX_BIRTHS>,
    copies: Option<F::Reply<'f>>,
}

impl<F: Fabric> Brought<'_, F> {
    /// The words to copy, one birth's behind the other's.
    pub(super) fn copies(&self) -> &[u64] {
        self.copies.as_deref().unwrap_or(&[])
    }
}

/// Fetches what was born with a record of this payload from one of `holders`, where all of it has
/// been since before the word named the record. One roundtrip, none if nothing is to be copied.
///
/// # Errors
/// [`Error::NoMajority`] if no holder answers, [`Error::Damaged`] if there are too many births.
pub(super) async fn bring<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    payload: &[u64],
    births: &impl Births,
    holders: NodeSet,
) -> Result<Brought<'f, F>, Error> {
    let mut all = Vec::new();
    let mut overflow = false;
    births.births(payload, &mut |birth| overflow |= all.push(birth).is_err());
    if overflow {
        return Err(Error::Damaged);
    }
    let n = group.nodes();
    let mut copies = None;
    if all.iter().any(|birth| matches!(birth, Birth::Copy { .. })) {
        let step = |node, reply: Option<F::Reply<'f>>| match reply {
            // Holders that died leave it to another ballot whether the record matters.
            None if !holders.contains(node) => WhenLate::GiveUp.elsewhere(),
            None => {
                let mut chain = Chain::new();
                for birth in &all {
                    if let Birth::Copy { place, from, words } = *birth {
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
        group.settle(first(group, at, holders), 1, step).await?;
    }
    Ok(Brought { births: all, copies })
}

/// The way back along committed records.
///
/// Both ends must be committed: a record that was not may have been built in memory that a record of
/// another life names.
pub(super) struct Way {
    /// Where it begins.
    pub(super) from: Pointer,
    /// Where it ends, before its beginning was built.
    pub(super) to: Pointer,
    /// No smaller than the ballot under which its beginning was committed.
    pub(super) top: Ballot,
}

/// Whether a record of `change` lies on the way; `body`: its beginning, if that is at hand. A roundtrip for each
/// record since.
///
/// It is as long as others made it while this client was held up, so that its bounds are the ballots and
/// the deadline. Each record was committed under a ballot of its own, smaller than that of the one built on it:
/// whoever built that knew it to be committed, and from then on no ballot chooses one before it (C2). So no
/// ballot under which a record was accepted anywhere reaches the smallest under which the next one was
/// committed, and behind `n` records there are `n` ballots fewer. Where there are not, the records lead
/// round in a circle, or somewhere else.
///
/// # Errors
/// [`Error::Damaged`] if the records do not lead to its end, [`Error::Contended`] if they have not until the
/// deadline; those of [`fetch`].
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
        // (The first may be under way to a larger ballot still.)
        if passed > 0 && accepted.0.saturating_add(passed) > top.0 {
            break;
        }
        if wait.is_over(group.patience().deadline, group.clock().now()) {
            return Err(Error::Contended);
        }
        record = group.format().record(header.base);
    }
    Err(Error::Damaged)
}

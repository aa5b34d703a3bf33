//! Changing a cell.

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::cell;
use crate::node::{NodeId, NodeSet};
use crate::quorum::{Event, Group, Round};
use crate::words::{Ballot, CellFlags, CellWord, Pointer, WriteNumber};

use super::classic::{Own, classic};
use super::fast_path::{FastRound, try_propose};
use super::record::{Way, includes};
use super::view::{View, Words};
use super::{ATTEMPTS, CellRef, back_off, in_place, in_place_head, ready};
use crate::cell::accept_request::{
    AcceptRequest, Chain, CreatedParts, InitialWrite, MAX_CREATED_PARTS, push,
};
use crate::cell::decide::fast_after;

/// A change.
#[derive(Clone, Copy, Debug)]
pub struct Proposal<'a> {
    /// The change's number: no other change in the pool has it.
    pub change: WriteNumber,
    /// Where its record will lie, at the same address everywhere: newly allocated memory, whose
    /// accepted ballot is 0 at every node, for this proposal alone.
    pub record: Pointer,
    /// The record's payload.
    pub payload: &'a [u64],
    /// What is created with it, at most [`MAX_CREATED_PARTS`] parts, in the order in which they must be
    /// written.
    pub initial_writes: &'a [InitialWrite<'a>],
    /// Whether to save the record's memory. A lost proposal usually comes too late at every node;
    /// then its record can be freed, for one more roundtrip.
    pub sparing: bool,
}

/// The outcome of a proposal.
#[derive(Clone, Copy, Debug)]
pub enum Proposed {
    /// The record is committed. The view's record is it, or one that other clients have built on it
    /// since.
    Committed(View),
    /// The record is not committed and never will be: other clients changed the cell first.
    Lost {
        /// The record's memory is as it was before, and may serve another proposal: no node has
        /// ever named it, and its accepted ballot is 0 at every node.
        unused: bool,
    },
}

/// Proposes to replace the record that is committed according to `on`: what a [read](super::read())
/// or an earlier proposal showed, or [`View::VACANT`], for a cell in which nothing is known to be.
///
/// One roundtrip if every node shows the word that `on` expects. This *fast* round needs all of
/// them, because two clients may use the same fast ballot. Two roundtrips if a node is missing or
/// lags (a *classic* round). More if other clients change the cell at the same time.
///
/// # Cancel safety
/// Dropping the future leaves the change to be completed or undone by the next client that uses the
/// cell.
///
/// # Errors
/// [`Error::NoMajority`] or [`Error::Contended`]: the change may or may not take effect.
/// [`Error::Exhausted`] before anything was posted. [`Error::Damaged`]. For a client that was
/// stopped while others changed the cell, the later records determine [`Proposed::Lost`] or
/// [`Proposed::Committed`]; [`Error::Contended`] if following them takes longer than the deadline.
///
/// # Panics
/// If the cell's records have no room for the payload, or if too many parts are created.
pub async fn propose<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    on: &View,
    proposal: &Proposal<'_>,
    created_parts: &dyn CreatedParts,
) -> Result<Proposed, Error> {
    let mut round = None;
    match try_propose(group, at, on, proposal, &mut round) {
        Some(view) => Ok(Proposed::Committed(view)),
        None => propose_on(group, at, on, proposal, created_parts, &mut round).await,
    }
}

/// Continues a proposal whose fast round [`try_propose`] has done, if it has; takes what that left.
///
/// # Cancel safety
/// As [`propose`].
///
/// # Errors
/// As [`propose`].
///
/// # Panics
/// As [`propose`].
pub async fn propose_on<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    on: &View,
    proposal: &Proposal<'_>,
    created_parts: &dyn CreatedParts,
    round: &mut Option<FastRound>,
) -> Result<Proposed, Error> {
    assert!(proposal.payload.len() <= at.room, "a payload needs room in the cell's records");
    assert!(
        proposal.initial_writes.len() <= MAX_CREATED_PARTS,
        "created parts must fit into a chain"
    );
    let Proposal { change, record, payload, initial_writes, sparing } = *proposal;
    let (n, base) = (group.nodes(), on.record());
    let (mut words, word, tried) = match round.take() {
        Some(FastRound { base, words, outcome }) => (words, Some(base), Some(outcome)),
        None => {
            let words = Words::new(group.format(), n, on);
            words.check_room()?;
            (words, on.fast_base(group.format(), n, group.suspects()), None)
        }
    };
    // C1: a client that finds the record not confirmed takes this word for the accepted one. Without a
    // fast round no client finds it so.
    let below = word.unwrap_or(group.format().cell(Ballot(0), base, CellFlags::empty()));
    let request = AcceptRequest::own(record, below, change, payload, initial_writes);
    let mut own = Own { base, request, open: false };
    if let Some(word) = word {
        own.request.fresh = false;
        let outcome = match tried {
            Some(outcome) => outcome,
            None => fast(group, at, &mut words, word, &own.request, sparing).await?,
        };
        match outcome {
            Fast::Won(view) => return Ok(Proposed::Committed(view)),
            Fast::Unnamed(ballot) if sparing => {
                own.request.fresh = unraise(group, &own.request, ballot).await;
            }
            Fast::Unnamed(_) | Fast::Refused => {}
            Fast::Open => own.open = true,
        }
    }
    group.count_slow();
    let mut wait = Wait::new(group.clock().now());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            if wait.is_over(group.timeouts().deadline, group.clock().now()) {
                break;
            }
            back_off(group, attempt).await;
        }
        // What a lost round showed may be enough.
        let (committed, view, body) = match words.committed() {
            Some((committed, _)) if committed != base => (committed, words.view(committed), None),
            _ => match classic(group, at, &mut words, Some(&mut own), created_parts).await? {
                Some(decided) => (decided.view.record(), decided.view, decided.body),
                None => continue,
            },
        };
        // A cell in which something was committed is never vacant again. (Words that were reset to
        // those of an earlier record are detected only by following predecessors, one roundtrip per
        // record, which is done where the outcome depends on it. A client that knows no record of
        // the cell cannot tell lost words from words that were never there.)
        if committed.is_null() && !base.is_null() {
            return Err(Error::Damaged);
        }
        // C6: a change is applied once. This record may have been adopted and built upon before it
        // was found missing. Committed records form one chain, so one that is not in this part of
        // it never will be. A record that no ballot ever chose need not be searched for, however
        // long the chain is by now.
        let way = Way { from: committed, to: base, top: words.top() };
        let mine = committed == record
            || own.open && includes(group, at, way, body.as_ref(), change).await?;
        // A record that is still fresh has not been sent to any node since.
        let unused = own.request.fresh;
        return Ok(if mine { Proposed::Committed(view) } else { Proposed::Lost { unused } });
    }
    Err(Error::Contended)
}

/// The outcome of a fast round.
pub(super) enum Fast {
    /// Every node's word went from the base to the record.
    Won(View),
    /// No node's word did, or ever will: no client has seen the record, whose accepted ballot is
    /// this.
    Unnamed(Ballot),
    /// The words of a majority did not, and never will: no ballot chooses the record, unless a
    /// later round of its proposer has it accepted. A ballot chooses what all of a majority name,
    /// or what is confirmed. Before a ballot has chosen it, only that proposer brings the record to a
    /// node or makes it confirmed.
    Refused,
    /// Not every node's word did, as far as is known. The record may be committed anyway, by other
    /// clients.
    Open,
}

/// Does a fast round from `base`, which every node is expected to show. If `sparing`, waits for all
/// nodes while it is possible that none has named the record.
async fn fast<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    words: &mut Words,
    base: CellWord,
    request: &AcceptRequest<'_>,
    mut sparing: bool,
) -> Result<Fast, Error> {
    let (n, format) = (group.nodes(), group.format());
    let ballot = fast_after(format.ballot(base));
    let new = format.cell(ballot, request.pointer, CellFlags::ACCEPTED);
    let mut round = Round::new(group);
    for node in NodeSet::all(n) {
        let mut chain = Chain::new();
        let brought = request.push_to(&mut chain, node, n);
        debug_assert!(brought, "what is born with one's own is at hand");
        push(&mut chain, request.raise(Ballot(0), ballot));
        let word = at.place.at(node, n).plus(cell::WORD);
        push(&mut chain, Verb::Cas { at: word, expect: base.0, new: new.0 });
        round.add(node, group.fabric().post(node, &chain));
        words.expect(node, new);
    }
    let (mut won, mut missed) = (NodeSet::EMPTY, NodeSet::EMPTY);
    let mut failed = false;
    loop {
        // C1: all n: a fast majority could be one of two, and a classic majority might not even see
        // it.
        if won.len() == n {
            return Ok(Fast::Won(finish(group, at, request, new)));
        }
        // Also all n: a chain that has not been answered may still take effect.
        if missed.len() == n {
            return Ok(Fast::Unnamed(ballot));
        }
        let enough = words.answered() >= group.majority();
        let event = if failed && enough && !sparing {
            // The answers that have arrived may show which change was first.
            ready(&mut round).await
        } else {
            Some(round.next().await)
        };
        match event {
            Some(Event::Reply(node, reply)) => {
                let was = CellWord(reply[reply.len() - 1]);
                if was == base {
                    won.insert(node);
                    words.saw(node, new);
                    sparing = false;
                } else {
                    words.saw(node, was);
                    missed.insert(node);
                    failed = true;
                }
            }
            Some(Event::Down(_) | Event::Late) => (failed, sparing) = (true, false),
            _ if enough && missed.len() >= group.majority() => return Ok(Fast::Refused),
            _ if enough => return Ok(Fast::Open),
            _ => {
                let (answered, needed) = (words.answered(), group.majority());
                return Err(Error::NoMajority { answered, needed });
            }
        }
    }
}

/// Resets an unnamed record's accepted ballot to 0 at every node. No other client knows the record,
/// so none raises it. Returns false if a node does not answer in time.
async fn unraise<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    request: &AcceptRequest<'_>,
    ballot: Ballot,
) -> bool {
    let lower = [request.raise(ballot, Ballot(0))];
    let mut round = Round::new(group);
    for node in NodeSet::all(group.nodes()) {
        round.add(node, group.fabric().post(node, &lower));
    }
    for _ in 0..group.nodes() {
        match round.next().await {
            Event::Reply(_, was) if was[0] == ballot.0 => {}
            // The record's memory is not worth waiting for a late node.
            _ => return false,
        }
    }
    true
}

/// Completes a fast round that succeeded: makes the words confirmed and puts the payload in place,
/// without waiting for it. A reader that arrives earlier asks all nodes.
fn finish<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    request: &AcceptRequest<'_>,
    shown: CellWord,
) -> View {
    let n = group.nodes();
    let confirmed = crate::cell::decide::confirmed_word(group.format(), shown);
    let head = in_place_head(confirmed, request.payload());
    for node in NodeSet::all(n) {
        let cas = confirm_record(at, node, n, shown, confirmed);
        if node == at.place.home {
            let copy = in_place(at, n, &head, request.payload());
            drop(group.fabric().post(node, &[copy, cas]));
        } else {
            drop(group.fabric().post(node, &[cas]));
        }
    }
    View::everywhere(request.pointer, confirmed, n)
}

/// Returns the verb that makes a word confirmed whose record is committed.
pub(super) fn confirm_record(
    at: &CellRef,
    node: NodeId,
    n: usize,
    shown: CellWord,
    confirmed: CellWord,
) -> Verb<'static> {
    let word = at.place.at(node, n).plus(cell::WORD);
    Verb::Cas { at: word, expect: shown.0, new: confirmed.0 }
}

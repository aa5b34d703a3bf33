//! Changing a cell.

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::cell;
use crate::node::{NodeId, NodeSet};
use crate::quorum::{Event, Group, Round};
use crate::words::{Ballot, CellFlags, CellWord, Pointer, WriteNumber};

use super::classic::{Own, classic};
use super::judge::fast_after;
use super::offer::{Births, Chain, MAX_BIRTHS, Newborn, Offer, push};
use super::record::{Way, includes};
use super::view::{View, Words};
use super::{ATTEMPTS, CellRef, back_off, in_place, in_place_head, ready};

/// A change.
#[derive(Clone, Copy, Debug)]
pub struct Proposal<'a> {
    /// The change's number: no other change in the pool has it.
    pub change: WriteNumber,
    /// Where its record will lie, everywhere at the same address: fresh memory, whose accepted
    /// ballot is 0 at every node, for this proposal alone.
    pub record: Pointer,
    /// What the record will say.
    pub payload: &'a [u64],
    /// What is born with it, at most [`MAX_BIRTHS`], in the order in which it must come into being.
    pub newborns: &'a [Newborn<'a>],
    /// Whether the record is dear. A lost proposal usually comes too late at every node; then its
    /// record can be had back, for a roundtrip more.
    pub sparing: bool,
}

/// How a proposal ended.
#[derive(Clone, Copy, Debug)]
pub enum Proposed {
    /// The record is in. The view's record is it, or one that others have built on it since.
    Committed(View),
    /// The record is not in and never will be: others changed the cell first.
    Lost {
        /// The record's memory is as it was before, and good for another proposal: no node has ever
        /// named it, and its accepted ballot is 0 at every node.
        unused: bool,
    },
}

/// Proposes to replace the record that `on` says is committed.
///
/// One roundtrip if every node shows the word that `on` knows (a *fast* round: it needs all of
/// them, because two clients may hold the same fast ballot). Two if a node is missing or lags (a
/// *classic* round). More if others change the cell at the same time.
///
/// # Cancel safety
/// Dropping the future leaves the change to be completed or undone by whoever uses the cell next.
///
/// # Errors
/// [`Error::NoMajority`] or [`Error::Contended`]: the change may or may not take effect.
/// [`Error::Exhausted`] before anything was posted. [`Error::Damaged`].
/// Of a client that was held up while others changed the cell: [`Proposed::Lost`] or
/// [`Proposed::Committed`], as the records since tell, and [`Error::Contended`] if to go over them takes
/// as long again as an operation may.
///
/// # Panics
/// If the payload has no room in the cell's records, or there are too many newborns.
pub async fn propose<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    on: &View,
    proposal: &Proposal<'_>,
    births: &impl Births,
) -> Result<Proposed, Error> {
    assert!(proposal.payload.len() <= at.room, "a payload needs room in the cell's records");
    assert!(proposal.newborns.len() <= MAX_BIRTHS, "newborns must fit into a chain");
    let Proposal { change, record, payload, newborns, sparing } = *proposal;
    let (n, base) = (group.nodes(), on.record());
    let mut words = Words::new(group.format(), n, on);
    words.check_room()?;
    let word = on.fast_base(group.format(), n, group.suspects());
    // Who finds the record not solid goes by this word; without a fast round nobody does.
    let below = word.unwrap_or(group.format().cell(Ballot(0), base, CellFlags::empty()));
    let offer = Offer::own(record, below, change, payload, newborns);
    let mut own = Own { base, offer, open: false };
    if let Some(word) = word {
        own.offer.fresh = false;
        match fast(group, at, &mut words, word, &own.offer, sparing).await? {
            Fast::Won(view) => return Ok(Proposed::Committed(view)),
            Fast::Unnamed(ballot) if sparing => {
                own.offer.fresh = unraise(group, &own.offer, ballot).await;
            }
            Fast::Unnamed(_) | Fast::Refused => {}
            Fast::Open => own.open = true,
        }
    }
    group.count_slow();
    let mut wait = Wait::new(group.clock().now());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            if wait.is_over(group.patience().deadline, group.clock().now()) {
                break;
            }
            back_off(group, attempt).await;
        }
        // What a lost round showed may be enough.
        let (committed, view, body) = match words.committed() {
            Some((committed, _)) if committed != base => (committed, words.view(committed), None),
            _ => match classic(group, at, &mut words, Some(&mut own), births).await? {
                Some(decided) => (decided.view.record(), decided.view, decided.body),
                None => continue,
            },
        };
        // A cell in which something was committed is never vacant again. (Of words that were set back to those of an earlier
        // record, only the way back from it tells, a roundtrip for each record, which is walked where the outcome hangs on
        // it. And who knows no record of the cell cannot tell words that were lost from those that were never there.)
        if committed.is_null() && !base.is_null() {
            return Err(Error::Damaged);
        }
        // Applied once: an own record may have been adopted and built upon before it was missed.
        // Committed records form one chain, so one that is not in this part of it never will be. What no
        // ballot ever chooses need not be looked for, however much of a chain there is by now.
        let way = Way { from: committed, to: base, top: words.top() };
        let mine = committed == record
            || own.open && includes(group, at, way, body.as_ref(), change).await?;
        // What is still fresh has not been offered to any node since.
        let unused = own.offer.fresh;
        return Ok(if mine { Proposed::Committed(view) } else { Proposed::Lost { unused } });
    }
    Err(Error::Contended)
}

/// How a fast round ended.
enum Fast {
    /// Every node's word went from the base to the record.
    Won(View),
    /// No node's did, or ever will: nobody has heard of the record, whose accepted ballot is this.
    Unnamed(Ballot),
    /// At a majority it did not, and never will: no ballot chooses the record, unless a later round of its
    /// proposer has it accepted. A ballot chooses what all of a majority name, or what is solid; nobody but that
    /// proposer brings the record to a node or makes it solid before a ballot has chosen it.
    Refused,
    /// Not every node's did, as far as is known. The record may be in all the same, by others'
    /// doing.
    Open,
}

/// A fast round from `base`, which every node is expected to show. If `sparing`, waits for all
/// nodes as long as it may be that none has named the record.
async fn fast<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    words: &mut Words,
    base: CellWord,
    offer: &Offer<'_>,
    mut sparing: bool,
) -> Result<Fast, Error> {
    let (n, format) = (group.nodes(), group.format());
    let ballot = fast_after(format.ballot(base));
    let new = format.cell(ballot, offer.pointer, CellFlags::ACCEPTED);
    let mut round = Round::new(group);
    for node in NodeSet::all(n) {
        let mut chain = Chain::new();
        let brought = offer.bring(&mut chain, node, n);
        debug_assert!(brought, "what is born with one's own is at hand");
        push(&mut chain, offer.raise(Ballot(0), ballot));
        let word = at.place.at(node, n).plus(cell::WORD);
        push(&mut chain, Verb::Cas { at: word, expect: base.0, new: new.0 });
        round.add(node, group.fabric().post(node, &chain));
        words.expect(node, new);
    }
    let (mut won, mut missed) = (NodeSet::EMPTY, NodeSet::EMPTY);
    let mut failed = false;
    loop {
        // All n: a fast majority could be one of two, and not even be seen by a classic majority.
        if won.len() == n {
            return Ok(Fast::Won(finish(group, at, offer, new)));
        }
        // Likewise all n: a chain that has not been answered may still land.
        if missed.len() == n {
            return Ok(Fast::Unnamed(ballot));
        }
        let enough = words.answered() >= group.majority();
        let event = if failed && enough && !sparing {
            // The answers that are there may tell who was first.
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

/// Takes an unnamed record's accepted ballot back to 0 at every node. Nobody else has heard of the
/// record, so nobody else raises it. False if a node does not answer in time.
async fn unraise<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    offer: &Offer<'_>,
    ballot: Ballot,
) -> bool {
    let lower = [offer.raise(ballot, Ballot(0))];
    let mut round = Round::new(group);
    for node in NodeSet::all(group.nodes()) {
        round.add(node, group.fabric().post(node, &lower));
    }
    for _ in 0..group.nodes() {
        match round.next().await {
            Event::Reply(_, was) if was[0] == ballot.0 => {}
            // A record is not worth waiting for a node that is late.
            _ => return false,
        }
    }
    true
}

/// A fast round succeeded. Says so in the words and puts the payload in place, in the background;
/// readers who come sooner ask all nodes.
fn finish<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    offer: &Offer<'_>,
    shown: CellWord,
) -> View {
    let n = group.nodes();
    let solid = super::judge::settled(group.format(), shown);
    let head = in_place_head(solid, offer.payload());
    for node in NodeSet::all(n) {
        let cas = solidify(at, node, n, shown, solid);
        if node == at.place.home {
            let copy = in_place(at, n, &head, offer.payload());
            drop(group.fabric().post(node, &[copy, cas]));
        } else {
            drop(group.fabric().post(node, &[cas]));
        }
    }
    View::everywhere(offer.pointer, solid, n)
}

/// The verb that settles a word whose record is committed.
pub(super) fn solidify(
    at: &CellRef,
    node: NodeId,
    n: usize,
    shown: CellWord,
    solid: CellWord,
) -> Verb<'static> {
    let word = at.place.at(node, n).plus(cell::WORD);
    Verb::Cas { at: word, expect: shown.0, new: solid.0 }
}

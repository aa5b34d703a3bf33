//! Changing a cell.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, NodeId, Verb};
use crate::group::Group;
use crate::layout::cell;
use crate::node_set::NodeSet;
use crate::round::{Event, Round};
use crate::words::{Ballot, CellFlags, CellWord, Pointer, WriteNumber};

use super::classic::{Own, classic};
use super::judge::fast_after;
use super::offer::{Births, Chain, MAX_BIRTHS, Newborn, Offer, push};
use super::record::includes;
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
}

/// How a proposal ended.
#[derive(Clone, Copy, Debug)]
pub enum Proposed {
    /// The record is in. The view's record is it, or one that others have built on it since.
    Committed(View),
    /// The record is not in and never will be: others changed the cell first.
    Lost,
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
    let Proposal { change, record, payload, newborns } = *proposal;
    let (n, base) = (group.nodes(), on.record());
    let mut words = Words::new(group.format(), n, on);
    words.check_room()?;
    let mut own = Own { base, offer: Offer::own(record, base, change, payload, newborns) };
    if let Some(word) = on.fast_base(group.format(), n, group.suspects()) {
        own.offer.fresh = false;
        if let Some(view) = fast(group, at, &mut words, word, &own.offer).await? {
            return Ok(Proposed::Committed(view));
        }
    }
    group.count_slow();
    let since = group.clock().now();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            if group.clock().now().saturating_sub(since) >= group.patience().deadline {
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
        // Applied once: an own record may have been adopted and built upon before it was missed.
        // Committed records form one chain, so one that is not in this part of it never will be.
        let body = body.as_ref();
        let mine =
            committed == record || includes(group, at, committed, body, base, change).await?;
        return Ok(if mine { Proposed::Committed(view) } else { Proposed::Lost });
    }
    Err(Error::Contended)
}

/// A fast round from `base`, which every node is expected to show. `None` if it did not succeed
/// everywhere; then the record may be in all the same, by others' doing.
async fn fast<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    words: &mut Words,
    base: CellWord,
    offer: &Offer<'_>,
) -> Result<Option<View>, Error> {
    let (n, format) = (group.nodes(), group.format());
    let ballot = fast_after(format.ballot(base));
    let new = format.cell(ballot, offer.pointer, CellFlags::ACCEPTED);
    let mut round = Round::new(group);
    for node in NodeSet::all(n) {
        let mut chain = Chain::new();
        offer.bring(&mut chain, node, n);
        push(&mut chain, offer.raise(Ballot(0), ballot));
        let word = at.place.at(node, n).plus(cell::WORD);
        push(&mut chain, Verb::Cas { at: word, expect: base.0, new: new.0 });
        round.add(node, group.fabric().post(node, &chain));
        words.expect(node, new);
    }
    let mut won = NodeSet::EMPTY;
    let mut failed = false;
    loop {
        // All n: a fast majority could be one of two, and not even be seen by a classic majority.
        if won.len() == n {
            return Ok(Some(finish(group, at, offer, new)));
        }
        let enough = words.answered() >= group.majority();
        let event = if failed && enough {
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
                } else {
                    words.saw(node, was);
                    failed = true;
                }
            }
            Some(Event::Down(_) | Event::Late) => failed = true,
            _ if enough => return Ok(None),
            _ => {
                let (answered, needed) = (words.answered(), group.majority());
                return Err(Error::NoMajority { answered, needed });
            }
        }
    }
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

//! A change of a key that is a cell, as plain code before any future.
//!
//! It is what a change of a counter, of a lock, or of any other key does whose cell is cached, on a
//! synchronous fabric, if memory and a number are at hand and all nodes agree. What this client saw
//! last is built on without a look; if another client has changed it since, the cell is read, and a
//! change that lost is made of what is there. Anything else is left to the
//! [general path](crate::ops::modify), with what was found so far: a choice that was made for a value
//! is not made again, and a proposal that may take effect is continued.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;

use swarm_core::cell::{self, FastRound, Proposal, View};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::register::Protocol;
use swarm_core::words::{Pointer, WriteNumber};

use crate::client::cell_cache::{FoundCell, SeenCell};
use crate::client::handle::{Client, PinGuard};
use crate::client::key_locks::KeyLock;
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::keyed_cell::{CellContent, KeyedCell, Kind};
use crate::ops::keyed::seen_of;
use crate::ops::modify::{Choose, Chooser, Next, checked};

/// How often a change looks for what is there before it is left to the general path: what is cached; what is there, if
/// another client has changed it; and that again.
const LOOKS: usize = 3;

/// Receives the value before a change, and the one after it.
pub(crate) type Report<'r> = dyn FnMut(Option<&[u8]>, Option<&[u8]>) + 'r;

/// A change that was begun.
pub(crate) enum Begun<'a> {
    Done(Result<(), Error>),
    /// What is left of it, to be polled before anything else happens.
    Rest(Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>),
}

/// What the plain code leaves to the general path.
struct ChangeRest<'c, F: Fabric, C: Clock, P: Protocol + 'c> {
    /// The value that was met last, and what was chosen to be there after it.
    last: Option<(Vec<u8>, Next)>,
    proposed: Option<Posted<'c>>,
    pin: Option<PinGuard<'c, F, C, P>>,
    tally: OpCost,
}

impl<F: Fabric, C: Clock, P: Protocol> Default for ChangeRest<'_, F, C, P> {
    #[inline(always)]
    fn default() -> Self {
        Self { last: None, proposed: None, pin: None, tally: OpCost::default() }
    }
}

impl<'c, F: Fabric, C: Clock, P: Protocol + 'c> ChangeRest<'c, F, C, P> {
    /// Returns what is to be there after a value: what was chosen last, if that was for an equal one.
    #[inline(always)]
    fn choose(&mut self, choose: &mut Choose<'_>, value: &[u8]) -> Result<Next, Error> {
        if self.last.is_none() {
            return checked(choose, Some(value));
        }
        match self.last.take().filter(|(last, _)| last == value) {
            Some((_, next)) => Ok(next),
            None => checked(choose, Some(value)),
        }
    }
}

/// A proposal that some nodes may have, and not all.
struct Posted<'c> {
    hash: u64,
    found: FoundCell,
    seen: Box<SeenCell>,
    after: Vec<u8>,
    in_flight: Box<InFlight>,
    /// No other change of this key begins before this one has ended.
    _turn: Option<KeyLock<'c>>,
}

/// How far a proposal is that is not committed.
enum Unproposed {
    /// Nothing was posted.
    Nothing,
    /// Others were first, and it never takes effect. What it wrote is left to a GC cycle.
    Lost,
    /// Some nodes have its record.
    Open(Box<InFlight>),
}

/// A record that some nodes have.
struct InFlight {
    record: Pointer,
    change: WriteNumber,
    round: FastRound,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Begins a change of a key to what `choose` makes of its value; `report` is called once, when it has
    /// taken effect or changes nothing. With `room` a key that is not there is inserted in a cell.
    /// Counts as a modification.
    pub(crate) fn begin_change<'a, 'f: 'a>(
        &'a self,
        key: &'a [u8],
        room: Option<usize>,
        choose: &'a mut Choose<'f>,
        report: &'a mut Report<'f>,
    ) -> Begun<'a> {
        if self.is_cut_off() {
            return Begun::Done(Err(self.why_cut_off()));
        }
        let mut rest = ChangeRest::default();
        // A cell that is there has the room that it has: the general path asks whether there can be a new one.
        if self.group.fabric().is_near()
            && let Ok(hash) = self.check(key, &[])
        {
            let pin = self.pin();
            let others = self.group.fabric().begin();
            let is_done = self.try_change(hash, key, (&mut *choose, &mut *report), &mut rest);
            let tally = self.group.fabric().pause(others);
            if is_done {
                pin.end();
                self.count(|counters| &mut counters.modify, tally);
                return match self.is_assist_due() {
                    false => Begun::Done(Ok(())),
                    true => Begun::Rest(Box::pin(async {
                        self.gc_assist().await;
                        Ok(())
                    })),
                };
            }
            (rest.pin, rest.tally) = (Some(pin), tally);
        }
        Begun::Rest(Box::pin(self.change_on(key, room, (choose, report), rest)))
    }

    /// Checks a key, and that it can be a cell with room for so many bytes. Returns its hash.
    pub(crate) fn check_for_change(&self, key: &[u8], room: Option<usize>) -> Result<u64, Error> {
        let hash = self.check(key, &[])?;
        room.map_or(Ok(()), |room| self.can_be_cell(key, room))?;
        Ok(hash)
    }

    /// Changes the key if that need not wait. Returns whether it did, or found that nothing is to change.
    fn try_change<'c>(
        &'c self,
        hash: u64,
        key: &[u8],
        (choose, report): (&mut Choose<'_>, &mut Report<'_>),
        rest: &mut ChangeRest<'c, F, C, P>,
    ) -> bool {
        if !self.is_key_free(hash) {
            return false;
        }
        let epoch = self.index.epoch();
        for _ in 0..LOOKS {
            let Some((found, mut seen, is_fresh)) = self.known_now(hash, key, epoch) else {
                return false;
            };
            let after = match rest.choose(choose, &seen.value) {
                Ok(Next::Put(after)) => after,
                Ok(Next::Keep) if is_fresh => {
                    report(Some(&seen.value), Some(&seen.value));
                    self.cells.put_back(hash, &found.0, seen);
                    return true;
                }
                // K3: what was cached may be long past. What changes nothing is a read.
                Ok(Next::Keep) => {
                    rest.last = Some((seen.value, Next::Keep));
                    continue;
                }
                Err(_) if !is_fresh => continue,
                Ok(Next::Delete) | Err(_) => return false,
            };
            match self.try_propose(key, (&found.0, &seen), &after) {
                Ok(view) => {
                    self.has_changed_now(hash, &found.0, (&seen.view, &view));
                    report(Some(&seen.value), Some(&after));
                    seen.view = view;
                    self.spare_value.set(mem::replace(&mut seen.value, after));
                    self.cells.put_back(hash, &found.0, seen);
                    return true;
                }
                Err(Unproposed::Lost) => rest.last = Some((seen.value, Next::Put(after))),
                Err(Unproposed::Open(in_flight)) => {
                    let _turn = self.try_lock_key(hash);
                    rest.proposed = Some(Posted { hash, found, seen, after, in_flight, _turn });
                    return false;
                }
                Err(Unproposed::Nothing) => {
                    rest.last = Some((seen.value.clone(), Next::Put(after)));
                    self.cells.put_back(hash, &found.0, seen);
                    return false;
                }
            }
        }
        false
    }

    /// Returns a key's cell and what it holds, if the cell is cached and goes on: as it was seen in this
    /// epoch (E4a), or as it is now; and whether that is so.
    #[inline(always)]
    fn known_now(
        &self,
        hash: u64,
        key: &[u8],
        epoch: u64,
    ) -> Option<(FoundCell, Box<SeenCell>, bool)> {
        let (found, seen) = self.cells.take(hash, key)?;
        // X1: a value whose time is over is none.
        match seen.filter(|seen| seen.epoch == epoch && !self.is_past(seen.deadline)) {
            Some(seen) => Some((found, seen, false)),
            None => {
                let seen = seen_of(&self.read_cell_now(&found.0, key)?, epoch);
                Some((found, Box::new(seen), true))
            }
        }
    }

    /// Records a change in a straight line: from the record of one view to that of another.
    #[inline(always)]
    fn has_changed_now(&self, hash: u64, cell: &KeyedCell, (before, after): (&View, &View)) {
        if let Some(participant) = &self.participant {
            let (cell, records) = (cell.at.place.pointer, (before.record(), after.record()));
            self.heap.has_replaced_everywhere(participant.domain(), cell, records);
        }
        self.wake(hash);
    }

    /// Proposes `after` in place of what was seen. Returns the view with it.
    ///
    /// # Errors
    /// It is not committed, and how far it is.
    #[inline(always)]
    fn try_propose(
        &self,
        key: &[u8],
        (cell, seen): (&KeyedCell, &SeenCell),
        after: &[u8],
    ) -> Result<View, Unproposed> {
        let content = CellContent { kind: Kind::Value, deadline: seen.deadline, key, value: after };
        // S6: a cell that is worn goes on as a register.
        if !cell.fits_content(&content) || seen.view.is_worn(self.geometry.format) {
            return Err(Unproposed::Nothing);
        }
        let change = self.group.number().ok_or(Unproposed::Nothing)?;
        let records = self.heap.plain(cell.record_words());
        let record = self.heap.take_unused(records, Purpose::Replace).ok_or(Unproposed::Nothing)?;
        let mut payload = self.record_words.take();
        content.payload_into(&mut payload);
        let (initial_writes, sparing) = (&[][..], false);
        let proposal = Proposal { change, record, payload: &payload, initial_writes, sparing };
        let mut round = None;
        // Q1: built on the record that `after` was made of.
        let view = cell::try_propose(&self.group, &cell.at, &seen.view, &proposal, &mut round);
        self.record_words.set(payload);
        view.ok_or_else(|| match round {
            None => {
                self.heap.take_back_unused(record);
                Unproposed::Nothing
            }
            Some(round) if round.is_refused() => Unproposed::Lost,
            Some(round) => Unproposed::Open(Box::new(InFlight { record, change, round })),
        })
    }

    /// Continues a change. Its future is large.
    async fn change_on<'c>(
        &'c self,
        key: &[u8],
        room: Option<usize>,
        (choose, report): (&mut Choose<'_>, &mut Report<'_>),
        rest: ChangeRest<'c, F, C, P>,
    ) -> Result<(), Error> {
        let ChangeRest { last, proposed, pin, tally } = rest;
        let last = last.map(|(value, next)| (Some(value), Rc::new(next)));
        let chooser = RefCell::new(Chooser { choose, last });
        let choice = |before: Option<&[u8]>| chooser.borrow_mut().after(before);
        let change = async {
            if let Some(posted) = proposed
                && let Some((before, after)) = Box::pin(self.propose_on(key, posted)).await?
            {
                report(Some(&before), Some(&after));
                return Ok(());
            }
            drop(pin);
            let modify = async || {
                let hash = self.check_for_change(key, room)?;
                let _lock = self.lock_key(hash).await?;
                self.modify_now(hash, key, room, &choice).await
            };
            let (before, after) = Box::pin(self.with_memory(modify)).await?;
            report(before.as_deref(), after.as_deref());
            Ok(())
        };
        self.as_change_on(tally, change).await
    }

    /// Continues a proposal. Returns the values before and after it, or `None` if other changes came first.
    async fn propose_on(
        &self,
        key: &[u8],
        posted: Posted<'_>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, Error> {
        let Posted { hash, found, seen, after, in_flight, _turn } = posted;
        let InFlight { record, change, round } = *in_flight;
        let mut round = Some(round);
        let (cell, SeenCell { epoch, view, deadline, value }) = (found.0, *seen);
        let payload = CellContent { kind: Kind::Value, deadline, key, value: &after }.payload();
        let (payload, initial_writes, sparing) = (&*payload, &[][..], false);
        let proposal = Proposal { change, record, payload, initial_writes, sparing };
        let proposed =
            cell::propose_on(&self.group, &cell.at, &view, &proposal, &(), &mut round).await?;
        let Some(view) = self.was_committed(hash, record, proposed) else {
            self.pause_after(0).await;
            return Ok(None);
        };
        let seen = view.map(|view| SeenCell { epoch, view, deadline, value: after.clone() });
        self.cells.insert(hash, key, found, seen);
        Ok(Some((value, after)))
    }
}

#[cfg(test)]
mod tests;

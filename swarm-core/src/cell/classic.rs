//! The classic round: prepare, choose, accept.
//!
//! A majority promises a ballot, which determines the last record that may be committed. The nodes
//! that promised are asked to accept that record, or one built on it; it is committed once a
//! majority of all nodes has accepted. Nodes that promise late join. No node promises a ballot
//! twice (C3), so only one proposer of a ballot has a majority, and it proposes one record.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Location, cell, record};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Event, Group, Round};
use crate::words::{Ballot, CellFlags, CellWord, Pointer};

use super::record::{Body, WhenLate, fetch, fetch_to_adopt};
use super::view::{View, Words};
use super::{CellRef, in_place, in_place_head, ready};
use crate::cell::accept_request::{AcceptRequest, Chain, CreatedParts, accepted_at, push};
use crate::cell::decide::{self, Promise, choose};

/// A change of this client, for a ballot that chooses the record that it builds on.
pub(super) struct Own<'a> {
    /// The committed record that it builds on.
    pub(super) base: Pointer,
    /// The record.
    pub(super) request: AcceptRequest<'a>,
    /// Whether a ballot may choose it, or may have chosen it.
    pub(super) open: bool,
}

/// What a classic round committed.
pub(super) struct Decided<'f, F: Fabric + 'f> {
    /// What is known now.
    pub(super) view: View,
    /// The record's content, if it had to be fetched.
    pub(super) body: Option<Body<'f, F>>,
}

/// Does one classic round. Commits `own` if it may come next; otherwise commits the record that may
/// be committed already, unchanged. Returns `None` if another client's ballot was higher.
///
/// # Errors
/// [`Error::NoMajority`], [`Error::Exhausted`]; [`Error::Damaged`] if a payload is impossible.
pub(super) async fn classic<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    words: &mut Words,
    own: Option<&mut Own<'_>>,
    created_parts: &dyn CreatedParts,
) -> Result<Option<Decided<'f, F>>, Error> {
    let mut round = Classic::new(group, at.place, words.next_classic()?);
    // Round 1: promises.
    if !round.prepare(words).await? {
        return Ok(None);
    }
    let Some(chosen) = choose(group.format(), round.promises.iter().flatten()) else {
        return Ok(None);
    };
    if let Some(own) = own {
        // C5: a change is built on a committed record only. Built on one that merely may be
        // committed, it would be acknowledged while what was created with that one is at a single
        // node.
        if chosen == own.base || chosen == own.request.pointer {
            // Round 2, and a third if the record was proposed before. One node that accepts it is
            // enough for a ballot to choose it.
            own.open = true;
            let accepted = round.accept(words, Some(&own.request)).await;
            own.request.fresh = false;
            let view = accepted?.then(|| round.decided(at, words, Some(&own.request)));
            return Ok(view.map(|view| Decided { view, body: None }));
        }
    }
    if chosen.is_null() {
        let accepted = round.accept(words, None).await?;
        return Ok(accepted.then(|| Decided { view: round.decided(at, words, None), body: None }));
    }
    // C5: what may be committed is proposed unchanged, after all that was created with it.
    let holders = round.holders(chosen);
    let body = match fetch(group, at, chosen, (holders, WhenLate::GiveUp)).await {
        // Its holders died. If it was committed, other nodes hold it and promise another ballot.
        Err(Error::NoMajority { .. }) => return Ok(None),
        body => body?,
    };
    // E4a: if no node is known to lack it, every node may have what was created with it, and that
    // memory may be in use for something else.
    let fetched = if words.lacking(chosen).minus(holders).is_empty() {
        None
    } else {
        match fetch_to_adopt(group, at, body.payload(), created_parts, holders).await {
            Err(Error::NoMajority { .. }) => return Ok(None),
            fetched => Some(fetched?),
        }
    };
    let created = fetched.as_ref().map(|fetched| (&*fetched.created_parts, fetched.copies()));
    let request = AcceptRequest::adopted(chosen, body.header, body.payload(), created);
    if !round.accept(words, Some(&request)).await? {
        return Ok(None);
    }
    let view = round.decided(at, words, Some(&request));
    Ok(Some(Decided { view, body: Some(body) }))
}

/// The state of a node in the round.
#[derive(Clone, Copy)]
enum Step {
    /// Takes no part in it, or no longer.
    Out,
    /// Is asked to promise; its word is expected to be this.
    Asked(CellWord),
    /// Has promised.
    Promised,
    /// The record's accepted ballot is being raised from this.
    Raising(Ballot),
    /// The word is being swapped.
    Landing,
    /// Has accepted.
    Accepted,
}

struct Classic<'f, F: Fabric + 'f, C> {
    group: &'f Group<F, C>,
    place: Location,
    ballot: Ballot,
    round: Round<'f, F, C>,
    steps: [Step; MAX_NODES],
    promises: [Option<Promise>; MAX_NODES],
    promised: NodeSet,
    accepted: NodeSet,
    /// Nodes that have promised a higher ballot.
    refused: NodeSet,
    late: bool,
}

impl<'f, F: Fabric, C: Clock> Classic<'f, F, C> {
    fn new(group: &'f Group<F, C>, place: Location, ballot: Ballot) -> Self {
        Self {
            group,
            place,
            ballot,
            round: Round::new(group),
            steps: [Step::Out; MAX_NODES],
            promises: [None; MAX_NODES],
            promised: NodeSet::EMPTY,
            accepted: NodeSet::EMPTY,
            refused: NodeSet::EMPTY,
            late: false,
        }
    }

    /// Asks all nodes to promise. Returns true once a majority has, false if it cannot.
    async fn prepare(&mut self, words: &mut Words) -> Result<bool, Error> {
        for node in NodeSet::all(self.group.nodes()) {
            self.ask(node, words);
        }
        loop {
            let enough = self.promised.len() >= self.group.majority();
            let event = if enough {
                // Also takes the answers that have arrived, so that no promise is left unused.
                ready(&mut self.round).await
            } else {
                Some(self.round.next().await)
            };
            match event {
                Some(Event::Reply(node, reply)) => self.collect(node, &reply, words),
                Some(Event::Down(node)) => self.steps[node.index()] = Step::Out,
                Some(Event::Late) => self.late = true,
                _ if enough => return Ok(true),
                _ => return self.give_up(self.promised),
            }
            if !enough && self.is_lost(self.promised) {
                return self.give_up(self.promised);
            }
        }
    }

    /// Asks the nodes that promised to accept the record, or the vacant cell if there is none.
    /// Returns true once a majority of all nodes has accepted, false if it cannot.
    async fn accept(
        &mut self,
        words: &mut Words,
        request: Option<&AcceptRequest<'_>>,
    ) -> Result<bool, Error> {
        for node in self.promised {
            self.request(node, words, request);
        }
        loop {
            let enough = self.accepted.len() >= self.group.majority();
            let event =
                if enough { ready(&mut self.round).await } else { Some(self.round.next().await) };
            match event {
                Some(Event::Reply(node, reply)) => {
                    self.collect(node, &reply, words);
                    match self.steps[node.index()] {
                        // Also asks nodes that promise only now: the first majority may not
                        // survive.
                        Step::Promised => self.request(node, words, request),
                        Step::Raising(_) => self.raised(node, &reply, words, request),
                        Step::Landing => self.landed(node, &reply, words, request),
                        _ => {}
                    }
                }
                Some(Event::Down(node)) => self.steps[node.index()] = Step::Out,
                Some(Event::Late) => self.late = true,
                _ if enough => return Ok(true),
                _ => return self.give_up(self.accepted),
            }
            if !enough && self.is_lost(self.accepted) {
                return self.give_up(self.accepted);
            }
        }
    }

    /// Returns whether it is better to start the round again: too few nodes are left, or some
    /// promised a higher ballot and others do not answer.
    fn is_lost(&self, have: NodeSet) -> bool {
        let possible = have.union(self.round.pending()).len();
        possible < self.group.majority() || (self.late && !self.refused.is_empty())
    }

    /// Returns false if another ballot is worth a try.
    fn give_up(&self, have: NodeSet) -> Result<bool, Error> {
        if self.refused.is_empty() {
            let needed = self.group.majority();
            return Err(Error::NoMajority { answered: have.len(), needed });
        }
        Ok(false)
    }

    /// Returns the nodes that have `record`, and what was created with it, in memory.
    fn holders(&self, record: Pointer) -> NodeSet {
        let format = self.group.format();
        let holds = |promise: Option<Promise>| promise.and_then(|p| p.holds(format, record));
        self.promised.holding(|node| holds(self.promises[node.index()]).is_some())
    }

    /// Asks `node` to promise, and READs what it accepted. C2: after the promise, as it could
    /// change before.
    fn ask(&mut self, node: NodeId, words: &Words) {
        let (n, format) = (self.group.nodes(), self.group.format());
        let expect = words.guess[node.index()];
        let new = decide::promised(format, expect, self.ballot);
        let at = self.place.at(node, n).plus(cell::WORD);
        let mut chain = Chain::new();
        push(&mut chain, Verb::Cas { at, expect: expect.0, new: new.0 });
        let pointer = format.record(expect);
        if !pointer.is_null() {
            let words = 1 + record::BODY - record::ACCEPTED;
            push(&mut chain, Verb::Read { at: accepted_at(pointer), words });
        }
        self.steps[node.index()] = Step::Asked(expect);
        self.round.add(node, self.group.fabric().post(node, &chain));
    }

    /// Processes an answer to `ask`, and ignores others.
    fn collect(&mut self, node: NodeId, reply: &[u64], words: &mut Words) {
        match self.steps[node.index()] {
            Step::Asked(expect) if CellWord(reply[0]) == expect => {
                words.saw(node, expect);
                self.promises_now(node, expect, &reply[1..], words);
            }
            Step::Asked(_) => {
                let word = CellWord(reply[0]);
                words.saw(node, word);
                // C3: a node promises only a higher ballot than its own.
                if self.group.format().ballot(word) >= self.ballot {
                    self.refused.insert(node);
                    self.steps[node.index()] = Step::Out;
                } else {
                    // Terminates: each time, the word has advanced towards this ballot.
                    self.ask(node, words);
                }
            }
            _ => {}
        }
    }

    /// Records that the node has promised; `rest` is what was READ after that.
    fn promises_now(&mut self, node: NodeId, word: CellWord, rest: &[u64], words: &mut Words) {
        words.expect(node, decide::promised(self.group.format(), word, self.ballot));
        let &[accepted, base, ..] = rest else {
            let (accepted, base) = (Ballot(0), CellWord(0));
            return self.keep(node, Promise { word, accepted, base });
        };
        let (accepted, base) = (Ballot(accepted), CellWord(base));
        if !word.is_confirmed() && self.group.format().ballot(base) >= accepted {
            // No client wrote that: the node's memory is damaged, and no basis for a choice (C2).
            self.steps[node.index()] = Step::Out;
            return;
        }
        self.keep(node, Promise { word, accepted, base });
    }

    fn keep(&mut self, node: NodeId, promise: Promise) {
        self.promises[node.index()] = Some(promise);
        self.steps[node.index()] = Step::Promised;
        self.promised.insert(node);
    }

    /// Returns the promise's word, and its replacement.
    fn swap(
        &self,
        node: NodeId,
        request: Option<&AcceptRequest<'_>>,
    ) -> Option<(CellWord, CellWord)> {
        let format = self.group.format();
        let word = self.promises[node.index()]?.word;
        let pointer = request.map_or(Pointer::NULL, |request| request.pointer);
        let new = format.cell(self.ballot, pointer, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
        Some((decide::promised(format, word, self.ballot), new))
    }

    /// Brings the record to a node that has promised.
    fn request(&mut self, node: NodeId, words: &mut Words, request: Option<&AcceptRequest<'_>>) {
        let (n, format) = (self.group.nodes(), self.group.format());
        let Some(record) = request else { return self.land(node, words, None) };
        let Some((promise, new)) = self.swap(node, request) else { return };
        let held = self.promises[node.index()].and_then(|p| p.holds(format, record.pointer));
        let mut chain = Chain::new();
        if held.is_none() && !record.push_to(&mut chain, node, n) {
            // It promised late, and what was created was not fetched (E4a). Another ballot brings
            // it.
            self.refused.insert(node);
            self.steps[node.index()] = Step::Out;
            return;
        }
        // A higher ballot may have raised it between the promise and the READ after it.
        let from = held.unwrap_or_default().min(self.ballot);
        // C4: the accepted ballot is raised before the word names the record.
        push(&mut chain, record.raise(from, self.ballot));
        self.steps[node.index()] = Step::Raising(from);
        if record.fresh {
            // Another client raises it here only after it was promised a higher ballot here, and
            // then this swap fails with the raise. That does not hold for a record that is not
            // fresh, so its word waits (C4).
            let at = self.place.at(node, n).plus(cell::WORD);
            push(&mut chain, Verb::Cas { at, expect: promise.0, new: new.0 });
            self.steps[node.index()] = Step::Landing;
            words.expect(node, new);
        }
        self.round.add(node, self.group.fabric().post(node, &chain));
    }

    /// Processes the answer to the raise.
    fn raised(
        &mut self,
        node: NodeId,
        reply: &[u64],
        words: &mut Words,
        request: Option<&AcceptRequest<'_>>,
    ) {
        let (Step::Raising(from), Some(record)) = (self.steps[node.index()], request) else {
            return;
        };
        let was = Ballot(reply[reply.len() - 1]);
        if was == from || was >= self.ballot {
            return self.land(node, words, request);
        }
        // Terminates: it only grows, towards this ballot.
        self.steps[node.index()] = Step::Raising(was);
        let chain = [record.raise(was, self.ballot)];
        self.round.add(node, self.group.fabric().post(node, &chain));
    }

    /// Swaps the word.
    fn land(&mut self, node: NodeId, words: &mut Words, request: Option<&AcceptRequest<'_>>) {
        let Some((promise, new)) = self.swap(node, request) else { return };
        let at = self.place.at(node, self.group.nodes()).plus(cell::WORD);
        let chain = [Verb::Cas { at, expect: promise.0, new: new.0 }];
        self.steps[node.index()] = Step::Landing;
        words.expect(node, new);
        self.round.add(node, self.group.fabric().post(node, &chain));
    }

    /// Processes the answer to the swap.
    fn landed(
        &mut self,
        node: NodeId,
        reply: &[u64],
        words: &mut Words,
        request: Option<&AcceptRequest<'_>>,
    ) {
        let Some((promise, new)) = self.swap(node, request) else { return };
        let was = CellWord(reply[reply.len() - 1]);
        if was == promise {
            words.saw(node, new);
            self.accepted.insert(node);
            self.steps[node.index()] = Step::Accepted;
        } else {
            words.saw(node, was);
            self.refused.insert(node);
            self.steps[node.index()] = Step::Out;
        }
    }

    /// Returns the view after a majority has accepted. Puts the payload in place, without waiting
    /// for it.
    fn decided(&self, at: &CellRef, words: &Words, request: Option<&AcceptRequest<'_>>) -> View {
        let pointer = request.map_or(Pointer::NULL, |request| request.pointer);
        if let Some(request) = request {
            let flags = CellFlags::CONFIRMED | CellFlags::ACCEPTED;
            let word = self.group.format().cell(self.ballot, pointer, flags);
            let head = in_place_head(word, request.payload());
            let verb = in_place(at, self.group.nodes(), &head, request.payload());
            drop(self.group.fabric().post(at.place.home, &[verb]));
        }
        words.view(pointer)
    }
}

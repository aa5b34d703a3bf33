//! A change of a key that is a cell, as plain code before any future.
//!
//! It is what a change of a counter, of a lock, or of any other key does that this client has changed
//! or read last: the cell is cached with what it held, memory and a number are at hand, the fabric is
//! synchronous, and nobody else has changed the cell since. Anything else is left to the
//! [general path](crate::ops::modify), with what was found so far: a choice that was made is not made
//! again, and a proposal that was posted is continued.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use swarm_core::cell::{self, FastRound, Proposal};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::register::Protocol;
use swarm_core::words::{Pointer, WriteNumber};

use crate::client::cell_cache::{FoundCell, SeenCell};
use crate::client::handle::{Client, PinGuard};
use crate::client::key_locks::KeyLock;
use crate::error::Error;
use crate::index::keyed_cell::{CellContent, Kind};
use crate::ops::modify::{Choose, Chooser, Chosen, Next, checked};

/// Is told the value before a change, and the one after it.
pub(crate) type Tell<'t> = dyn FnMut(Option<&[u8]>, Option<&[u8]>) + 't;

/// A change that was begun.
pub(crate) enum Begun<'a> {
    Done(Result<(), Error>),
    /// What is left of it, to be polled before anything else happens.
    Rest(Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>),
}

/// What the plain code leaves to the general path.
struct ChangeRest<'c, F: Fabric, C: Clock, P: Protocol + 'c> {
    /// The choice that was made.
    last: Option<Chosen>,
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

/// A proposal that some nodes may have, and not all.
struct Posted<'c> {
    hash: u64,
    found: FoundCell,
    seen: SeenCell,
    after: Vec<u8>,
    in_flight: Box<InFlight>,
    /// No other change of this key begins before this one has ended.
    _turn: Option<KeyLock<'c>>,
}

/// A record that was proposed.
struct InFlight {
    record: Pointer,
    change: WriteNumber,
    round: FastRound,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Begins a change of a key to what `choose` makes of its value; `tell` is called once, when it has
    /// taken effect or changes nothing. With `room` a key that is not there is inserted in a cell.
    /// Counts as a modification.
    pub(crate) fn begin_change<'a, 'f: 'a>(
        &'a self,
        key: &'a [u8],
        room: Option<usize>,
        choose: &'a mut Choose<'f>,
        tell: &'a mut Tell<'f>,
    ) -> Begun<'a> {
        if self.is_cut_off() {
            return Begun::Done(Err(self.why_cut_off()));
        }
        let mut rest = ChangeRest::default();
        if self.group.fabric().is_near()
            && let Ok(hash) = self.check_for_change(key, room)
        {
            let pin = self.pin();
            let others = self.group.fabric().begin();
            let is_done = self.try_change(hash, key, (&mut *choose, &mut *tell), &mut rest);
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
        Begun::Rest(Box::pin(self.change_on(key, room, (choose, tell), rest)))
    }

    /// Checks a key, and that it can be a cell with room for so many bytes. Returns its hash.
    pub(crate) fn check_for_change(&self, key: &[u8], room: Option<usize>) -> Result<u64, Error> {
        let hash = self.check(key, &[])?;
        room.map_or(Ok(()), |room| self.can_be_cell(key, room))?;
        Ok(hash)
    }

    /// Changes the key if that need not wait. Returns whether it did.
    fn try_change<'c>(
        &'c self,
        hash: u64,
        key: &[u8],
        (choose, tell): (&mut Choose<'_>, &mut Tell<'_>),
        rest: &mut ChangeRest<'c, F, C, P>,
    ) -> bool {
        if !self.is_key_free(hash) {
            return false;
        }
        let epoch = self.index.epoch();
        let Some((found, mut seen)) = self.cells.take(hash, key) else { return false };
        // E4a: what was seen in an earlier epoch is built on if every node still shows it.
        let is_current = || cell::is_as_seen(&self.group, &found.0.at, &seen.view);
        if self.is_past(seen.deadline) || seen.epoch != epoch && !is_current() {
            return false;
        }
        seen.epoch = epoch;
        let after = match checked(choose, Some(&seen.value)) {
            Ok(Next::Put(after)) => after,
            // K3: what was cached may be long past. What changes nothing is a read.
            next => {
                rest.last = next.ok().map(|next| (Some(seen.value), Rc::new(next)));
                return false;
            }
        };
        match self.try_propose(key, (found, &seen), &after) {
            Ok(view) => {
                if let Some(participant) = &self.participant {
                    let (cell, records) =
                        (found.0.at.place.pointer, (seen.view.record(), view.record()));
                    self.heap.has_replaced_everywhere(participant.domain(), cell, records);
                }
                self.wake(hash);
                tell(Some(&seen.value), Some(&after));
                self.cells.put_back(hash, &found.0, SeenCell { view, value: after, ..seen });
                true
            }
            Err(Some(in_flight)) => {
                let _turn = self.try_lock_key(hash);
                rest.proposed = Some(Posted { hash, found, seen, after, in_flight, _turn });
                false
            }
            Err(None) => {
                let last = (Some(seen.value.clone()), Rc::new(Next::Put(after)));
                rest.last = Some(last);
                self.cells.put_back(hash, &found.0, seen);
                false
            }
        }
    }

    /// Proposes `after` in place of what was seen. Returns the view with it.
    ///
    /// # Errors
    /// It is not committed, and how far it is; `None` if nothing was posted.
    #[inline(always)]
    fn try_propose(
        &self,
        key: &[u8],
        ((cell, _), seen): (FoundCell, &SeenCell),
        after: &[u8],
    ) -> Result<cell::View, Option<Box<InFlight>>> {
        let content = CellContent { kind: Kind::Value, deadline: seen.deadline, key, value: after };
        // S6: a cell that is worn goes on as a register.
        if !cell.fits_content(&content) || seen.view.is_worn(self.geometry.format) {
            return Err(None);
        }
        let change = self.group.number().ok_or(None)?;
        let records = self.heap.plain(cell.record_words());
        let record = self.heap.take_record_now(records).ok_or(None)?;
        let mut payload = self.record_words.take();
        content.payload_into(&mut payload);
        let (initial_writes, sparing) = (&[][..], false);
        let proposal = Proposal { change, record, payload: &payload, initial_writes, sparing };
        let mut round = None;
        // Q1: built on the record that `after` was made of.
        let view = cell::try_propose(&self.group, &cell.at, &seen.view, &proposal, &mut round);
        self.record_words.set(payload);
        view.ok_or_else(|| {
            if round.is_none() {
                self.heap.take_back_unused(record);
            }
            round.map(|round| Box::new(InFlight { record, change, round }))
        })
    }

    /// Continues a change. Its future is large.
    async fn change_on<'c>(
        &'c self,
        key: &[u8],
        room: Option<usize>,
        (choose, tell): (&mut Choose<'_>, &mut Tell<'_>),
        rest: ChangeRest<'c, F, C, P>,
    ) -> Result<(), Error> {
        let ChangeRest { last, proposed, pin, tally } = rest;
        let chooser = RefCell::new(Chooser { choose, last });
        let choice = |before: Option<&[u8]>| chooser.borrow_mut().after(before);
        let change = async {
            if let Some(posted) = proposed
                && let Some((before, after)) = Box::pin(self.propose_on(key, posted)).await?
            {
                tell(Some(&before), Some(&after));
                return Ok(());
            }
            drop(pin);
            let modify = async || {
                let hash = self.check_for_change(key, room)?;
                let _lock = self.lock_key(hash).await?;
                self.modify_now(hash, key, room, &choice).await
            };
            let (before, after) = Box::pin(self.with_memory(modify)).await?;
            tell(before.as_deref(), after.as_deref());
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
        let (cell, SeenCell { epoch, view, deadline, value }) = (found.0, seen);
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
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{NodeDown, Verb};
    use swarm_core::layout::{Geometry, Location, cell, record};
    use swarm_core::node::{NodeId, NodeSet};
    use swarm_core::quorum::Session;
    use swarm_core::words::{Ballot, CellFlags, Incarnation};

    use super::*;
    use crate::client::handle::Options;
    use crate::index::keyed_cell::KeyedCell;
    use crate::ops::expiry::TimeToLive;
    use crate::pools::shm::{self, CreateOptions, Pool};
    use crate::runtime::block_on::block_on;

    /// Says what it is set to.
    #[derive(Clone, Default)]
    struct Set(Rc<Cell<u64>>);

    impl Clock for Set {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    type Near = Client<Loopback, Set>;

    /// Clients of one pool whose memory is near, and their clock.
    fn clients() -> (Loopback, [Near; 2], Set) {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let (nodes, clock) = (Loopback::new(3, 4 << 17).near(), Set::default());
        let clients = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            Client::new(nodes.clone(), clock.clone(), geometry, session, Options::default())
        });
        (nodes, clients, clock)
    }

    fn cell_of(client: &Near, key: &[u8]) -> KeyedCell {
        let hash = client.check(key, &[]).expect("a key");
        client.cells.get(hash, key).expect("it is cached").0
    }

    fn increment(client: &Near) -> i64 {
        client.blocking().increment(b"key", 1).expect("memory")
    }

    /// Changes the key by the plain code alone; `None` if that leaves it to the general path.
    fn changed_at_once(client: &Near, value: &[u8]) -> Option<Vec<u8>> {
        let mut told = None;
        let mut choose = |_: Option<&[u8]>| Ok(Next::Put(value.to_vec()));
        let mut tell = |before: Option<&[u8]>, _: Option<&[u8]>| told = before.map(<[u8]>::to_vec);
        if let Begun::Done(done) = client.begin_change(b"key", None, &mut choose, &mut tell) {
            done.expect("nodes answer");
        }
        told
    }

    #[test]
    fn what_was_changed_last_is_changed_in_one_roundtrip() {
        let (_, [one, two], _) = clients();
        (0..2).for_each(|_| _ = increment(&one));
        let mut of_one = 0;
        for sum in 3..100 {
            assert_eq!(increment(&one), sum);
            let change = one.last();
            of_one += u64::from((change.roundtrips, change.verbs) == (1, 13));
        }
        // The others raised a high-water mark.
        assert!(of_one > 90, "{of_one} of 97");
        assert_eq!(changed_at_once(&one, b"7").as_deref(), Some(&b"99"[..]));
        assert_eq!(two.blocking().get(b"key").expect("nodes").as_deref(), Some(&b"7"[..]));
    }

    /// Each finds that the other one was first, after it has posted its own record, or before.
    #[test]
    fn what_another_client_has_changed_is_seen_first() {
        let (_, [one, two], _) = clients();
        (0..2).for_each(|_| _ = increment(&one));
        assert_eq!(increment(&two), 3);
        for sum in 2..50 {
            assert_eq!((increment(&one), increment(&two)), (2 * sum, 2 * sum + 1));
        }
        assert_eq!(changed_at_once(&one, b"7"), None);
        assert_eq!(increment(&one), 100, "no lost change takes effect");
    }

    /// A choice that was made is not made again, whatever the plain code leaves to do.
    #[test]
    fn a_choice_is_made_once_for_each_value() {
        let (_, [one, _], _) = clients();
        (0..3).for_each(|_| _ = increment(&one));
        for length in [1, 3000, 5, 20] {
            let (calls, new) = (Cell::new(0), vec![b'1'; length]);
            let choose = |_: Option<&[u8]>| {
                calls.set(calls.get() + 1);
                Some(new.clone())
            };
            let after = block_on(one.update_with(b"key", choose)).expect("memory");
            assert_eq!((after, calls.get()), (Some(new.clone()), 1), "{length} bytes");
        }
    }

    /// A word that says of a record that it is committed under nearly the last ballot.
    #[test]
    fn a_worn_cell_is_left_to_the_general_path() {
        let (nodes, [one, _], _) = clients();
        (0..3).for_each(|_| _ = increment(&one));
        let (worn, format) = (cell_of(&one, b"key"), one.geometry.format);
        let hash = one.check(b"key", &[]).expect("a key");
        let (_, seen) = one.cells.take(hash, b"key").expect("it was seen");
        let (ballot, record) = (Ballot((format.last_ballot().0 / 5 * 4) & !1), seen.view.record());
        let word = format.cell(ballot, record, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
        for node in NodeSet::all(3) {
            let at = Location::everywhere(record, NodeId(0)).at(node, 3);
            nodes.set_word(node, at.plus(record::ACCEPTED), ballot.0);
            nodes.set_word(node, worn.at.place.at(node, 3).plus(cell::WORD), word.0);
        }
        let view = swarm_core::cell::View::created(format, 3, word);
        one.cells.put_back(hash, &worn, SeenCell { view, ..seen });
        assert_eq!(changed_at_once(&one, b"9"), None);
        assert_eq!(increment(&one), 4);
        assert_ne!(cell_of(&one, b"key").identity, worn.identity, "it went on as a register");
    }

    /// What is remembered of a key whose time is over is not built on.
    #[test]
    fn what_has_expired_is_left_to_the_general_path() {
        let (_, [one, _], clock) = clients();
        let store = one.blocking();
        store.put_with_ttl(b"key", b"5", Duration::from_nanos(1000)).expect("memory");
        assert_eq!((increment(&one), increment(&one)), (6, 7));
        assert_eq!(store.ttl(b"key"), Ok(TimeToLive::Left(Duration::from_nanos(1000))));
        clock.0.set(5000);
        assert_eq!(changed_at_once(&one, b"9"), None);
        assert_eq!(increment(&one), 1);
    }

    /// In another epoch a record that was seen is built on if every node shows it still.
    #[test]
    fn what_was_seen_in_an_earlier_epoch_is_looked_at_again() {
        for changed in [false, true] {
            let (_, [one, two], _) = clients();
            (0..3).for_each(|_| _ = increment(&one));
            let hash = one.check(b"key", &[]).expect("a key");
            let (found, seen) = one.cells.take(hash, b"key").expect("it was seen");
            one.cells.put_back(hash, &found.0, SeenCell { epoch: seen.epoch + 1, ..seen });
            if changed {
                assert_eq!(increment(&two), 4);
            }
            let before = changed_at_once(&one, b"9");
            assert_eq!(before.as_deref(), (!changed).then_some(&b"3"[..]));
            let looked = one.last().roundtrips;
            assert!(changed || looked == 2, "{looked}");
        }
    }

    /// A key of the same hash is another key.
    #[test]
    fn another_key_of_the_same_hash_is_left_alone() {
        let (_, [one, _], _) = clients();
        (0..3).for_each(|_| _ = increment(&one));
        let hash = one.check(b"key", &[]).expect("a key");
        assert!(one.cells.take(hash, b"kex").is_none());
        assert!(one.cells.take(hash, b"key").is_some());
    }

    type Hook = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

    /// Near nodes, what happens before the next chain to the last of them, and whether it answers.
    #[derive(Clone)]
    struct Interrupted {
        nodes: Loopback,
        hook: Hook,
        is_silent: Rc<Cell<bool>>,
    }

    impl Fabric for Interrupted {
        type EpochDomain = <Loopback as Fabric>::EpochDomain;
        type Reply<'f> = <Loopback as Fabric>::Reply<'f>;
        type Completion<'f> = <Loopback as Fabric>::Completion<'f>;

        fn is_near(&self) -> bool {
            true
        }

        fn nodes(&self) -> usize {
            self.nodes.nodes()
        }

        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            if node == NodeId(2) && self.is_silent.get() {
                return std::future::ready(Err(NodeDown));
            }
            if node == NodeId(2)
                && let Some(happens) = self.hook.take()
            {
                happens();
            }
            self.nodes.post(node, chain)
        }
    }

    /// Two nodes have a change's record when another client comes by that reaches these two alone. It
    /// completes that change, and adds its own: each counts once.
    #[test]
    fn a_change_that_others_met_half_way_counts_once() {
        let nodes = Loopback::new(3, 4 << 17);
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let (hook, is_silent) = (Hook::default(), Rc::<Cell<bool>>::default());
        let fabric = Interrupted { nodes, hook: Rc::clone(&hook), is_silent: is_silent.clone() };
        let [one, two] = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let (fabric, clock) = (fabric.clone(), Set::default());
            Client::<_, _>::new(fabric, clock, geometry, session, Options::default())
        });
        for sum in 1..=3 {
            assert_eq!(one.blocking().increment(b"key", 1), Ok(sum));
        }
        *hook.borrow_mut() = Some(Box::new(move || {
            is_silent.set(true);
            assert_eq!(two.blocking().increment(b"key", 1), Ok(5), "behind the one that it met");
            is_silent.set(false);
            assert_eq!(two.blocking().increment(b"key", 1), Ok(6), "at the third node as well");
        }));
        assert_eq!(one.blocking().increment(b"key", 1), Ok(4));
        assert!(hook.borrow().is_none());
        assert_eq!(one.blocking().increment(b"key", 1), Ok(7));
    }

    /// Records come back as soon as no operation can reach them, and no sooner.
    #[test]
    fn what_changes_replace_is_used_again_when_earlier_operations_are_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let [one, two] = [(); 2].map(|()| shm::open(&pool, Options::default()).expect("a client"));
        let add = |times: i64| {
            (0..times).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
            one.counters().reclaimed
        };
        let pin = two.pin();
        let meanwhile = add(1000);
        assert!(meanwhile == 0, "{meanwhile} records are used again that it may come across");
        drop(pin);
        let after = add(1000);
        assert!(after > 1000, "{after} came back");
    }
}

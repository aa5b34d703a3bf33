//! Evacuation: empties chunks in which little is in use, so that they serve any size again (E10a).
//!
//! [Closed](crate::heap) chunks hand out nothing. An *evacuation* walks the index and moves all
//! that the index names in them. A key [moves](crate::ops::relocate), register and value, whichever
//! client wrote them. A bucket's record moves by a proposal of the same entries, a [keyed
//! cell](crate::index::keyed_cell)'s by one of the same value, and a keyed cell goes on in
//! another. There is no other way to move anything. So whatever other clients do to a key or a
//! bucket meanwhile is what may happen in any move: all go by the same cells. The old objects are
//! unreachable afterwards; the next [GC cycle](crate::gc::mark_sweep) finds them, and two epochs
//! later the chunks are [released](crate::heap).
//!
//! An evacuation ends at the end of the index, whether or not all could be moved. An object that
//! has nowhere to go, or that an operation under way uses, stays, and its chunk is opened again. If
//! the client dies in the middle, what has moved has moved, and the rest stays where it is; no
//! other client knows that chunks are closed.
//!
//! Roundtrips: two for each bucket and one for its keys, as for a GC cycle, and some eight for each
//! key that moves.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{BufferHeader, buffer};
use swarm_core::register::read_all::{AllReplicas, read_all};
use swarm_core::register::{Protocol, Register};
use swarm_core::words::Pointer;

use crate::client::gc_state::IndexWalk;
use crate::client::handle::Client;
use crate::error::Error;
use crate::gc::index_walk::WalkStep;
use crate::heap::{ObjectKind, Purpose};
use crate::index::bucket::{Bucket, Content, Entry, KeyObject};
use crate::index::keyed_cell::{CellContent, Kind};
use crate::index::lookup::Located;
use crate::runtime::side_by_side::try_join_all;

/// Buckets that one step goes over. What its changes replace comes back behind it.
const STEP: usize = 12;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Moves all that fits elsewhere out of this client's sparsest chunks. Returns false if nothing
    /// would be gained; otherwise the next GC cycle finds the old objects. The caller is the
    /// only search of this client.
    ///
    /// # Errors
    /// If not all nodes answer, or a bucket changes all the time: it is given up, and nothing is
    /// lost by it.
    pub(crate) async fn evacuate(&self, wanted: ObjectKind) -> Result<bool, Error> {
        if !self.group.suspects().is_empty() || !self.close_sparse(wanted).await? {
            return Ok(false);
        }
        self.empty_closed().await?;
        Ok(true)
    }

    /// Moves all reachable objects out of closed chunks, as far as there is room.
    async fn empty_closed(&self) -> Result<(), Error> {
        let mut tour = IndexWalk::default();
        while self.evacuate_some(&mut tour).await? {
            self.searching.goes_on();
            if self.heap.has_few_records() {
                self.replaced_back().await?;
            }
        }
        Ok(())
    }

    async fn close_sparse(&self, wanted: ObjectKind) -> Result<bool, Error> {
        let _pin = self.pin();
        self.heap.close_sparse(&self.group, wanted).await
    }

    /// Goes over a few buckets. False at the end of the index.
    async fn evacuate_some(&self, tour: &mut IndexWalk) -> Result<bool, Error> {
        for _ in 0..STEP {
            let _pin = self.pin();
            match self.next_quiet(tour).await? {
                WalkStep::At(located) => self.move_what_is_closed(&located).await?,
                WalkStep::Nothing => {}
                WalkStep::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Moves all that a converged bucket names in closed chunks. The last changes of a nearly
    /// exhausted cell are kept for a split (S6). A split's record stays, as what was created with
    /// it may be something else by now.
    async fn move_what_is_closed(&self, located: &Located) -> Result<(), Error> {
        let Content::Entries { entries, created } = &located.bucket.content else { return Ok(()) };
        if self.is_worn(located) {
            return Ok(());
        }
        let registers = entries.iter().filter_map(|it| match it.object(&self.geometry)? {
            KeyObject::Register(register) => Some((it, register)),
            KeyObject::Cell(_) => None,
        });
        let surveys = registers.map(async |(entry, register)| {
            read_all(&self.group, &register.place).await.map(|read_all| (entry, register, read_all))
        });
        let mut is_changed = false;
        for (entry, register, read_all) in try_join_all(surveys).await? {
            is_changed |= self.move_key(entry, &register, &read_all).await?;
        }
        // S6: a bucket that stays worn could not list what a cell goes on in.
        let stays = located.view.is_worn(self.geometry.format);
        for entry in entries.iter().filter(|entry| entry.is_cell && !stays) {
            is_changed |= self.move_cell(entry).await?;
        }
        let is_closed = |object| self.heap.reclaimer.is_closed(object);
        let record = is_closed(located.view.record());
        if !is_changed && (record || created.is_some_and(|created| is_closed(created.buffer))) {
            // As its cell has converged, all nodes have the buffer that was created with it.
            let content = Content::Entries { entries: entries.clone(), created: None };
            let bucket = Bucket { content, ..located.bucket };
            self.or_stay(self.change(located, bucket, &[], Purpose::Evacuate).await)?;
        }
        Ok(())
    }

    /// Moves a key if any of its objects lies in a closed chunk. Returns whether its bucket was
    /// changed. Deleted keys are left to a GC cycle.
    async fn move_key(
        &self,
        entry: &Entry,
        register: &Register,
        read_all: &AllReplicas,
    ) -> Result<bool, Error> {
        let is_closed = |object| self.heap.reclaimer.is_closed(object);
        let buffer = |stamp| self.geometry.format.pointer(stamp);
        let is_there =
            is_closed(entry.pointer) || read_all.current().any(|it| is_closed(buffer(it)));
        let last = read_all.current().max().filter(|_| is_there && !self.is_dead(read_all));
        let Some(last) = last else { return Ok(false) };
        let length = self.length_in(buffer(last), register).await?;
        // A record for its bucket must be free before the key is frozen.
        if self.heap.takes_chunks(length)
            || !self.or_stay(self.has_record(Purpose::Evacuate).await)?
        {
            return Ok(false);
        }
        let moved = self.or_stay(self.move_out(entry.hash, register, length).await)?;
        self.evacuated.set(self.evacuated.get() + u64::from(moved));
        Ok(moved)
    }

    /// Moves the record of a key that is a cell, if that lies in a closed chunk, by a proposal of the
    /// same value; or the key, if the cell does, to another cell (Q3). Returns whether its bucket was
    /// changed. Deleted keys are left to a GC cycle, and worn cells to the next change.
    async fn move_cell(&self, entry: &Entry) -> Result<bool, Error> {
        let Some(KeyObject::Cell(cell)) = entry.object(&self.geometry) else {
            return Err(Error::DAMAGED);
        };
        let is_closed = |object| self.heap.reclaimer.is_closed(object);
        let (hash, is_there) = (entry.hash, is_closed(entry.pointer));
        let (key, shown) = self.read_cell_as_it_is(&cell).await?;
        let moves = is_there || is_closed(shown.view.record());
        let is_worn = shown.view.is_worn(self.geometry.format);
        if shown.kind == Kind::Absent || !moves || is_worn && shown.kind == Kind::Value {
            return Ok(false);
        }
        if is_there {
            let last = (shown.kind, &shown.view, &*shown.value, shown.deadline);
            let outcome = self.move_cell_out(hash, &key, &cell, last).await;
            let moved = outcome == Ok(true);
            self.or_stay(outcome)?;
            self.evacuated.set(self.evacuated.get() + u64::from(moved));
            return Ok(moved);
        }
        if shown.kind == Kind::Value {
            // Q1: the same value again. What is remembered of the cell is of the record before.
            self.cells.remove(hash);
            let (kind, deadline, value) = (Kind::Value, shown.deadline, &*shown.value);
            let record = CellContent { kind, deadline, key: &key, value };
            self.or_stay(self.propose_to(&cell, &shown.view, &record, Purpose::Evacuate).await)?;
        }
        Ok(false)
    }

    /// Returns whether something was changed: it stays where it is if there is no room for it.
    fn or_stay<T>(&self, change: Result<T, Error>) -> Result<bool, Error> {
        match change {
            Ok(_) => Ok(true),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the length of the value of the write to `register` whose buffer `object` is, as far
    /// as a node shows: a later write may be longer.
    async fn length_in(&self, object: Pointer, register: &Register) -> Result<usize, Error> {
        // A delete's stamp names no buffer.
        if object.is_null() {
            return Ok(0);
        }
        let nodes = self.group.nodes();
        let site = self.geometry.placement().site(object);
        let read = |node| {
            let at = site.place.at(node, nodes).plus(buffer::REWRITE);
            let words = buffer::HEADER_WORDS - buffer::REWRITE;
            self.group.fabric().post(node, &[Verb::Read { at, words }])
        };
        let mut length = 0;
        let collect = |_, reply: F::Reply<'_>| {
            let header = BufferHeader::decode(&reply);
            let its_own = header.filter(|header| header.register == register.place.pointer);
            length = its_own.map_or(length, |header| length.max(header.length));
        };
        self.group.at_all_of(site.holders, read, collect).await?;
        Ok(length)
    }
}

#[cfg(test)]
mod stories;

#[cfg(test)]
mod tests {
    use crate::client::handle::Options;
    use crate::error::Error;
    use crate::pools::shm::{self, Client, CreateOptions, Pool};

    /// Consecutive refusals; each may have found memory that is being reclaimed.
    const REFUSALS: usize = 3;

    fn new() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 24, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        (dir, pool)
    }

    fn open(pool: &Pool) -> Client {
        shm::open(pool, Options::default()).expect("a slot")
    }

    fn key(size: usize, number: usize) -> Vec<u8> {
        format!("{size} {number}").into_bytes()
    }

    /// Returns how many values of `size` bytes fit.
    fn fill(client: &Client, size: usize) -> usize {
        let (value, mut stored, mut refused) = (vec![7; size], 0, 0);
        while refused < REFUSALS {
            match client.blocking().put(&key(size, stored), &value) {
                Ok(()) => (stored, refused) = (stored + 1, 0),
                Err(Error::Full(_)) => refused += 1,
                Err(why) => panic!("value {stored} of {size} bytes: {why}"),
            }
        }
        stored
    }

    /// A pool has room for 85 % of what a new pool takes.
    fn holds_as_much_as_a_new_one(pool: &Pool, size: usize) -> Client {
        let (_dir, fresh) = new();
        let (client, all) = (open(pool), fill(&open(&fresh), size));
        let fit = fill(&client, size);
        println!("{fit} values of {size} bytes, {all} in a new pool");
        assert!(100 * fit >= 85 * all, "{fit} values of {size} bytes, {all} in a new pool");
        assert!(client.counters().evacuated > 0);
        client
    }

    fn holds(client: &Client, size: usize, number: usize) {
        let value = client.blocking().get(&key(size, number)).expect("get");
        assert_eq!(value.as_deref(), Some(&vec![7; size][..]), "value {number} of {size} bytes");
    }

    /// Each of many clients that write much puts a key, and leaves. Without evacuation, their
    /// chunks would serve only keys and values of that size for ever, with an object or two in
    /// each.
    #[test]
    fn a_crowd_that_has_left_a_key_each_leaves_room() {
        const CROWD: usize = 17;
        for size in [1000, 60_000] {
            let (_dir, pool) = new();
            let crowd: Vec<Client> = (0..CROWD).map(|_| open(&pool)).collect();
            for (number, client) in crowd.iter().enumerate() {
                client.heap.has_had_all();
                client.blocking().put(&key(100, number), &[7; 100]).expect("put");
            }
            drop(crowd);
            let client = holds_as_much_as_a_new_one(&pool, size);
            (0..CROWD).for_each(|number| holds(&client, 100, number));
        }
    }

    /// The same for numbers that are cells: each leaves a cell, in a chunk of registers, and a
    /// record.
    #[test]
    fn a_crowd_that_has_left_a_number_each_leaves_room() {
        const CROWD: usize = 17;
        for size in [1000, 60_000] {
            let (_dir, pool) = new();
            let crowd: Vec<Client> = (0..CROWD).map(|_| open(&pool)).collect();
            for (number, client) in crowd.iter().enumerate() {
                client.heap.has_had_all();
                for sum in 1..=3 {
                    assert_eq!(client.blocking().increment(&key(100, number), 1), Ok(sum));
                }
            }
            drop(crowd);
            let client = holds_as_much_as_a_new_one(&pool, size);
            for number in 0..CROWD {
                let value = client.blocking().get(&key(100, number)).expect("get");
                assert_eq!(value.as_deref(), Some(&b"3"[..]), "number {number}");
            }
        }
    }

    /// Of the keys that fill a pool one in forty is left, here and there.
    #[test]
    fn what_was_of_one_size_is_for_others_though_some_of_it_is_left() {
        for size in [5000, 60_000] {
            let (_dir, pool) = new();
            let writer = open(&pool);
            let all = fill(&writer, 2000);
            let mut dice = fastrand::Rng::with_seed(size as u64);
            let (kept, others): (Vec<usize>, Vec<usize>) =
                (0..all).partition(|_| dice.u8(..40) == 0);
            for number in others {
                writer.blocking().delete(&key(2000, number)).expect("delete");
            }
            drop(writer);
            let client = holds_as_much_as_a_new_one(&pool, size);
            kept.into_iter().for_each(|number| holds(&client, 2000, number));
        }
    }
}

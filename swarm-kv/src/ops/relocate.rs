//! Relocation: a key gets a fresh register when its timestamps near their end, its values outgrew
//! the in-place copy, or its stamp slots are contended.
//!
//! A client that wants a key moved, or that meets a register being moved, freezes the register and
//! proposes one change of the bucket. The entry of the old register becomes that of a new one,
//! which begins with the old one's last value and names the old one as its predecessor. The cell
//! has one winner, and all clients go by it (V2): so it does not matter whose majority showed which
//! last stamp. A deleted key goes on in a register that is deleted from the beginning (V6).
//!
//! A writer whose stamp met the freeze follows predecessors from the listed register back to the
//! one that replaced its own. That one shows whether the write took effect (V4).
//!
//! **Invariant:** an operation under way finds the register that replaced its own (V5). Registers
//! come and go at one entry. An entry that has a predecessor is *linked*: it stays listed, deleted
//! or not, until an insert over it inherits the link. Or a [GC cycle](crate::gc::mark_sweep) finds
//! that all operations that ran when it was met deleted have ended. So a register that is no
//! predecessor of a listed one has one of two histories. Either it was deleted for good before it
//! ever moved, and its entry was dropped. Or it moved, and its line ended, before the operation
//! began. Then no stamp of the operation took effect: it came before a delete, or too late.
//!
//! The registers in between are not listed, and a GC cycle retires them. It does so after the
//! change that removed them from the bucket, which came after the operation began. Two epochs
//! later, when their memory is reused, the operation has ended. The same holds for buffers that a
//! frozen register names. An operation that begins later and remembers the register finds it frozen
//! at a majority, and takes nothing else from it.
//!
//! A [read-modify-write](crate::ops::modify) is a move whose successor begins with another value,
//! made of the last one (K1).
//!
//! Roundtrips of a move: bucket, key, two for the freeze, value, bucket, change.

use heapless::Vec;
use swarm_core::cell::InitialWrite;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Identity, Location, MAX_IN_PLACE, Shape, words_for, words_in_place};
use swarm_core::register::freeze::{freeze, predecessor, took_effect};
use swarm_core::register::safe_guess::deleted_stamp;
use swarm_core::register::{Protocol, Register, Write, read_key};
use swarm_core::words::{Pointer, Stamp};

use crate::client::handle::{Client, TRIES, Value};
use crate::error::Error;
use crate::gc::direct_reclaim::PAUSE;
use crate::heap::Purpose;
use crate::index::bucket::{Bucket, Content, Created, Entry, shape};
use crate::index::created::NewRegister;
use crate::ops::insert::has_no_memory;
use crate::ops::locate::entries;
use crate::ops::modify::{Next, Rewrite};

/// The most registers that one walk follows. Each replaced another one since the location was
/// remembered at which the operation began: a second's read-modify-writes, and more.
const WALK: usize = 1 << 20;
/// After one value found no memory to outgrow its place, this many others do not try.
const PUT_OFF: u32 = 256;
/// Looks at a move that another client is to end.
const LOOKS: usize = 8;
/// As long as the longest value that lies in place.
static ROOM: [u8; MAX_IN_PLACE] = [0; MAX_IN_PLACE];

/// A new register's place and shape, and the write of its first buffer.
pub(crate) type Room<'v> = (Location, Shape, Write<'v>);

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Moves the key of this hash: afterwards no bucket lists `old`, and its successor has room in
    /// place for `least` bytes. Returns the stamp with which the successor began, if this client
    /// put it there.
    pub(crate) async fn move_on(
        &self,
        hash: u64,
        old: &Register,
        least: usize,
        need: Purpose,
    ) -> Result<Option<Stamp>, Error> {
        let capacity = old.shape().capacity.max(words_for(least.min(MAX_IN_PLACE)));
        let any = &ROOM[..MAX_IN_PLACE.min(8 * capacity)];
        Box::pin(self.move_on_now(hash, old, (capacity, any), need, None)).await
    }

    /// The same with as much room in place as before, for a value that was `length` bytes long when
    /// read, using only memory that this client has.
    ///
    /// # Errors
    /// [`Error::Full`] comes before anything else: the key is where it was.
    pub(crate) async fn move_out(
        &self,
        hash: u64,
        old: &Register,
        length: usize,
    ) -> Result<(), Error> {
        let long = if length > ROOM.len() { vec![0; length] } else { vec![] };
        let any = ROOM.get(..length).unwrap_or(&long);
        let room = (old.shape().capacity, any);
        Box::pin(self.move_on_now(hash, old, room, Purpose::Evacuate, None)).await.map(drop)
    }

    /// Moves a key of which this client has read a value, and lets `rewrite` choose what it goes on
    /// with. There is room for `new`, which it chose of what was read. There is as much room in place
    /// as before, also for a key that is deleted: its client has such registers at hand, where one
    /// of another size might take a chunk, and a cycle frees it soon.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing has changed.
    pub(crate) async fn move_rewritten(
        &self,
        hash: u64,
        old: &Register,
        new: &[u8],
        rewrite: &mut Rewrite<'_>,
    ) -> Result<(), Error> {
        let room = (old.shape().capacity.max(words_in_place(new.len())), new);
        let moved = self.move_on_now(hash, old, room, Purpose::Insert, Some(rewrite));
        Box::pin(moved).await.map(drop)
    }

    /// The same, to a register with room in place for `capacity` words, and a buffer for a value as
    /// long as `any`. What it begins with is chosen by `rewrite`, if there is one.
    async fn move_on_now(
        &self,
        hash: u64,
        old: &Register,
        (capacity, any): (usize, &[u8]),
        need: Purpose,
        mut rewrite: Option<&mut Rewrite<'_>>,
    ) -> Result<Option<Stamp>, Error> {
        // V2: memory and ballots first. A frozen register that has no successor serves no
        // operation.
        let located = self.fresh_to_change(hash).await?;
        // S6: a cell that stays worn has no changes left but for keys that come, go or must move.
        if rewrite.is_some() && located.view.is_worn(self.geometry.format) {
            return Err(swarm_core::error::Error::Exhausted.into());
        }
        let Some(listed) = entry_of(&located.bucket, old) else { return Ok(None) };
        let read;
        let key = match &rewrite {
            Some(rewrite) => rewrite.key,
            None => {
                read = read_key(&self.group, old).await?;
                &*read
            }
        };
        self.locations.remove(hash, key);
        let wanted = Shape { key_length: key.len(), capacity };
        let (place, shape, write) = self.room(hash, wanted, any, need).await?;
        let mut held = Vec::<Write<'_>, 2>::new();
        held.push(write).expect("the first one");
        // K4: another client may change the value first, and then this one has to keep it.
        let kept = rewrite.as_ref().map(|rewrite| rewrite.read).unwrap_or(any);
        let kind = |value: &[u8]| self.first_buffer(place.home, shape, value);
        if kind(kept) != kind(any) {
            let spare = self.new_write(kind(kept), kept, need, false).await;
            let spare = spare.inspect_err(|_| self.give_back(&place, &held))?;
            held.push(spare).expect("the second one");
        }
        // E11: a change takes no record that is kept for keys that move.
        let is_own = need == Purpose::Evacuate || rewrite.is_some();
        let needed = if is_own { need } else { Purpose::Relocate };
        let record = self.has_record(needed).await;
        record.inspect_err(|_| self.give_back(&place, &held))?;
        // V1: a majority of the slots is frozen before the bucket changes.
        let last = freeze(&self.group, old).await;
        let last = last.inspect_err(|_| self.give_back(&place, &held))?;
        let before = last.value.as_deref();
        // K1: of the register's last value, whatever was read before.
        let next = rewrite.as_ref().map(|rewrite| rewrite.next(before));
        let next = next.as_deref().unwrap_or(&Next::Keep);
        let fits = |value: Option<&[u8]>| {
            let kind_of_it = kind(value.unwrap_or_default());
            held.iter().position(|held| kind(held.value) == kind_of_it)
        };
        let after = next.after(before);
        // K4: nothing is waited for here. What there is no memory for is chosen again.
        let (after, at) = match fits(after) {
            Some(at) => (after, Some(at)),
            None => (before, fits(before)),
        };
        let value = after.unwrap_or_default();
        let write = match at {
            Some(at) => held.swap_remove(at),
            None => {
                // The register is frozen: it must not stay so for want of memory.
                let larger = self.new_write(kind(value), value, Purpose::Relocate, false).await;
                larger.inspect_err(|_| self.give_back(&place, &held))?
            }
        };
        held.iter().for_each(|unused| self.heap.take_back(unused.buffer));
        let identity = Identity { created_at: self.group.now(), number: write.number };
        let new_register = NewRegister {
            register: Register::new(place, identity, shape),
            buffer: write.buffer,
            key,
            value,
            // V6: what was deleted is deleted in its successor, too.
            deleted: after.is_none(),
            predecessor: Some(listed.predecessor(last.stamp)),
        };
        let mut is_proposed = false;
        let named = (old.place.pointer, old.identity);
        let in_its_place =
            self.put_register_in_place_of(hash, named, &new_register, &mut is_proposed).await;
        if !is_proposed {
            self.give_back(&place, &[write]);
        }
        // V2: only if the cell chose this register does its origin count.
        let in_its_place = in_its_place?;
        // K2: nor does what was made of its value.
        if let Some(rewrite) = rewrite.as_mut().filter(|_| in_its_place) {
            rewrite.is_done(before, after);
        }
        Ok(in_its_place.then_some(last.stamp))
    }

    /// Ensures that a record is free for the next change of the bucket.
    pub(crate) async fn has_record(&self, need: Purpose) -> Result<(), Error> {
        let records = self.heap.entries_records();
        let record = self.heap.allocate(&self.group, records, need).await?;
        self.heap.take_back_unused(record);
        Ok(())
    }

    /// Frees the memory of a new register that no node has received.
    pub(crate) fn give_back(&self, place: &Location, held: &[Write<'_>]) {
        held.iter().for_each(|write| self.heap.take_back(write.buffer));
        self.heap.take_back_unused(place.pointer);
    }

    /// Gets the value of a key that is being moved and of which only the register is known.
    #[cold]
    pub(crate) async fn get_moved(
        &self,
        hash: u64,
        register: &Register,
    ) -> Result<Option<Value<'_, F>>, Error> {
        let key = read_key(&self.group, register).await?;
        let found = Box::pin(self.get_by_index(hash, &key)).await;
        found.map_err(|error| self.held_up_by_others(error))
    }

    /// Replaces `old` by `new_register` in the bucket. Returns false if the bucket does not list `old`
    /// any more. Sets `is_proposed` if a node may have received the new register.
    pub(crate) async fn put_register_in_place_of(
        &self,
        hash: u64,
        old: (Pointer, Identity),
        new_register: &NewRegister<'_>,
        is_proposed: &mut bool,
    ) -> Result<bool, Error> {
        let image = new_register.image(self.geometry.format);
        let parts = new_register.parts(&image, self.group.placement());
        let (entry, created) =
            (new_register.entry(&self.geometry, hash), |at| new_register.created(at));
        let new = (entry, &created as &dyn Fn(usize) -> Created, &parts[..]);
        let listed = self.put_in_place_of(hash, old, new, is_proposed).await?;
        let Some(generation) = listed else { return Ok(false) };
        if !new_register.deleted {
            let register = new_register.seen_from(self.geometry.format, self.group.slot());
            self.locations.insert(new_register.key, register, generation);
        }
        Ok(true)
    }

    /// Replaces the entry of `old` by another, created with its `parts`. Returns the generation in
    /// which it did, or `None` if the bucket does not list `old` any more. Sets `is_proposed` if a
    /// node may have received any part.
    pub(crate) async fn put_in_place_of(
        &self,
        hash: u64,
        old: (Pointer, Identity),
        (entry, created, parts): (Entry, &dyn Fn(usize) -> Created, &[InitialWrite<'_>]),
        is_proposed: &mut bool,
    ) -> Result<Option<u64>, Error> {
        for _ in 0..TRIES {
            // S6: its ballots were checked before `old` was frozen.
            let located = self.index.fresh(&self.group, hash).await?;
            let Content::Entries { entries, .. } = &located.bucket.content else { continue };
            let Some(at) = entries.iter().position(|it| it.is(old.0, old.1)) else {
                return Ok(None);
            };
            let mut entries = entries.clone();
            entries[at] = entry;
            let content = Content::Entries { entries, created: Some(created(at)) };
            let bucket = Bucket { content, ..located.bucket };
            let changed = self.change(&located, bucket, parts, Purpose::Relocate).await;
            *is_proposed |= !has_no_memory(&changed);
            if changed? {
                self.moved.set(self.moved.get() + 1);
                // A move may change the value as well.
                self.wake(hash);
                return Ok(Some(located.generation));
            }
            self.index.forget(located.cell.place.pointer);
        }
        Err(Error::Contended)
    }

    /// Handles a write that met a move of its register: moves the key on, with room in place for
    /// the value, and returns whether the write, last posted under `stamp`, took effect (V4). If
    /// not, it never will.
    pub(crate) async fn took_effect(
        &self,
        hash: u64,
        key: &[u8],
        register: &Register,
        (write, stamp): (Write<'_>, Stamp),
    ) -> Result<bool, Error> {
        let length = write.value.len();
        if stamp == Stamp::EMPTY {
            // Nothing was posted. If there is no memory for the move, the next attempt takes the
            // buffer again.
            self.heap.take_back(write.buffer);
            self.successors_origin(hash, key, register, (length, false)).await?;
            return Ok(false);
        }
        // G4: until no operation can reach the write there, the next one must not prove it
        // complete.
        let unfinished = self.group.begin_write();
        let origin = self.successors_origin(hash, key, register, (length, true)).await?;
        let took_effect = took_effect(&self.group, register, write, (stamp, origin)).await?;
        unfinished.complete();
        Ok(took_effect)
    }

    /// Moves a key on from `old`. Returns the stamp with which its successor began, or a delete's
    /// stamp if there is none. `posted`: this operation has posted a stamp to `old`.
    pub(crate) async fn successors_origin(
        &self,
        hash: u64,
        key: &[u8],
        old: &Register,
        (least, posted): (usize, bool),
    ) -> Result<Stamp, Error> {
        self.locations.remove(hash, key);
        match self.move_on(hash, old, least, Purpose::Relocate).await {
            // V2: only the winner goes by the stamp that it froze. All others go by the origin that
            // the listed register names.
            Ok(Some(origin)) => Ok(origin),
            Ok(None) => self.walk_back(hash, key, old, WALK).await,
            Err(Error::Full(shortage)) if posted => {
                self.moved_by_others(hash, key, old, Error::Unsettled(shortage)).await
            }
            Err(Error::NumbersExhausted) if posted => {
                self.moved_by_others(hash, key, old, Error::UnsettledNumbersExhausted).await
            }
            Err(Error::Unfinished) if posted => {
                self.moved_by_others(hash, key, old, Error::UnsettledUnfinished).await
            }
            Err(error) => Err(error),
        }
    }

    /// The same when this client lacks memory or numbers for the move, or another operation of its
    /// own keeps it from them. Waits a little for the client that moves the key, which had both
    /// before it froze the register.
    ///
    /// # Errors
    /// `unsettled`, never [`Error::Full`], [`Error::NumbersExhausted`] or [`Error::Unfinished`]: the write is
    /// in the register's stamp slots, and the client that moves the key later may find that it took
    /// effect. To begin again would write twice (V4). The next operation meets the move before it
    /// posts anything.
    async fn moved_by_others(
        &self,
        hash: u64,
        key: &[u8],
        old: &Register,
        unsettled: Error,
    ) -> Result<Stamp, Error> {
        for _ in 0..LOOKS {
            self.group.pause(PAUSE).await;
            let located = self.index.fresh(&self.group, hash).await?;
            if entry_of(&located.bucket, old).is_none() {
                return self.walk_back(hash, key, old, WALK).await;
            }
        }
        Err(unsettled)
    }

    /// Follows predecessors from the listed registers, `most` of each, to the one that replaced
    /// `old` (V5).
    ///
    /// # Errors
    /// [`Error::Contended`] if there are more: whether a write to `old` took effect is unknown.
    async fn walk_back(
        &self,
        hash: u64,
        key: &[u8],
        old: &Register,
        most: usize,
    ) -> Result<Stamp, Error> {
        let located = self.index.fresh(&self.group, hash).await?;
        for entry in entries(&located, hash, key).filter(|entry| entry.linked) {
            let mut at = (entry.pointer, entry.class, entry.identity.number);
            let mut steps = 0;
            loop {
                if steps == most {
                    return Err(Error::Contended);
                }
                steps += 1;
                let (pointer, class, number) = at;
                let Some(place) = self.geometry.homed_place(pointer, class) else { break };
                let Some(shape) = shape(class, key.len()) else { break };
                let before = predecessor(&self.group, &place, shape, number).await?;
                let Some(Some(before)) = before else { break };
                // Checks pointer and number, as everywhere; though the memory is not reused while
                // this operation runs.
                if before.pointer == old.place.pointer && before.number == old.identity.number {
                    return Ok(before.origin);
                }
                at = (before.pointer, before.class, before.number);
            }
        }
        Ok(self.ended())
    }

    /// Returns the stamp that stands for a register that was deleted for good.
    pub(crate) fn ended(&self) -> Stamp {
        deleted_stamp(self.geometry.format, Pointer::NULL)
    }

    /// After a write of a value that does not fit in place: moves the key to a register where it
    /// does, so that a get takes one roundtrip again. The value is written in any case.
    #[cold]
    pub(crate) async fn make_fit(&self, hash: u64, register: &Register, value: &[u8]) {
        let put_off = self.growths_put_off.get();
        if put_off > 0 {
            self.growths_put_off.set(put_off - 1);
        } else if self.move_on(hash, register, value.len(), Purpose::Insert).await.is_err() {
            self.growths_put_off.set(PUT_OFF);
        }
    }
}

/// Whether a value of this length should lie in place and does not fit there.
#[inline]
pub(crate) fn outgrown(register: &Register, length: usize) -> bool {
    length > register.capacity() && length <= MAX_IN_PLACE
}

/// Returns the entry that names `register`, if there is one.
pub(crate) fn entry_of(bucket: &Bucket, register: &Register) -> Option<Entry> {
    let Content::Entries { entries, .. } = &bucket.content else { return None };
    entries.iter().find(|entry| entry.names(register)).copied()
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{Geometry, SLOTS};
    use swarm_core::node::NodeId;
    use swarm_core::quorum::{Session, Timeouts};
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::{Incarnation, StampFlags, Timestamp, WriteNumber};

    use super::*;
    use crate::client::handle::Options;
    use crate::client::handle::tests::alone;
    use crate::heap::tests::{kept, still};
    use crate::ops::modify::CompareAndSwap;
    use crate::runtime::block_on::block_on;
    use crate::runtime::local_mutex::LocalMutexGuard;

    /// The client that moves the key has frozen one node, and died. The update lands at another
    /// node and meets the move there.
    #[test]
    fn a_write_that_met_a_move_is_not_denied_when_numbers_are_exhausted() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let nodes = Loopback::new(3, 4 << 17);
        let client = |client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let (nodes, options) = (nodes.clone(), Options::default());
            Client::<_, _>::new(nodes, still(), geometry, session, options)
        };
        let (writer, other): (Client<Loopback, LoneClock>, Client<Loopback, LoneClock>) =
            (client(0), client(1));
        assert_eq!(block_on(writer.insert(b"key", b"before")), Ok(true));
        assert_eq!(block_on(writer.update(b"key", b"again")), Ok(true));
        block_on(other.put(b"another", b"so that it has memory")).expect("room");
        let hash = writer.check(b"key", &[]).expect("a key");
        let register = writer.locations.get(hash, b"key").expect("it was written");
        let frozen = NodeId((register.home().0 + 1) % 3);
        for slot in 0..SLOTS {
            let at = register.place.at(frozen, 3).plus(slot);
            nodes.set_word(frozen, at, nodes.word(frozen, at) | 1);
        }
        // One number is left.
        (0..8191).for_each(|_| drop(writer.group.begin_write()));
        let last = WriteNumber::new(Incarnation(1), WriteNumber::LAST_COUNTER - 1);
        while writer.group.number().expect("there are more") < last {}
        let outcome = block_on(writer.update(b"key", b"after"));
        // Another client goes on with the move.
        let found = block_on(other.get(b"key")).expect("a majority").expect("it is there").to_vec();
        assert_eq!((outcome, &*found), (Err(Error::UnsettledNumbersExhausted), &b"after"[..]));
    }

    /// A client's write of a key, for which there is memory; for a move of the key there is none.
    fn in_a_full_pool() -> (Client<Loopback, LoneClock>, u64, Register, Write<'static>) {
        let client = alone();
        client.blocking().put(b"key", b"value").expect("memory");
        let hash = client.check(b"key", &[]).expect("a key");
        let register = client.locations.get(hash, b"key").expect("it is remembered");
        let write = again(&client, &register);
        let shape = register.shape();
        let class = client.geometry.register_class(shape.small_words(), shape.full_words());
        let another = client.heap.homed(class, NodeId(0));
        let take = || client.heap.allocate_there(&client.group, another, Purpose::Relocate);
        while block_on(take()).is_ok() {}
        (client, hash, register, write)
    }

    fn again(client: &Client<Loopback, LoneClock>, register: &Register) -> Write<'static> {
        let kind = client.buffer(register, b"next");
        block_on(client.new_write(kind, b"next", Purpose::Replace, true)).expect("memory")
    }

    /// No other client moves the key: the write is left as it is. Its outcome is unknown, and what
    /// its client writes next must not prove it.
    #[test]
    fn a_write_that_is_left_on_the_move_is_not_proved_by_the_next() {
        let (client, hash, register, write) = in_a_full_pool();
        let format = client.geometry.format;
        let guess = format.stamp(Timestamp(9), write.buffer, StampFlags::empty());
        let outcome = block_on(client.took_effect(hash, b"key", &register, (write, guess)));
        assert!(matches!(outcome, Err(Error::Unsettled(_))), "{outcome:?}");
        assert_ne!(again(&client, &register).number.writer(), write.number.writer());
    }

    /// Keeps the heap locked, like an operation that raises a high-water mark and is not polled;
    /// the deadline is short.
    fn kept_at(client: &Client<Loopback, LoneClock>) -> LocalMutexGuard<'_> {
        client.set_timeouts(Timeouts { deadline: 1_000_000, ..Timeouts::default() });
        kept(&client.heap)
    }

    /// The write is in the register, whichever client goes on with the move. That the client waited
    /// in vain for one of its own operations does not change that.
    #[test]
    fn a_write_that_met_a_move_is_not_denied_behind_a_kept_future() {
        let (client, hash, register, write) = in_a_full_pool();
        let format = client.geometry.format;
        let guess = format.stamp(Timestamp(9), write.buffer, StampFlags::empty());
        let kept = kept_at(&client);
        let took_effect =
            |stamp| block_on(client.took_effect(hash, b"key", &register, (write, stamp)));
        assert_eq!(took_effect(guess), Err(Error::UnsettledUnfinished));
        drop(kept);
        assert_ne!(again(&client, &register).number.writer(), write.number.writer());
    }

    /// A write that posted nothing has had no effect. To get the key takes no memory.
    #[test]
    fn behind_a_kept_future_a_key_on_the_move_is_read() {
        let (client, hash, register, write) = in_a_full_pool();
        block_on(freeze(&client.group, &register)).expect("a node");
        let _kept = kept_at(&client);
        let outcome = block_on(client.took_effect(hash, b"key", &register, (write, Stamp::EMPTY)));
        assert_eq!(outcome, Err(Error::Unfinished));
        let found = client.blocking().get(b"key").expect("a node");
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
    }

    /// A change that is none is a get, and takes no memory (K3).
    #[test]
    fn what_changes_nothing_only_reads_a_key_on_the_move() {
        let (client, _, register, _) = in_a_full_pool();
        block_on(freeze(&client.group, &register)).expect("a node");
        let store = client.blocking();
        let value = Some(b"value".to_vec());
        assert_eq!(store.put_if_absent(b"key", b"other"), Ok(value.clone()));
        let lost = store.compare_and_swap(b"key", Some(b"other"), None);
        assert_eq!(lost, Ok(CompareAndSwap::Lost(value)));
        assert!(matches!(store.swap(b"key", b"other"), Err(Error::Full(_))));
    }

    /// There is memory for a register and its buffer, and none for the bucket's record. However
    /// often the client tries, no attempt loses any of it.
    #[test]
    fn a_client_without_a_record_for_a_move_gives_back_the_rest() {
        let client = alone();
        client.blocking().put(b"key", b"value").expect("memory");
        let hash = client.check(b"key", &[]).expect("a key");
        let register = client.locations.get(hash, b"key").expect("it is remembered");
        // There are buffers for all values that fit in place.
        client.blocking().put(b"full", &vec![1; register.capacity()]).expect("memory");
        let records = client.heap.entries_records();
        let take = || client.heap.allocate_there(&client.group, records, Purpose::Relocate);
        let Err(full) = (0..).map(|_| block_on(take())).find(Result::is_err).expect("an end")
        else {
            panic!("there is no end to it")
        };
        let shape = register.shape();
        let class = client.geometry.register_class(shape.small_words(), shape.full_words());
        for _ in 0..2 * client.geometry.objects(class) {
            let moved = block_on(client.move_on(hash, &register, 0, Purpose::Relocate));
            assert_eq!(moved, Err(full));
        }
        assert_eq!(client.blocking().update(b"key", b"again"), Ok(true), "it is not frozen");
    }

    /// Its stamp is lost or in, and it cannot tell: that the key is there proves neither.
    #[test]
    fn a_change_that_was_overtaken_too_often_has_no_outcome() {
        let client = alone();
        client.blocking().put(b"key", b"0").expect("memory");
        let hash = client.check(b"key", &[]).expect("a key");
        let old = client.locations.get(hash, b"key").expect("it is remembered");
        (1..5).for_each(|sum| assert_eq!(client.blocking().increment(b"key", 1), Ok(sum)));
        let outcome = |most| block_on(client.walk_back(hash, b"key", &old, most));
        assert_eq!(outcome(3), Err(Error::Contended));
        assert!(outcome(4).is_ok_and(|origin| origin != client.ended()));
    }

    /// Nothing is lost: the next attempt finds the buffer free, and the client's numbers go on.
    #[test]
    fn a_write_that_was_not_posted_leaves_its_buffer() {
        let (client, hash, register, write) = in_a_full_pool();
        let outcome = block_on(client.took_effect(hash, b"key", &register, (write, Stamp::EMPTY)));
        assert!(matches!(outcome, Err(Error::Full(_))), "{outcome:?}");
        let next = again(&client, &register);
        assert_eq!(next.number.writer(), write.number.writer());
        assert_eq!(next.buffer, write.buffer);
    }
}

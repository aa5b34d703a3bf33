//! Moving a key to a fresh register: where its timestamps near their end, its values outgrew the
//! in-place copy, or its slots are contended.
//!
//! Whoever wants a key moved, or meets a register that is being moved, freezes it and proposes one
//! change of the bucket: the entry of the old register becomes that of a newborn, which begins with
//! the old one's last value and says whose place it took. The cell has one winner; everybody goes
//! by it, so that it does not matter whose majority showed which last stamp. A key that was deleted
//! goes on in a register that is deleted from the beginning.
//!
//! A writer whose stamp met the freeze walks back from the register that is mapped to the one that
//! took its own's place, which tells whether the write is in. It all rests on this: *whoever's
//! operation is under way finds that register*. Registers come and go at one entry, and a linked
//! one, which has a predecessor, stays listed, deleted or not, until an insert over it takes on the
//! link, or a [collection](crate::collect) finds that who was at work when it was met deleted is
//! done. So a register that is not among the forebears of those listed either was deleted for good
//! before it ever moved, and its entry dropped; or it moved, and its line ended, before the
//! operation began. A stamp of the operation is not in what it left behind: it came before a
//! delete, or too late.
//!
//! Registers on the way back are listed nowhere, and a collection takes them for garbage. It does so
//! after the change that took them out of the bucket, and that came after the operation began: two
//! epochs later, when their memory is used again, the operation is over. The same goes for buffers
//! that a frozen register names. Who begins later and remembers the register finds it frozen at a
//! majority, and takes nothing from there but that.
//!
//! Roundtrips of a move: bucket, key, two for the freeze, value out of place, change.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Identity, MAX_IN_PLACE, Place, Shape, words_for};
use swarm_core::register::freeze::{freeze, predecessor, stands};
use swarm_core::register::safe_guess::deleted_stamp;
use swarm_core::register::{Protocol, Register, Write, read_key};
use swarm_core::words::{Pointer, Stamp};

use crate::bucket::{Bucket, Content, Entry, shape};
use crate::client::{Client, TRIES, Value};
use crate::error::Error;
use crate::heap::Need;
use crate::insert::has_no_memory;
use crate::locate::entries;
use crate::memory::PAUSE;
use crate::newborn::NewRegister;

/// Registers that one walk goes back over. Each took the place of another one since the location
/// was remembered that the operation began at.
const WALK: usize = 1 << 20;
/// Values that outgrow their place after one found no memory for a larger one: so many are let be.
const PUT_OFF: u32 = 256;
/// Looks at a move that somebody else is to end.
const LOOKS: usize = 8;
/// As long as the longest value that lies in place.
static ROOM: [u8; MAX_IN_PLACE] = [0; MAX_IN_PLACE];

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Sees to it that no bucket names `old` any more, where the key of this hash was, and that the
    /// register which takes its place has room in place for `least` bytes. Yields the stamp that
    /// that one began with, if it was this client that put it there.
    pub(crate) async fn move_on(
        &self,
        hash: u64,
        old: &Register,
        least: usize,
        need: Need,
    ) -> Result<Option<Stamp>, Error> {
        let capacity = old.shape().capacity.max(words_for(least.min(MAX_IN_PLACE)));
        let any = &ROOM[..MAX_IN_PLACE.min(8 * capacity)];
        Box::pin(self.move_on_now(hash, old, (capacity, any), need)).await
    }

    /// The same with as much room in place as it has, for a value that was `length` bytes long when somebody looked, and
    /// memory that this client has already.
    ///
    /// # Errors
    /// [`Error::Full`] in front of all else: the key is where it was.
    pub(crate) async fn move_out(
        &self,
        hash: u64,
        old: &Register,
        length: usize,
    ) -> Result<(), Error> {
        let long = if length > ROOM.len() { vec![0; length] } else { Vec::new() };
        let any = ROOM.get(..length).unwrap_or(&long);
        let room = (old.shape().capacity, any);
        Box::pin(self.move_on_now(hash, old, room, Need::Room)).await.map(drop)
    }

    /// The same to a register with room in place for so many words, and a buffer for a value that is as long as `any`.
    async fn move_on_now(
        &self,
        hash: u64,
        old: &Register,
        (capacity, any): (usize, &[u8]),
        need: Need,
    ) -> Result<Option<Stamp>, Error> {
        // Memory first, and ballots: a register that is frozen and has nowhere to go serves no one.
        let located = self.fresh_to_change(hash).await?;
        let Some(before) = entry_of(&located.bucket, old) else { return Ok(None) };
        let key = read_key(&self.group, old).await?;
        self.locations.remove(hash, &key);
        let wanted = Shape { key_length: key.len(), capacity };
        let (place, shape, mut write) = self.room(hash, wanted, any, need).await?;
        let needed = if need == Need::Room { need } else { Need::Move };
        let record = self.has_record(needed).await;
        record.inspect_err(|_| self.give_back(&place, Some(write.buffer)))?;
        let last = freeze(&self.group, old).await;
        let last = last.inspect_err(|_| self.give_back(&place, Some(write.buffer)))?;
        let value = last.value.as_deref().unwrap_or_default();
        let kind = self.first_buffer(place.home, shape, value);
        if kind != self.first_buffer(place.home, shape, write.value) {
            self.heap.take_back(write.buffer);
            // It is frozen: it must not stay so for want of memory.
            let larger = self.new_write(kind, value, Need::Move, false).await;
            write = larger.inspect_err(|_| self.give_back(&place, None))?;
        }
        let identity = Identity { birth: self.group.now(), number: write.number };
        let newborn = NewRegister {
            register: Register::new(place, identity, shape),
            buffer: write.buffer,
            key: &key,
            value,
            deleted: last.value.is_none(),
            predecessor: Some(before.predecessor(last.stamp)),
        };
        let mut is_proposed = false;
        let in_its_place = self.put_in_place_of(hash, old, &newborn, &mut is_proposed).await;
        if !is_proposed {
            self.give_back(&place, Some(newborn.buffer));
        }
        Ok(in_its_place?.then_some(last.stamp))
    }

    /// Sees to it that the bucket's next record is at hand.
    pub(crate) async fn has_record(&self, need: Need) -> Result<(), Error> {
        let records = self.heap.entries_records();
        let record = self.heap.allocate(&self.group, records, need).await?;
        self.heap.take_back_unused(record);
        Ok(())
    }

    /// Takes back the memory of a newborn that no node has heard of.
    fn give_back(&self, place: &Place, buffer: Option<Pointer>) {
        buffer.into_iter().for_each(|buffer| self.heap.take_back(buffer));
        self.heap.take_back_unused(place.pointer);
    }

    /// Gets the value of a key that is on the move, and not known but for its register.
    #[cold]
    pub(crate) async fn get_moved(
        &self,
        hash: u64,
        register: &Register,
    ) -> Result<Option<Value<'_, F>>, Error> {
        let key = read_key(&self.group, register).await?;
        Box::pin(self.get_by_index(hash, &key)).await
    }

    /// Has the bucket name `newborn` where it names `old`. False if it no longer does. Says in `is_proposed` whether any
    /// node may have heard of the newborn.
    async fn put_in_place_of(
        &self,
        hash: u64,
        old: &Register,
        newborn: &NewRegister<'_>,
        is_proposed: &mut bool,
    ) -> Result<bool, Error> {
        let image = newborn.image(self.geometry.format);
        for _ in 0..TRIES {
            // Its ballots were seen to before `old` was frozen.
            let located = self.index.fresh(&self.group, hash).await?;
            let Content::Entries { entries, .. } = &located.bucket.content else { continue };
            let Some(at) = entries.iter().position(|entry| entry.names(old)) else {
                return Ok(false);
            };
            let mut entries = entries.clone();
            entries[at] = newborn.entry(&self.geometry, hash);
            let content = Content::Entries { entries, born: Some(newborn.born(at)) };
            let bucket = Bucket { content, ..located.bucket };
            let parts = newborn.parts(&image, self.group.buffers());
            let changed = self.change(&located, bucket, &parts, Need::Move).await;
            *is_proposed |= !has_no_memory(&changed);
            if changed? {
                self.moved.set(self.moved.get() + 1);
                if !newborn.deleted {
                    let register = newborn.seen_from(self.geometry.format, self.group.slot());
                    self.locations.insert(newborn.key, register, located.generation);
                }
                return Ok(true);
            }
            self.index.forget(located.cell.place.pointer);
        }
        Err(Error::Contended)
    }

    /// A write met its register on the move. Moves it on, with room in place for the value, and
    /// finds out whether the write, posted under `stamp` last, took effect. If not, it never will.
    pub(crate) async fn stands(
        &self,
        hash: u64,
        key: &[u8],
        register: &Register,
        (write, stamp): (Write<'_>, Stamp),
    ) -> Result<bool, Error> {
        let length = write.value.len();
        if stamp == Stamp::EMPTY {
            // Nothing was posted. Where there is no memory for the move, the next attempt has the buffer again.
            self.heap.take_back(write.buffer);
            self.successors_origin(hash, key, register, (length, false)).await?;
            return Ok(false);
        }
        // Until nobody can come across the write there, the next one must not prove it complete.
        let unfinished = self.group.begin_write();
        let origin = self.successors_origin(hash, key, register, (length, true)).await?;
        let stands = stands(&self.group, register, write, (stamp, origin)).await?;
        unfinished.complete();
        Ok(stands)
    }

    /// Moves a key on from `old`, and yields the stamp that its successor began with: a delete's, if
    /// it has none. `posted`: this operation has posted a stamp to `old`.
    pub(crate) async fn successors_origin(
        &self,
        hash: u64,
        key: &[u8],
        old: &Register,
        (least, posted): (usize, bool),
    ) -> Result<Stamp, Error> {
        self.locations.remove(hash, key);
        match self.move_on(hash, old, least, Need::Move).await {
            Ok(Some(origin)) => Ok(origin),
            Ok(None) => self.walk_back(hash, key, old).await,
            Err(Error::Full(shortage)) if posted => {
                self.moved_by_others(hash, key, old, Error::Unsettled(shortage)).await
            }
            Err(Error::Spent) if posted => {
                self.moved_by_others(hash, key, old, Error::UnsettledSpent).await
            }
            Err(Error::Unfinished) if posted => {
                self.moved_by_others(hash, key, old, Error::UnsettledUnfinished).await
            }
            Err(error) => Err(error),
        }
    }

    /// The same without memory to move the key, or numbers, or while another operation of this client keeps it from
    /// them: waits a little for whoever else moves it, and had both before he froze the register.
    ///
    /// # Errors
    /// `unsettled`. It is no [`Error::Full`], [`Error::Spent`] nor [`Error::Unfinished`]: the write is in the register's slots, and
    /// whoever moves the key later may find that it took effect. To begin again would write twice. The
    /// next operation meets the move before it posts anything.
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
                return self.walk_back(hash, key, old).await;
            }
        }
        Err(unsettled)
    }

    /// Walks from the registers that are listed to the one that took the place of `old`.
    async fn walk_back(&self, hash: u64, key: &[u8], old: &Register) -> Result<Stamp, Error> {
        let located = self.index.fresh(&self.group, hash).await?;
        for entry in entries(&located, hash, key).filter(|entry| entry.linked) {
            let mut at = (entry.pointer, entry.class, entry.identity.number);
            for _ in 0..WALK {
                let (pointer, class, number) = at;
                let Some(place) = self.geometry.homed_place(pointer, class) else { break };
                let Some(shape) = shape(class, key.len()) else { break };
                let before = predecessor(&self.group, &place, shape, number).await?;
                let Some(Some(before)) = before else { break };
                // By both, as everywhere; though while this operation is under way the memory has no other life.
                if before.pointer == old.place.pointer && before.number == old.identity.number {
                    return Ok(before.origin);
                }
                at = (before.pointer, before.class, before.number);
            }
        }
        Ok(self.ended())
    }

    /// The last stamp of a register that was deleted for good.
    pub(crate) fn ended(&self) -> Stamp {
        deleted_stamp(self.geometry.format, Pointer::NULL)
    }

    /// After a write of a value that does not fit in place: moves the key to where it does, so that
    /// it is read in one roundtrip again. The value is written whatever comes of it.
    #[cold]
    pub(crate) async fn make_fit(&self, hash: u64, register: &Register, value: &[u8]) {
        let put_off = self.growths_put_off.get();
        if put_off > 0 {
            self.growths_put_off.set(put_off - 1);
        } else if self.move_on(hash, register, value.len(), Need::More).await.is_err() {
            self.growths_put_off.set(PUT_OFF);
        }
    }
}

/// Whether a value of this length should lie in place and does not fit there.
#[inline]
pub(crate) fn outgrown(register: &Register, length: usize) -> bool {
    length > register.capacity() && length <= MAX_IN_PLACE
}

/// The entry that names `register`, if one does.
fn entry_of(bucket: &Bucket, register: &Register) -> Option<Entry> {
    let Content::Entries { entries, .. } = &bucket.content else { return None };
    entries.iter().find(|entry| entry.names(register)).copied()
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{Geometry, SLOTS};
    use swarm_core::node::NodeId;
    use swarm_core::quorum::{Patience, Session};
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::{Incarnation, StampFlags, Timestamp, WriteNumber};

    use super::*;
    use crate::blocking::block_on;
    use crate::client::Options;
    use crate::client::tests::alone;
    use crate::gate::Inside;
    use crate::heap::tests::{Still, kept};

    /// Whoever moves the key has frozen one node, and died. The update lands at another one and meets the move there.
    #[test]
    fn a_write_that_met_a_move_is_not_denied_when_numbers_are_spent() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let nodes = Loopback::new(3, 4 << 17);
        let client = |client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let (nodes, options) = (nodes.clone(), Options::default());
            Client::<_, _>::new(nodes, Still, geometry, session, options)
        };
        let (writer, other): (Client<Loopback, Still>, Client<Loopback, Still>) =
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
        let told = block_on(writer.update(b"key", b"after"));
        // Somebody else goes on with the move.
        let found = block_on(other.get(b"key")).expect("a majority").expect("it is there").to_vec();
        assert_eq!((told, &*found), (Err(Error::UnsettledSpent), &b"after"[..]));
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
        let take = || client.heap.allocate_there(&client.group, another, Need::Move);
        while block_on(take()).is_ok() {}
        (client, hash, register, write)
    }

    fn again(client: &Client<Loopback, LoneClock>, register: &Register) -> Write<'static> {
        let kind = client.buffer(register, b"next");
        block_on(client.new_write(kind, b"next", Need::Instead, true)).expect("memory")
    }

    /// Nobody else moves the key: the write is left as it is. Whether it took effect is not known, and what its client
    /// writes next must not prove it.
    #[test]
    fn a_write_that_is_left_on_the_move_is_not_proved_by_the_next() {
        let (client, hash, register, write) = in_a_full_pool();
        let format = client.geometry.format;
        let guess = format.stamp(Timestamp(9), write.buffer, StampFlags::empty());
        let told = block_on(client.stands(hash, b"key", &register, (write, guess)));
        assert!(matches!(told, Err(Error::Unsettled(_))), "{told:?}");
        assert_ne!(again(&client, &register).number.writer(), write.number.writer());
    }

    /// As an operation of this client that sets memory aside and is not polled; it is not waited for for long.
    fn kept_at(client: &Client<Loopback, LoneClock>) -> Inside<'_> {
        client.set_patience(Patience { deadline: 1_000_000, ..Patience::default() });
        kept(&client.heap)
    }

    /// It is in the register, whoever goes on with the move: that the client waited in vain for one of its own operations
    /// says nothing of that.
    #[test]
    fn a_write_that_met_a_move_is_not_denied_behind_a_kept_future() {
        let (client, hash, register, write) = in_a_full_pool();
        let format = client.geometry.format;
        let guess = format.stamp(Timestamp(9), write.buffer, StampFlags::empty());
        let kept = kept_at(&client);
        let stands = |stamp| block_on(client.stands(hash, b"key", &register, (write, stamp)));
        assert_eq!(stands(guess), Err(Error::UnsettledUnfinished));
        drop(kept);
        assert_ne!(again(&client, &register).number.writer(), write.number.writer());
    }

    /// One of which nothing was posted has had no effect; and to get the key takes no memory.
    #[test]
    fn behind_a_kept_future_a_key_on_the_move_is_read() {
        let (client, hash, register, write) = in_a_full_pool();
        block_on(freeze(&client.group, &register)).expect("a node");
        let _kept = kept_at(&client);
        let told = block_on(client.stands(hash, b"key", &register, (write, Stamp::EMPTY)));
        assert_eq!(told, Err(Error::Unfinished));
        let found = client.blocking().get(b"key").expect("a node");
        assert_eq!(found.as_deref(), Some(&b"value"[..]));
    }

    /// There is memory for a register and its buffer, and none for the bucket's record, however often somebody tries:
    /// no attempt takes any of it away.
    #[test]
    fn who_finds_no_record_for_a_move_gives_back_the_rest() {
        let client = alone();
        client.blocking().put(b"key", b"value").expect("memory");
        let hash = client.check(b"key", &[]).expect("a key");
        let register = client.locations.get(hash, b"key").expect("it is remembered");
        // There are buffers for whatever fits in place.
        client.blocking().put(b"full", &vec![1; register.capacity()]).expect("memory");
        let records = client.heap.entries_records();
        let take = || client.heap.allocate_there(&client.group, records, Need::Move);
        let Err(full) = (0..).map(|_| block_on(take())).find(Result::is_err).expect("an end")
        else {
            panic!("there is no end to it")
        };
        let shape = register.shape();
        let class = client.geometry.register_class(shape.small_words(), shape.full_words());
        for _ in 0..2 * client.geometry.objects(class) {
            let moved = block_on(client.move_on(hash, &register, 0, Need::Move));
            assert_eq!(moved, Err(full));
        }
        assert_eq!(client.blocking().update(b"key", b"again"), Ok(true), "it is not frozen");
    }

    /// It has lost nothing: its buffer is at hand for the next attempt, and its client's numbers go on.
    #[test]
    fn a_write_that_was_not_posted_leaves_its_buffer() {
        let (client, hash, register, write) = in_a_full_pool();
        let told = block_on(client.stands(hash, b"key", &register, (write, Stamp::EMPTY)));
        assert!(matches!(told, Err(Error::Full(_))), "{told:?}");
        let next = again(&client, &register);
        assert_eq!(next.number.writer(), write.number.writer());
        assert_eq!(next.buffer, write.buffer);
    }
}

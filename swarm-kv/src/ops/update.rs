//! Update: replaces the value of a key that is there.

use swarm_core::clock::Clock;
use swarm_core::fabric::counting::OpCost;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{Pointer, Stamp};

use crate::client::counters::{Counters, KindCounters};
use crate::client::handle::{Client, PinGuard, TRIES};
use crate::client::key_locks::KeyLock;
use crate::client::location_cache::Cached;
use crate::error::Error;
use crate::heap::{ObjectIndex, Purpose, Taken};
use crate::ops::locate::{LocatedBy, Place};
use crate::ops::relocate::outgrown;

type CoreResult<T> = Result<T, swarm_core::error::Error>;

/// The rest of an update that must wait, or has posted nothing yet.
pub(crate) struct UpdateRest<'c, 'v, F: Fabric, C: Clock, P: Protocol + 'c> {
    hash: u64,
    begun: Option<UpdateBegun<'c, 'v, P>>,
    pin: Option<PinGuard<'c, F, C, P>>,
    pub(crate) tally: OpCost,
}

struct UpdateBegun<'c, 'v, P: Protocol + 'c> {
    turn: KeyLock<'c>,
    register: Register,
    /// The generation in which the register was cached.
    generation: u64,
    /// The client's earlier stamps there.
    before: [Stamp; 2],
    write: Write<'v>,
    /// How the write ended, if it did.
    written: Option<Written>,
    posted: Option<P::Posted<'c>>,
}

impl<F: Fabric, C: Clock, P: Protocol> Default for UpdateRest<'_, '_, F, C, P> {
    #[inline(always)]
    fn default() -> Self {
        let (hash, tally) = Default::default();
        Self { hash, begun: None, pin: None, tally }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> UpdateRest<'_, '_, F, C, P> {
    /// Whether anything was posted.
    pub(crate) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Runs an update that need not wait: the key's location is cached, a buffer is free, no other
    /// write of this key is under way, and the fabric is synchronous. Otherwise fills `rest`, for
    /// [`update_on`](Self::update_on). Counts as an operation of this kind.
    #[inline]
    pub(crate) fn try_update<'c, 'v>(
        &'c self,
        kind: impl Fn(&mut Counters) -> &mut KindCounters,
        key: &[u8],
        value: &'v [u8],
        rest: &mut UpdateRest<'c, 'v, F, C, P>,
    ) -> Option<Result<bool, Error>> {
        if self.is_cut_off() {
            return Some(Err(self.why_cut_off()));
        }
        let hash = match self.check(key, value) {
            Ok(hash) => hash,
            Err(error) => {
                self.count(kind, OpCost::default());
                return Some(Err(error));
            }
        };
        let generation = self.generation.get();
        let mut cached = self.locations.lookup(hash, key);
        if let Some(Cached { register, .. }) = &cached {
            self.group.expect_change(&register.place, register.shape().value_words());
        }
        let pin = self.pin();
        let others = self.group.fabric().begin();
        // E7: the pin showed whether what was cached before it may be used.
        let may_try = generation == self.generation.get() && self.is_key_free(hash);
        let written = cached.as_mut().filter(|_| may_try).is_some_and(|cached| {
            let written = self.try_write((hash, value), &mut cached.register, &mut rest.begun);
            self.locations.saw(cached);
            written
        });
        let tally = self.group.fabric().pause(others);
        if !written {
            (rest.hash, rest.pin, rest.tally) = (hash, Some(pin), tally);
            return None;
        }
        pin.end();
        self.count(kind, tally);
        Some(Ok(true))
    }

    /// Whether the register was written, and nothing else is left to do.
    #[inline(always)]
    fn try_write<'c, 'v>(
        &'c self,
        (hash, value): (u64, &'v [u8]),
        register: &mut Register,
        begun: &mut Option<UpdateBegun<'c, 'v, P>>,
    ) -> bool {
        let Some((write, taken)) = self.new_write_now(register, value) else { return false };
        let (before, mut posted) = (known_stamps(register), None);
        let object_index = self
            .heap
            .reclaimer
            .object_index(before[0], |entry| self.group.fabric().prefetch_local(entry));
        let site = taken.site(self.group.placement());
        let written = P::try_write(&self.group, register, write, &site, &mut posted);
        if written == Some(Written::Done) && !outgrown(register, value.len()) {
            self.wrote_now(hash, register, &taken, (before, object_index));
            return true;
        }
        // E3: the object table says that the buffer is in use before the write continues.
        self.heap.reclaimer.handed_out(write.buffer);
        if let Some(turn) = self.try_lock_key(hash) {
            let (register, generation) = (*register, self.locations.generation());
            let began = UpdateBegun { turn, register, generation, before, write, written, posted };
            *begun = Some(began);
        }
        false
    }

    /// Continues an update, of the same value. Its future is large.
    pub(crate) async fn update_on<'c>(
        &'c self,
        key: &[u8],
        value: &[u8],
        rest: UpdateRest<'c, '_, F, C, P>,
    ) -> Result<bool, Error> {
        let tally = rest.tally;
        let rest = self.in_own_process(self.write_on(key, value, rest));
        let (outcome, tally) = self.group.fabric().track_on(tally, rest).await;
        self.count(|counters| &mut counters.update, tally);
        outcome
    }

    /// Returns whether the key was there.
    pub(crate) async fn write_on<'c>(
        &'c self,
        key: &[u8],
        value: &[u8],
        rest: UpdateRest<'c, '_, F, C, P>,
    ) -> Result<bool, Error> {
        let UpdateRest { hash, begun, pin, .. } = rest;
        let Some(begun) = begun else {
            drop(pin);
            return self.update_anew(hash, key, value).await;
        };
        let UpdateBegun { turn, mut register, generation, before, write, written, posted } = begun;
        let written = match written {
            Some(written) => Ok(written),
            None => P::write_on(&self.group, &mut register, write, posted).await,
        };
        let (place, seen) = ((&register, generation), (before, false));
        match self.updated(hash, key, place, seen, write, written).await {
            Ok(Some(done)) => Ok(done),
            // The write has no effect, and will have none.
            Ok(None) | Err(Error::Full(_)) => {
                drop((turn, pin));
                self.update_anew(hash, key, value).await
            }
            Err(error) => {
                drop((turn, pin));
                Err(self.held_up(error))
            }
        }
    }

    /// Runs an update from its beginning, and reclaims memory if there is none.
    async fn update_anew(&self, hash: u64, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let update = async || {
            let _lock = self.lock_key(hash).await?;
            self.update_now(hash, key, value).await
        };
        self.with_memory(update).await
    }

    /// Updates the key, which the caller has locked.
    pub(crate) async fn update_now(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let generation = self.locations.generation();
            let (mut register, located_by) = match self.locate(hash, key).await? {
                Some(Place::Register(register, located_by)) => (register, located_by),
                Some(Place::Cell(cell)) => {
                    if Box::pin(self.write_cell(hash, key, cell, Some(value))).await? {
                        return Ok(true);
                    }
                    continue;
                }
                None => return Ok(false),
            };
            let fresh = located_by != LocatedBy::Remembered;
            // A write that a delete refuses would take a buffer and numbers. S2: the index named
            // the register within this operation, so the key was absent then, or when it was
            // deleted.
            if located_by == LocatedBy::ListedAsDeleted
                && let Ok(Found::Deleted) =
                    P::read(&self.group, &mut register, Check::Identity).await
            {
                return Ok(false);
            }
            let kind = self.buffer(&register, value);
            let before = self.geometry.format.pointer(register.last_stamp());
            let need = self.heap.need_instead_of(before, kind);
            if need == Purpose::Insert && !fresh {
                // The last stamp may be old, and its buffer reused by now.
                self.locations.remove(hash, key);
                continue;
            }
            let write = match self.new_write(kind, value, need, true).await {
                // The allocation read the map anew.
                Err(Error::Full(_))
                    if need == Purpose::Insert
                        && self.heap.need_instead_of(before, kind) == Purpose::Replace =>
                {
                    continue;
                }
                outcome => outcome?,
            };
            let before = known_stamps(&register);
            let written = P::write(&self.group, &mut register, write).await;
            let place = (&register, generation);
            let seen = (before, fresh);
            if let Some(done) = self.updated(hash, key, place, seen, write, written).await? {
                return Ok(done);
            }
        }
        Err(Error::Contended)
    }

    /// Returns what a write's outcome means for the update: whether the key was there, or `None` to
    /// look for it again. `fresh`: the index named the register within this operation.
    async fn updated(
        &self,
        hash: u64,
        key: &[u8],
        (register, generation): (&Register, u64),
        (before, fresh): ([Stamp; 2], bool),
        write: Write<'_>,
        written: CoreResult<Written>,
    ) -> Result<Option<bool>, Error> {
        match written {
            Ok(Written::Done) => {
                self.wrote(hash, register, write.buffer, before);
                self.locations.update(hash, key, register, generation);
                if outgrown(register, write.value.len()) {
                    self.make_fit(hash, register, write.value).await;
                }
                return Ok(Some(true));
            }
            Ok(Written::Moved(stamp)) => {
                let took_effect = self.took_effect(hash, key, register, (write, stamp)).await?;
                self.wake(hash);
                return Ok(took_effect.then_some(true));
            }
            Ok(Written::Deleted) => {
                // E1: retired, not freed. A client that met the write before the delete may be
                // copying it.
                if let Some(participant) = &self.participant {
                    self.heap.refused(write.buffer, participant.domain().epoch_bound());
                }
            }
            Err(swarm_core::error::Error::Gone) => {}
            Err(error) => return Err(error.into()),
        }
        self.locations.remove(hash, key);
        // S2: absent only if the index agrees. A cached register may have been deleted long ago.
        Ok((fresh && written == Ok(Written::Deleted)).then_some(false))
    }

    /// [`wrote`](Self::wrote) after a write whose buffer was just taken.
    #[inline(always)]
    fn wrote_now(
        &self,
        hash: u64,
        register: &Register,
        taken: &Taken,
        before: ([Stamp; 2], Option<ObjectIndex>),
    ) {
        if let Some(participant) = &self.participant {
            self.heap
                .reclaimer
                .wrote_now(register, taken, before, || participant.domain().epoch_bound());
            let followed = (register.followed(), before.0[0]);
            self.heap.has_followed(participant.domain(), hash, followed);
            participant.domain().wake(hash);
        } else {
            self.heap.reclaimer.handed_out(taken.buffer);
        }
    }

    /// Records that a write of `buffer` is complete. Retires what it superseded of this client's.
    #[inline]
    fn wrote(&self, hash: u64, register: &Register, buffer: Pointer, before: [Stamp; 2]) {
        if let Some(participant) = &self.participant {
            // E2, E2a: the epoch is read after the write; the bound, as other clients may be one
            // ahead.
            self.heap.wrote(register, buffer, before, || participant.domain().epoch_bound());
            let followed = (register.followed(), before[0]);
            self.heap.has_followed(participant.domain(), hash, followed);
            participant.domain().wake(hash);
        }
    }
}

/// Returns the stamps by which a client may know its own earlier write to a register.
#[inline]
fn known_stamps(register: &Register) -> [Stamp; 2] {
    [register.own_stamp(), register.last_stamp()]
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use swarm_core::node::NodeId;
    use swarm_core::register::safe_guess::SafeGuess;
    use swarm_shm::SwitchState;

    use crate::client::handle::Options;
    use crate::pools::shm::{self, CreateOptions, Pool};

    /// An update takes a reclaimed buffer, and its future is kept while it waits.
    #[test]
    fn a_buffer_of_a_write_under_way_is_noted_as_handed_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let options = Options::default().reclaimed_at_once(1);
        let client = shm::open_emulated::<SafeGuess>(&pool, options, 0).expect("a client");
        client.blocking().put(b"key", b"value").expect("memory");
        while client.counters().reclaimed < 8 {
            assert_eq!(client.blocking().update(b"key", b"value"), Ok(true));
        }
        let out = || client.heap.reclaimer.count_out();
        let before = out();
        (1..3).for_each(|node| pool.switch(NodeId(node)).set(SwitchState::Frozen));
        let mut update = pin!(client.update(b"key", b"value"));
        let polled = update.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(out(), before + 1);
    }
}

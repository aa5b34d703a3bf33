//! Replacing the value of a key that is there.

use swarm_core::clock::Clock;
use swarm_core::fabric::counting::Tally;
use swarm_core::fabric::{Board, Fabric};
use swarm_core::layout::Place;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{Pointer, Stamp};

use crate::client::{Client, Here, TRIES};
use crate::counters::{Counters, KindCounters};
use crate::error::Error;
use crate::heap::{Need, Spot, Taken};
use crate::locate::Told;
use crate::moved::outgrown;
use crate::turn::Turn;

type CoreResult<T> = Result<T, swarm_core::error::Error>;

/// What is left of an update that takes waiting, or has posted nothing yet.
pub(crate) struct UpdateRest<'c, 'v, F: Fabric, C: Clock, P: Protocol + 'c> {
    hash: u64,
    begun: Option<UpdateBegun<'c, 'v, P>>,
    here: Option<Here<'c, F, C, P>>,
    pub(crate) tally: Tally,
}

struct UpdateBegun<'c, 'v, P: Protocol + 'c> {
    turn: Turn<'c>,
    register: Register,
    /// The generation in which it was remembered.
    generation: u64,
    /// What was met there before.
    before: [Stamp; 2],
    write: Write<'v>,
    /// How it ended, if it did.
    written: Option<Written>,
    posted: Option<P::Posted<'c>>,
}

impl<F: Fabric, C: Clock, P: Protocol> Default for UpdateRest<'_, '_, F, C, P> {
    #[inline(always)]
    fn default() -> Self {
        let (hash, tally) = Default::default();
        Self { hash, begun: None, here: None, tally }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> UpdateRest<'_, '_, F, C, P> {
    /// Whether something was posted.
    pub(crate) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// All of an update that takes no waiting: the key's location is cached, memory for the value is set aside, no
    /// other write of this key is under way, and memory is near. Else `rest` is what is left for
    /// [`update_on`](Self::update_on). It counts as an operation of this kind.
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
                self.count(kind, Tally::default());
                return Some(Err(error));
            }
        };
        let expect = |place: &Place, words| self.group.expect_change(place, words);
        let glanced = self.locations.glance(hash, expect);
        let here = self.here();
        let others = self.group.fabric().begin();
        let written = self.is_turn(hash)
            && self
                .locations
                .work(glanced, hash, key, |register| {
                    self.try_write((hash, value), register, &mut rest.begun)
                })
                .unwrap_or(false);
        let tally = self.group.fabric().pause(others);
        if !written {
            (rest.hash, rest.here, rest.tally) = (hash, Some(here), tally);
            return None;
        }
        here.end();
        self.count(kind, tally);
        Some(Ok(true))
    }

    /// Whether the register was written, and that is all.
    #[inline(always)]
    fn try_write<'c, 'v>(
        &'c self,
        (hash, value): (u64, &'v [u8]),
        register: &mut Register,
        begun: &mut Option<UpdateBegun<'c, 'v, P>>,
    ) -> bool {
        let Some((write, taken)) = self.new_write_now(register, value) else { return false };
        let (before, mut posted) = (met(register), None);
        let spot = self.heap.recycler.spot(before[0], |entry| self.group.fabric().bring(entry));
        let written = P::try_write(&self.group, register, write, &taken.site, &mut posted);
        if written == Some(Written::Done) && !outgrown(register, value.len()) {
            self.wrote_now(hash, register, &taken, (before, spot));
            return true;
        }
        self.heap.recycler.handed_out(write.buffer);
        if let Some(turn) = self.turn_now(hash) {
            let (register, generation) = (*register, self.locations.generation());
            let began = UpdateBegun { turn, register, generation, before, write, written, posted };
            *begun = Some(began);
        }
        false
    }

    /// The rest of an update, of the same value. Its future is large.
    pub(crate) async fn update_on<'c>(
        &'c self,
        key: &[u8],
        value: &[u8],
        rest: UpdateRest<'c, '_, F, C, P>,
    ) -> Result<bool, Error> {
        let tally = rest.tally;
        let rest = self.in_own_process(self.write_on(key, value, rest));
        let (told, tally) = self.group.fabric().track_on(tally, rest).await;
        self.count(|counters| &mut counters.update, tally);
        told
    }

    /// Whether the key was there.
    pub(crate) async fn write_on<'c>(
        &'c self,
        key: &[u8],
        value: &[u8],
        rest: UpdateRest<'c, '_, F, C, P>,
    ) -> Result<bool, Error> {
        let UpdateRest { hash, begun, here, .. } = rest;
        let Some(begun) = begun else {
            drop(here);
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
            // Nothing of it is in, and nothing will be.
            Ok(None) | Err(Error::Full(_)) => {
                drop((turn, here));
                self.update_anew(hash, key, value).await
            }
            Err(error) => Err(self.held_up(error)),
        }
    }

    /// An update from its beginning, which looks for memory where there is none.
    async fn update_anew(&self, hash: u64, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let update = async || {
            let _turn = self.turn(hash).await?;
            self.update_now(hash, key, value).await
        };
        self.with_memory(update).await
    }

    /// Updates the key, whose turn this write has.
    pub(crate) async fn update_now(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let generation = self.locations.generation();
            let Some((mut register, told)) = self.locate(hash, key).await? else {
                return Ok(false);
            };
            let fresh = told != Told::Remembered;
            // To have a write refused would take a buffer and numbers. The index named the register within this
            // operation: the key was absent then, or when it was deleted.
            if told == Told::ListedAsDeleted
                && let Ok(Found::Deleted) =
                    P::read(&self.group, &mut register, Check::Identity).await
            {
                return Ok(false);
            }
            let kind = self.buffer(&register, value);
            let before = self.geometry.format.pointer(register.last_stamp());
            let need = self.heap.need_instead_of(before, kind);
            if need == Need::More && !fresh {
                // What was seen last may be long ago, and something else by now.
                self.locations.remove(hash, key);
                continue;
            }
            let write = match self.new_write(kind, value, need, true).await {
                // The map is as of now.
                Err(Error::Full(_))
                    if need == Need::More
                        && self.heap.need_instead_of(before, kind) == Need::Instead =>
                {
                    continue;
                }
                told => told?,
            };
            let before = met(&register);
            let written = P::write(&self.group, &mut register, write).await;
            let place = (&register, generation);
            let seen = (before, fresh);
            if let Some(done) = self.updated(hash, key, place, seen, write, written).await? {
                return Ok(done);
            }
        }
        Err(Error::Contended)
    }

    /// What a write to a register says of the update: whether the key was there, or `None` to look
    /// for it again. `fresh`: the index named the register within this operation.
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
                let stands = self.stands(hash, key, register, (write, stamp)).await?;
                return Ok(stands.then_some(true));
            }
            Ok(Written::Deleted) => {
                if let Some(presence) = &self.presence {
                    self.heap.refused(write.buffer, presence.board().latest());
                }
            }
            Err(swarm_core::error::Error::Gone) => {}
            Err(error) => return Err(error.into()),
        }
        self.locations.remove(hash, key);
        // Absent only if the index agrees: a cached register may have been dead long.
        Ok((fresh && written == Ok(Written::Deleted)).then_some(false))
    }

    /// [`wrote`](Self::wrote) behind a write for which the buffer was just taken.
    #[inline(always)]
    fn wrote_now(
        &self,
        hash: u64,
        register: &Register,
        taken: &Taken,
        before: ([Stamp; 2], Option<Spot>),
    ) {
        if let Some(presence) = &self.presence {
            self.heap.recycler.wrote_now(register, taken, before, || presence.board().latest());
            let followed = (register.followed(), before.0[0]);
            self.heap.has_followed(presence.board(), hash, followed);
        } else {
            self.heap.recycler.handed_out(taken.buffer);
        }
    }

    /// A write of `buffer` is complete. What it took the place of, of this client's, comes back.
    #[inline]
    fn wrote(&self, hash: u64, register: &Register, buffer: Pointer, before: [Stamp; 2]) {
        if let Some(presence) = &self.presence {
            self.heap.wrote(register, buffer, before, || presence.board().latest());
            let followed = (register.followed(), before[0]);
            self.heap.has_followed(presence.board(), hash, followed);
        }
    }
}

/// The stamps by which a client may know its own earlier write to a register.
#[inline]
fn met(register: &Register) -> [Stamp; 2] {
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

    use crate::client::Options;
    use crate::shm::{self, CreateOptions, Pool};

    /// An update takes a buffer that came back, and is kept while it waits.
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
        let out = || client.heap.recycler.count_out();
        let before = out();
        (1..3).for_each(|node| pool.switch(NodeId(node)).set(SwitchState::Frozen));
        let mut update = pin!(client.update(b"key", b"value"));
        let polled = update.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(out(), before + 1);
    }
}

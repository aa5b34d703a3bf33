//! Replacing the value of a key that is there.

use swarm_core::clock::Clock;
use swarm_core::counting::Counting;
use swarm_core::epoch::Board;
use swarm_core::fabric::Fabric;
use swarm_core::register::{Begun, Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{Pointer, Stamp};

use crate::client::{Client, Here, TRIES};
use crate::error::Error;
use crate::heap::Need;
use crate::locate::Told;
use crate::moved::outgrown;
use crate::turn::Turn;

type CoreResult<T> = Result<T, swarm_core::error::Error>;
type WriteBegun<'c, F, C, P> =
    Begun<CoreResult<Written>, <P as Protocol>::Writing<'c, Counting<F>, C>>;

/// An update on its way, or one that has posted nothing yet.
pub(crate) struct Update<'c, 'v, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    hash: u64,
    value: &'v [u8],
    begun: Option<UpdateBegun<'c, 'v, F, C, P>>,
}

pub(crate) struct UpdateBegun<'c, 'v, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    turn: Turn<'c>,
    register: Register,
    /// The generation in which it was remembered.
    generation: u64,
    /// What was met there before.
    before: [Stamp; 2],
    write: Write<'v>,
    written: WriteBegun<'c, F, C, P>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// The beginning of an update: all of it where the key's location is cached, memory for the
    /// value is set aside, no other write of this key is under way, and memory is near.
    #[inline]
    pub(crate) fn begin_update<'v>(
        &self,
        key: &[u8],
        value: &'v [u8],
    ) -> Begun<Result<bool, Error>, Update<'_, 'v, F, C, P>> {
        let hash = match self.check(key, value) {
            Ok(hash) => hash,
            Err(error) => return Begun::Done(Err(error)),
        };
        let nothing = Begun::Rest(Update { hash, value, begun: None });
        let Some(turn) = self.turn_now(hash) else { return nothing };
        let mut rest = None;
        let cached = self.locations.work(hash, key, |register| {
            let write = self.new_write_now(register, value)?;
            let before = met(register);
            match P::begin_write(&self.group, register, write) {
                Begun::Done(Ok(Written::Done)) if !outgrown(register, value.len()) => {
                    self.wrote(hash, register, write.buffer, before);
                }
                written => {
                    let (register, generation) = (*register, self.locations.generation());
                    rest = Some(UpdateBegun { turn, register, generation, before, write, written });
                }
            }
            Some(())
        });
        if cached.flatten().is_none() {
            return nothing;
        }
        match rest {
            None => Begun::Done(Ok(true)),
            begun => Begun::Rest(Update { hash, value, begun }),
        }
    }

    pub(crate) async fn end_update<'c>(
        &'c self,
        key: &[u8],
        update: Update<'c, '_, F, C, P>,
        here: Here<'c, F, C, P>,
    ) -> Result<bool, Error> {
        let Update { hash, value, begun } = update;
        let Some(UpdateBegun { turn, mut register, generation, before, write, written }) = begun
        else {
            drop(here);
            return Box::pin(self.update_anew(hash, key, value)).await;
        };
        let written = match written {
            Begun::Done(written) => written,
            Begun::Rest(writing) => {
                match P::wait_write(&self.group, &mut register, write, writing).await {
                    Begun::Done(written) => written,
                    Begun::Rest(rest) => {
                        Box::pin(P::end_write(&self.group, &mut register, write, rest)).await
                    }
                }
            }
        };
        let place = (&register, generation);
        let updated = match written {
            Ok(Written::Done) if !outgrown(&register, value.len()) => {
                self.wrote(hash, &register, write.buffer, before);
                self.locations.update(hash, key, &register, generation);
                return Ok(true);
            }
            written => {
                let updated = self.updated(hash, key, place, (before, false), write, written);
                Box::pin(updated).await
            }
        };
        match updated {
            Ok(Some(done)) => Ok(done),
            // Nothing of it is in, and nothing will be.
            Ok(None) | Err(Error::Full(_)) => {
                drop((turn, here));
                Box::pin(self.update_anew(hash, key, value)).await
            }
            Err(error) => Err(error),
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

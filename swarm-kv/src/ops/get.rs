//! Get: reads the register that is cached, or the one that the index names.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::{Counting, OpCost};
use swarm_core::register::freeze::read_frozen;
use swarm_core::register::{Check, Found, Protocol, Register, read_key};

use crate::client::handle::{Client, PinGuard, TRIES, Value};
use crate::client::location_cache::Cached;
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::KeyObject;
use crate::index::keyed_cell::Kind;
use crate::ops::locate::{LocatedBy, Place, entries};

type GetResult<'c, F> = Result<Option<Value<'c, F>>, Error>;

/// A value that is there, and the register or cell that has it; or why that is frozen and cannot be
/// moved on.
pub(crate) type Listed<'c, F> = (Value<'c, F>, Result<Place, Error>);

/// The rest of a get that must wait, or asks the index.
pub(crate) struct GetRest<'c, F: Fabric + 'c, C: Clock + 'c, P: Protocol + 'c> {
    hash: u64,
    /// The cached register, if there is one, and what was read of it.
    register: Option<Register>,
    seen: Option<P::Seen<'c, Counting<F>>>,
    pin: PinGuard<'c, F, C, P>,
    tally: OpCost,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Runs a get that need not wait: the key's location is cached, and the fabric is synchronous.
    /// Otherwise sets `rest`: to an error, or for [`get_on`](Self::get_on).
    #[inline]
    pub(crate) fn try_get<'c>(
        &'c self,
        key: &[u8],
        rest: &mut Option<Result<GetRest<'c, F, C, P>, Error>>,
    ) -> Option<Value<'c, F>> {
        if self.is_cut_off() {
            *rest = Some(Err(self.why_cut_off()));
            return None;
        }
        let hash = match self.check(key, &[]) {
            Ok(hash) => hash,
            Err(error) => {
                self.count(|counters| &mut counters.get, OpCost::default());
                *rest = Some(Err(error));
                return None;
            }
        };
        let generation = self.generation.get();
        let cached = self.locations.lookup(hash, key);
        if let Some(Cached { register, .. }) = &cached {
            self.group.expect(&register.place, register.shape().value_words());
        }
        let pin = self.pin();
        // E7: the pin showed whether what was cached before it may be used.
        let cached = cached.filter(|_| generation == self.generation.get());
        let others = self.group.fabric().begin();
        let mut seen = None;
        let read = cached
            .as_ref()
            .and_then(|cached| P::try_read(&self.group, &cached.register, &mut seen));
        let tally = self.group.fabric().pause(others);
        let Some(value) = read else {
            let register = cached.map(|cached| cached.register);
            *rest = Some(Ok(GetRest { hash, register, seen, pin, tally }));
            return None;
        };
        pin.end();
        self.count(|counters| &mut counters.get, tally);
        Some(value)
    }

    /// Continues a get. Its future is large.
    pub(crate) async fn get_on<'c>(
        &'c self,
        key: &[u8],
        rest: GetRest<'c, F, C, P>,
    ) -> GetResult<'c, F> {
        let tally = rest.tally;
        let rest = self.in_own_process(self.read_on(key, rest));
        let (outcome, tally) = self.group.fabric().track_on(tally, rest).await;
        self.count(|counters| &mut counters.get, tally);
        outcome
    }

    async fn read_on<'c>(&'c self, key: &[u8], rest: GetRest<'c, F, C, P>) -> GetResult<'c, F> {
        let GetRest { hash, register, seen, pin, .. } = rest;
        if let Some(mut register) = register {
            match P::read_on(&self.group, &mut register, Check::Identity, seen).await {
                Ok(Found::Value(value)) => return Ok(Some(value)),
                Ok(_) | Err(swarm_core::error::Error::Gone | swarm_core::error::Error::Moved) => {
                    self.locations.remove(hash, key);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(value) = self.get_by_cell_now(hash, key) {
            return Ok(Some(value));
        }
        match self.get_by_cell(hash, key).await {
            Ok(Some(value)) => return Ok(Some(value)),
            // There was no memory to end it, as it has expired: it is looked for below.
            Ok(None) | Err(Error::Full(_)) => {}
            Err(error) => return Err(error),
        }
        match self.get_by_index(hash, key).await {
            // The key is being moved, which takes memory.
            Err(Error::Full(_)) => {
                drop(pin);
                self.with_memory(async || self.get_by_index(hash, key).await).await
            }
            outcome => outcome,
        }
    }

    /// Gets the value of a key for a client that has no memory and caches nothing: a
    /// [reader's](crate::reader).
    ///
    /// # Errors
    /// As [`get`](Self::get). [`Full`](Error::Full) if the key is being moved, which takes memory.
    pub(crate) async fn get_without_memory(&self, key: &[u8]) -> GetResult<'_, F> {
        let hash = self.check(key, &[])?;
        let _pin = self.pin();
        self.in_own_process(self.get_by_index(hash, key)).await
    }

    pub(crate) async fn get_by_index(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'_, F>>, Error> {
        Ok(self.read_by_index(hash, key).await?.map(|(value, _)| value))
    }

    /// The same, with the register, for a caller that goes on with it.
    pub(crate) async fn read_by_index(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Listed<'_, F>>, Error> {
        for _ in 0..TRIES {
            let located = self.index.fresh(&self.group, hash).await?;
            let (mut moved, mut goes_on) = (None, false);
            for entry in entries(&located, hash, key) {
                let Some(object) = entry.object(&self.geometry) else { continue };
                let mut register = match object {
                    KeyObject::Register(register) => register,
                    KeyObject::Cell(cell) => {
                        let found = (cell, located.generation);
                        match self.read_listed_cell(hash, key, found).await? {
                            None => continue,
                            // S2, Q2: it is dead for good, and the index listed it within this
                            // operation.
                            Some(shown) if shown.kind == Kind::Absent => return Ok(None),
                            // X3: it goes on in another cell, and expires there. What is not forwarded
                            // had not expired when it was read.
                            Some(shown)
                                if shown.kind == Kind::Forward && self.is_past(shown.deadline) =>
                            {
                                if self.only_looks {
                                    return Ok(None);
                                }
                                self.move_forwarded(hash, key, &cell, &shown).await?;
                                goes_on = true;
                                break;
                            }
                            // Q3: a cell that was forwarded has the key's value as long as it is
                            // listed.
                            Some(shown) => {
                                let place = Place::Cell((cell, located.generation));
                                return Ok(Some((shown.value, Ok(place))));
                            }
                        }
                    }
                };
                match P::read(&self.group, &mut register, Check::Key(key)).await {
                    Ok(Found::Value(value)) => {
                        self.locations.insert(key, register, located.generation);
                        let place = Place::Register(register, LocatedBy::Listed);
                        return Ok(Some((value, Ok(place))));
                    }
                    // S2: the index listed the register within this operation. So the key was
                    // absent when it was deleted, or when it was found listed.
                    Ok(Found::Deleted) => return Ok(None),
                    Ok(Found::OtherKey) => {}
                    Err(swarm_core::error::Error::Moved) => moved = Some(register),
                    Err(error) => return Err(error.into()),
                }
            }
            if goes_on {
                continue;
            }
            let Some(register) = moved else { return Ok(None) };
            match self.move_on(hash, &register, 0, Purpose::Relocate).await {
                Err(why) if leaves_it_frozen(&why) => {
                    let frozen = self.get_frozen(key, &register, why).await?;
                    return Ok(frozen.map(|value| (value, Err(why))));
                }
                moved => moved?,
            };
        }
        Err(Error::Contended)
    }

    /// Returns the value of a register that the index named within this operation, and that this
    /// client cannot move on, for want of memory or of the bucket's ballots (V3a).
    ///
    /// # Errors
    /// `why`, if the value cannot be determined.
    #[cold]
    async fn get_frozen(&self, key: &[u8], register: &Register, why: Error) -> GetResult<'_, F> {
        // S5: the hash alone led to this register.
        if *read_key(&self.group, register).await? != *key {
            return Err(why);
        }
        match read_frozen(&self.group, register).await? {
            Some(Found::Value(value)) => Ok(Some(value)),
            Some(_) => Ok(None),
            None => Err(why),
        }
    }
}

/// Whether a key on the move cannot be moved on by this client, or by any.
fn leaves_it_frozen(why: &Error) -> bool {
    let exhausted = Error::Replication(swarm_core::error::Error::Exhausted);
    matches!(why, Error::Full(_) | Error::Unfinished) || *why == exhausted
}

#[cfg(test)]
mod tests {
    use swarm_core::register::freeze::freeze;

    use crate::client::handle::tests::alone;
    use crate::error::{Error, Shortage};
    use crate::runtime::block_on::block_on;

    /// A register was found by its key's hash, and is being moved. It may be another key's, of the
    /// same hash.
    #[test]
    fn what_is_read_frozen_is_this_keys() {
        let client = alone();
        client.blocking().put(b"one", b"value").expect("memory");
        let hash = client.check(b"one", &[]).expect("a key");
        let register = client.locations.get(hash, b"one").expect("it is remembered");
        block_on(freeze(&client.group, &register)).expect("a node");
        let full = Error::Full(Shortage {
            object: 64,
            capacity: 4 << 20,
            held_up: None,
            cannot_claim: false,
        });
        let get = |key: &'static [u8]| block_on(client.get_frozen(key, &register, full));
        assert_eq!(get(b"one").expect("its value").as_deref(), Some(&b"value"[..]));
        assert_eq!(get(b"two").err(), Some(full));
    }
}

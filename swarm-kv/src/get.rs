//! Getting a key's value: from the register that is remembered, or the one that the index names.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::{Counting, Tally};
use swarm_core::register::freeze::read_frozen;
use swarm_core::register::{Check, Found, Protocol, Register, read_key};

use crate::client::{Client, Here, TRIES, Value};
use crate::error::Error;
use crate::heap::Need;
use crate::locate::entries;

type GetResult<'c, F> = Result<Option<Value<'c, F>>, Error>;

/// What is left of a get that takes waiting, or asks the index.
pub(crate) struct GetRest<'c, F: Fabric + 'c, C: Clock + 'c, P: Protocol + 'c> {
    hash: u64,
    /// The register that is remembered, if there is one, and what was seen of it.
    register: Option<Register>,
    seen: Option<P::Seen<'c, Counting<F>>>,
    here: Here<'c, F, C, P>,
    tally: Tally,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// All of a get that takes no waiting: the key's location is cached, and memory is near. Else `rest` is what is
    /// left for [`get_on`](Self::get_on).
    #[inline]
    pub(crate) fn try_get<'c>(
        &'c self,
        key: &[u8],
        rest: &mut Option<GetRest<'c, F, C, P>>,
    ) -> Option<GetResult<'c, F>> {
        if self.is_cut_off() {
            return Some(Err(self.why_cut_off()));
        }
        let hash = match self.check(key, &[]) {
            Ok(hash) => hash,
            Err(error) => {
                self.count(|counters| &mut counters.get, Tally::default());
                return Some(Err(error));
            }
        };
        let glanced = self.locations.glance(hash, |place, words| self.group.expect(place, words));
        let here = self.here();
        let others = self.group.fabric().begin();
        let (mut seen, mut met) = (None, None);
        let read = self.locations.look(glanced, hash, key, |register| {
            let read = P::try_read(&self.group, register, &mut seen);
            if read.is_none() {
                met = Some(*register);
            }
            read
        });
        let tally = self.group.fabric().pause(others);
        let Some(value) = read.flatten() else {
            *rest = Some(GetRest { hash, register: met, seen, here, tally });
            return None;
        };
        here.end();
        self.count(|counters| &mut counters.get, tally);
        Some(Ok(Some(value)))
    }

    /// The rest of a get. Its future is large.
    pub(crate) async fn get_on<'c>(
        &'c self,
        key: &[u8],
        rest: GetRest<'c, F, C, P>,
    ) -> GetResult<'c, F> {
        let tally = rest.tally;
        let rest = self.in_own_process(self.read_on(key, rest));
        let (told, tally) = self.group.fabric().track_on(tally, rest).await;
        self.count(|counters| &mut counters.get, tally);
        told
    }

    async fn read_on<'c>(&'c self, key: &[u8], rest: GetRest<'c, F, C, P>) -> GetResult<'c, F> {
        let GetRest { hash, register, seen, here, .. } = rest;
        if let Some(mut register) = register {
            match P::read_on(&self.group, &mut register, Check::Identity, seen).await {
                Ok(Found::Value(value)) => return Ok(Some(value)),
                Ok(_) | Err(swarm_core::error::Error::Gone | swarm_core::error::Error::Moved) => {
                    self.locations.remove(hash, key);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match self.get_by_index(hash, key).await {
            // The key is on the move, which takes memory.
            Err(Error::Full(_)) => {
                drop(here);
                self.with_memory(async || self.get_by_index(hash, key).await).await
            }
            told => told,
        }
    }

    pub(crate) async fn get_by_index(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'_, F>>, Error> {
        for _ in 0..TRIES {
            let located = self.index.fresh(&self.group, hash).await?;
            let mut moved = None;
            for entry in entries(&located, hash, key) {
                let Some(mut register) = entry.register(&self.geometry) else { continue };
                match P::read(&self.group, &mut register, Check::Key(key)).await {
                    Ok(Found::Value(value)) => {
                        self.locations.insert(key, register, located.generation);
                        return Ok(Some(value));
                    }
                    // It was mapped within this operation, so the key was absent when it was
                    // deleted, or when it was found mapped.
                    Ok(Found::Deleted) => return Ok(None),
                    Ok(Found::OtherKey) => {}
                    Err(swarm_core::error::Error::Moved) => moved = Some(register),
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(register) = moved else { return Ok(None) };
            match self.move_on(hash, &register, 0, Need::Move).await {
                Err(why @ (Error::Full(_) | Error::Unfinished)) => {
                    return self.get_frozen(key, &register, why).await;
                }
                moved => moved?,
            };
        }
        Err(Error::Contended)
    }

    /// What a register holds that the index named within this operation, and that this client has no memory to
    /// move on.
    ///
    /// # Errors
    /// `why`, where that cannot be told.
    #[cold]
    async fn get_frozen(&self, key: &[u8], register: &Register, why: Error) -> GetResult<'_, F> {
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

#[cfg(test)]
mod tests {
    use swarm_core::register::freeze::freeze;

    use crate::blocking::block_on;
    use crate::client::tests::alone;
    use crate::error::{Error, Shortage};

    /// A register was found by its key's hash, and is on the move. It may be another key's, of the same hash.
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

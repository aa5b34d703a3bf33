//! Getting a key's value: from the register that is remembered, or the one that the index names.

use swarm_core::clock::Clock;
use swarm_core::counting::Counting;
use swarm_core::fabric::Fabric;
use swarm_core::freeze::read_frozen;
use swarm_core::register::{Begun, Check, Found, Protocol, Register, read_key};

use crate::client::{Client, Here, TRIES, Value};
use crate::error::Error;
use crate::heap::Need;
use crate::locate::entries;

type CoreResult<T> = Result<T, swarm_core::error::Error>;
type GetResult<'c, F> = Result<Option<Value<'c, F>>, Error>;
type ReadBegun<'c, F, C, P> =
    Begun<CoreResult<Found<'c, Counting<F>>>, <P as Protocol>::Reading<'c, Counting<F>, C>>;

/// A get on its way, or one that has to ask the index.
pub(crate) struct Get<'c, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    hash: u64,
    read: Option<(Register, ReadBegun<'c, F, C, P>)>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// The beginning of a get: all of it where the key's location is cached and memory is near.
    #[inline]
    pub(crate) fn begin_get(&self, key: &[u8]) -> Begun<GetResult<'_, F>, Get<'_, F, C, P>> {
        let hash = match self.check(key, &[]) {
            Ok(hash) => hash,
            Err(error) => return Begun::Done(Err(error)),
        };
        let near = |register: &Register| match P::near_read(&self.group, register)? {
            Begun::Done(Ok(Found::Value(value))) => Some(Ok(value)),
            begun => Some(Err((*register, begun))),
        };
        match self.locations.look(hash, key, near) {
            Some(Some(Ok(value))) => return Begun::Done(Ok(Some(value))),
            Some(Some(Err(read))) => return Begun::Rest(Get { hash, read: Some(read) }),
            _ => {}
        }
        let Some(mut register) = self.locations.get(hash, key) else {
            return Begun::Rest(Get { hash, read: None });
        };
        match P::begin_read(&self.group, &mut register, Check::Identity) {
            Begun::Done(Ok(Found::Value(value))) => Begun::Done(Ok(Some(value))),
            begun => Begun::Rest(Get { hash, read: Some((register, begun)) }),
        }
    }

    pub(crate) async fn end_get<'c>(
        &'c self,
        key: &[u8],
        get: Get<'c, F, C, P>,
        here: Here<'c, F, C, P>,
    ) -> GetResult<'c, F> {
        let Get { hash, read } = get;
        if let Some((mut register, begun)) = read {
            let found = match begun {
                Begun::Done(found) => found,
                Begun::Rest(reading) => self.read_on(&mut register, reading).await,
            };
            match found {
                Ok(Found::Value(value)) => return Ok(Some(value)),
                Ok(_) | Err(swarm_core::error::Error::Gone | swarm_core::error::Error::Moved) => {
                    self.locations.remove(hash, key);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match Box::pin(self.get_by_index(hash, key)).await {
            // The key is on the move, which takes memory.
            Err(Error::Full(_)) => {
                drop(here);
                let again = self.with_memory(async || self.get_by_index(hash, key).await);
                Box::pin(again).await
            }
            told => told,
        }
    }

    #[inline]
    async fn read_on<'c>(
        &'c self,
        register: &mut Register,
        reading: P::Reading<'c, Counting<F>, C>,
    ) -> CoreResult<Found<'c, Counting<F>>> {
        let check = Check::Identity;
        match P::wait_read(&self.group, register, check, reading).await {
            Begun::Done(found) => found,
            Begun::Rest(rest) => Box::pin(P::end_read(&self.group, register, check, rest)).await,
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
                Err(full @ Error::Full(_)) => return self.get_frozen(key, &register, full).await,
                moved => moved?,
            };
        }
        Err(Error::Contended)
    }
    /// What a register holds that the index named within this operation, and that nobody has memory to
    /// move on.
    ///
    /// # Errors
    /// `full`, where that cannot be told.
    #[cold]
    async fn get_frozen(&self, key: &[u8], register: &Register, full: Error) -> GetResult<'_, F> {
        if *read_key(&self.group, register).await? != *key {
            return Err(full);
        }
        match read_frozen(&self.group, register).await? {
            Some(Found::Value(value)) => Ok(Some(value)),
            Some(_) => Ok(None),
            None => Err(full),
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::freeze::freeze;

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
        let full = Error::Full(Shortage { object: 64, capacity: 4 << 20, held_up: None });
        let get = |key: &'static [u8]| block_on(client.get_frozen(key, &register, full));
        assert_eq!(get(b"one").expect("its value").as_deref(), Some(&b"value"[..]));
        assert_eq!(get(b"two").err(), Some(full));
    }
}

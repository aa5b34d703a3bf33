//! This store.

use std::path::Path;

use swarm_kv::Options;
use swarm_kv::shm::{self, Client, CreateOptions, OpenOptions, Pool};

use crate::Result;
use crate::work::{Key, Peer, Value};

pub(crate) struct Ours(Client);

pub(crate) fn create(place: &Path, nodes: usize, keys: u64) -> Result<()> {
    let capacity = ((64 << 20) + keys * 1024).next_multiple_of(1 << 20);
    let options = CreateOptions { nodes, capacity, ..CreateOptions::default() };
    Pool::create(place, &options)?;
    Ok(())
}

impl Ours {
    pub(crate) fn open(place: &Path, keys: u64) -> Result<Self> {
        let pool = Pool::open(place, OpenOptions::default())?;
        // As the others' memory is: theirs was touched when it was loaded.
        pool.populate();
        Ok(Self(shm::open(&pool, Options::default().cached_keys(keys as usize))?))
    }
}

impl Peer for Ours {
    fn insert(&mut self, key: &Key, value: &Value) -> Result<()> {
        let inserted = self.0.blocking().insert(key, value)?;
        if inserted { Ok(()) } else { Err("a key is there before it is inserted".into()) }
    }

    #[inline]
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        let updated = self.0.blocking().update(key, value)?;
        if updated { Ok(()) } else { Err("a key is gone".into()) }
    }

    #[inline]
    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        let found = self.0.blocking().get(key)?.ok_or("a key is gone")?;
        value.copy_from_slice(found.first_chunk::<64>().ok_or("a value is short")?);
        Ok(())
    }
}

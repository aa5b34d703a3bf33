//! LMDB: a tree in a mapped file, one writer at a time, readers that never wait. Each operation is a transaction.

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use crate::Result;
use crate::work::{Key, Peer, Value};

pub(crate) struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub(crate) fn open(place: &Path, keys: u64) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(((64 << 20) + keys * 1024).next_multiple_of(1 << 20) as usize);
        // SAFETY: only a machine that goes down could damage a file that is never synced, and this one lies in memory; all
        // processes map it in the same way.
        unsafe { options.flags(EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC) };
        // SAFETY: the file is in a directory of this run's own, where nobody but LMDB writes, and a process opens it once.
        let env = unsafe { options.open(place)? };
        let mut change = env.write_txn()?;
        let database = env.create_database(&mut change, None)?;
        change.commit()?;
        Ok(Self { env, database })
    }
}

impl Peer for Lmdb {
    #[inline]
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        let mut change = self.env.write_txn()?;
        self.database.put(&mut change, key, value)?;
        Ok(change.commit()?)
    }

    #[inline]
    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        let look = self.env.read_txn()?;
        let found = self.database.get(&look, key)?.ok_or("a key is gone")?;
        value.copy_from_slice(found.first_chunk::<64>().ok_or("a value is short")?);
        Ok(())
    }
}

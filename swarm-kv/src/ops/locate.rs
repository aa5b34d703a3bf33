//! Finds a key's register: in the location cache, or by the index.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::node::NodeId;
use swarm_core::register::weak_read::{Confirmed, confirm};
use swarm_core::register::{Protocol, Register};

use crate::client::cell_cache::FoundCell;
use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::{Bucket, Content, Entry, KeyObject};
use crate::index::keyed_cell::Kind;
use crate::index::lookup::Located;

/// Where a key is.
pub(crate) enum Place {
    Register(Register, LocatedBy),
    Cell(FoundCell),
}

/// How a register's location is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocatedBy {
    /// From the location cache.
    Remembered,
    /// From the index, within this operation.
    Listed,
    /// The same, and a node shows that the register was deleted.
    ListedAsDeleted,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the node that holds the in-place copies of keys with this hash, if there is room for
    /// them.
    pub(crate) fn home(&self, hash: u64) -> NodeId {
        NodeId((hash % self.geometry.nodes as u64) as u8)
    }

    /// Finds the key's register or cell in the caches or by the index.
    #[inline]
    pub(crate) async fn locate(&self, hash: u64, key: &[u8]) -> Result<Option<Place>, Error> {
        match self.locations.get(hash, key) {
            Some(register) => Ok(Some(Place::Register(register, LocatedBy::Remembered))),
            None => Box::pin(self.locate_by_index(hash, key)).await,
        }
    }

    #[cold]
    async fn locate_by_index(&self, hash: u64, key: &[u8]) -> Result<Option<Place>, Error> {
        if let Some(found) = self.cells.get(hash, key) {
            return Ok(Some(Place::Cell(found)));
        }
        for _ in 0..TRIES {
            let located = self.index.fresh(&self.group, hash).await?;
            let mut moved = None;
            // S5: a register under this hash is the key's only if it holds the key.
            for entry in entries(&located, hash, key) {
                let Some(object) = entry.object(&self.geometry) else { continue };
                let mut register = match object {
                    KeyObject::Register(register) => register,
                    KeyObject::Cell(cell) => {
                        let found = (cell, located.generation);
                        let shown = self.read_listed_cell(hash, key, found).await?;
                        match shown.map(|shown| shown.kind) {
                            None => continue,
                            // S2, Q2: dead for good.
                            Some(Kind::Absent) => return Ok(None),
                            Some(_) => return Ok(Some(Place::Cell(found))),
                        }
                    }
                };
                match confirm(&self.group, &mut register, key).await {
                    Ok(Confirmed::OtherKey) => {}
                    Ok(Confirmed::Deleted) => {
                        return Ok(Some(Place::Register(register, LocatedBy::ListedAsDeleted)));
                    }
                    Ok(Confirmed::Key) => {
                        self.locations.insert(key, register, located.generation);
                        return Ok(Some(Place::Register(register, LocatedBy::Listed)));
                    }
                    Err(swarm_core::error::Error::Moved) => moved = Some(register),
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(register) = moved else { return Ok(None) };
            self.move_on(hash, &register, 0, Purpose::Relocate).await?;
        }
        Err(Error::Contended)
    }
}

/// Returns the entries that may be this key's.
pub(crate) fn entries<'a>(
    located: &'a Located,
    hash: u64,
    key: &[u8],
) -> impl Iterator<Item = &'a Entry> {
    let entries = match &located.bucket.content {
        Content::Entries { entries, .. } => entries.as_slice(),
        Content::Split(_) => &[],
    };
    let length = key.len();
    entries.iter().filter(move |entry| entry.hash == hash && entry.key_length == length)
}

/// Whether a bucket lists this very register.
pub(crate) fn lists(bucket: &Bucket, register: &Register) -> bool {
    let Content::Entries { entries, .. } = &bucket.content else { return false };
    entries.iter().any(|entry| entry.names(register))
}

//! Values with versions: a change that is made only if the key was not changed since it was read.
//!
//! A version names the record that gave a key its value: its cell, and the ballot by which it was
//! chosen. A cell chooses one record by a ballot, and no ballot comes back. So a key of which a version
//! is current has had the same value ever since, and not only an equal one (W1).

use std::rc::Rc;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use swarm_core::words::{Ballot, Pointer, WriteNumber};

use crate::client::cell_cache::SeenCell;
use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::keyed_cell::{CellContent, KeyedCell, Kind};
use crate::ops::expiry::FoundKey;
use crate::ops::modify::{Next, Rewrite};

/// A version of a key's value. It says whether it equals another one, and nothing else.
///
/// As long as two are equal, the key was not changed, deleted or expired in between. Two may differ
/// though it was not, as after it went on in other memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    cell: WriteNumber,
    record: Pointer,
    ballot: Ballot,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the value of `key`, if it is there, and its version.
    ///
    /// One roundtrip if the key's cell is cached; the first time some eight more, as the key becomes a
    /// cell.
    ///
    /// # Errors
    /// A key out of bounds; [`Error::TooLongForCell`] for a value of more than
    /// [`MAX_EXPIRING`](crate::MAX_EXPIRING) bytes; [`Error::NoCells`] in a pool that was created
    /// without keyed cells; a full pool; too few memory nodes that answer.
    pub async fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, Error> {
        let get = async || {
            let hash = self.check(key, &[])?;
            let _lock = self.lock_key(hash).await?;
            self.find_cell(hash, key).await
        };
        let found = self.as_lookup(get).await?;
        Ok(found.map(|((cell, _), seen)| {
            let version = self.version(&cell, &seen);
            (seen.value, version)
        }))
    }

    /// Makes `value` the value of `key` if its version is still `version`, and keeps its time to live.
    /// Returns false, with no effect, if it has another one, or is not there.
    ///
    /// It takes effect once or, if it is lost or ends in an error, never; after some errors that is
    /// unknown ([`Error::may_have_taken_effect`]). Two roundtrips.
    ///
    /// # Errors
    /// As [`get_versioned`](Self::get_versioned).
    pub async fn put_if_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<bool, Error> {
        let put = async || {
            let hash = self.check(key, value)?;
            self.can_be_cell(key, value.len())?;
            let _lock = self.lock_key(hash).await?;
            self.put_if_version_now(hash, key, value, version).await
        };
        self.as_change(put).await
    }

    async fn put_if_version_now(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<bool, Error> {
        let Some((found, seen)) = self.find_cell(hash, key).await? else { return Ok(false) };
        let cell = found.0;
        self.cells.insert(hash, key, found, None);
        if self.version(&cell, &seen) != version {
            return Ok(false);
        }
        let content = CellContent { kind: Kind::Value, deadline: seen.deadline, key, value };
        if cell.fits_content(&content) && !seen.view.is_worn(self.geometry.format) {
            // W1: built on the record of this version, or lost for good.
            let proposed = self.propose_to(&cell, &seen.view, &content, Purpose::Replace).await?;
            return Ok(proposed.is_some());
        }
        // There is no room in this cell.
        if seen.deadline.is_none() {
            return self.forward(hash, key, (&cell, &seen), (value, 0)).await;
        }
        // X4: it goes on in a larger one first, with the value of this version, on which nobody has built
        // if the change is built on its first record (W1).
        let larger = self.forward_to_cell(hash, key, (&cell, &seen), value.len()).await?;
        let Some((found, view)) = larger else { return Ok(false) };
        Ok(self.propose_to(&found.0, &view, &content, Purpose::Replace).await?.is_some())
    }

    /// Finds a key's cell, and makes one of a key that has none.
    async fn find_cell(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(crate::client::cell_cache::FoundCell, SeenCell)>, Error> {
        for lost in 0..TRIES as u32 {
            let (read, register) = match self.find_key(hash, key).await? {
                None => return Ok(None),
                Some(FoundKey::Cell(found, seen)) => return Ok(Some((found, seen))),
                Some(FoundKey::Register(value, register)) => (value, register?),
            };
            self.can_be_cell(key, read.len())?;
            let keep = Rc::new(Next::Keep);
            let choice = |_: Option<&[u8]>| Ok(Rc::clone(&keep));
            let mut rewrite =
                Rewrite { key, read: &read, choice: &choice, deadline: None, done: None };
            Box::pin(self.convert(hash, &register, &read, &mut rewrite)).await?;
            if lost > 0 {
                self.pause_after(lost).await;
            }
        }
        Err(Error::Contended)
    }

    fn version(&self, cell: &KeyedCell, seen: &SeenCell) -> Version {
        let ballot = seen.view.chosen_by(self.geometry.format);
        Version { cell: cell.identity.number, record: seen.view.record(), ballot }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{Geometry, cell};
    use swarm_core::node::NodeSet;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::{CellFlags, Incarnation};

    use super::*;
    use crate::client::handle::Options;
    use crate::index::bucket::MAX_ENTRIES;
    use crate::ops::expiry::Life;
    use crate::runtime::block_on::block_on;

    /// A bucket lists as many keys of one hash as it can, and its cell is worn: it has no changes left
    /// but for keys that come, go or must move (S6). What has no room in a key's cell is refused, and
    /// the cell goes on: with a deadline or without, by version or not.
    #[test]
    fn no_cell_is_ended_in_a_bucket_that_stays_worn() {
        const HASH: u64 = 0x5a5a_0123_89ab_cdef;
        const EXHAUSTED: Error = Error::Replication(swarm_core::error::Error::Exhausted);
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry").with_keyed_cells(true);
        let (nodes, session) =
            (Loopback::new(3, 4 << 17), Session { client: 0, incarnation: Incarnation(1) });
        let clock = LoneClock::new(10_000);
        let client: Client<_, _> =
            Client::new(nodes.clone(), clock, geometry, session, Options::default());
        let names: Vec<_> = (0..MAX_ENTRIES).map(|number| format!("key {number}")).collect();
        for name in &names {
            let inserted = block_on(client.insert_now(HASH, name.as_bytes(), b"value"));
            assert_eq!(inserted, Ok(true));
        }
        // There is no room for more, however often it splits.
        let more = client.insert_now(HASH, b"more", b"value");
        assert_eq!(block_on(more), Err(Error::TooManyCollisions));
        let find = |key| {
            let found = block_on(client.find_cell(HASH, key)).expect("memory");
            found.expect("it is there")
        };
        let change = |key, length, life| {
            let next = Rc::new(Next::Put(vec![7; length]));
            let choice = |_: Option<&[u8]>| Ok(Rc::clone(&next));
            block_on(client.change_cell_and_life(HASH, key, find(key).0, (&choice, life))).map(drop)
        };
        let [endless, expiring] = [names[0].as_bytes(), names[1].as_bytes()];
        assert_eq!(change(endless, 5, Life::Kept), Ok(()));
        assert_eq!(change(expiring, 5, Life::Set(Some(1 << 40))), Ok(()));
        let located = block_on(client.index.fresh(&client.group, HASH)).expect("nodes answer");
        let format = client.geometry.format;
        // Fast ballots are even.
        let ballot = Ballot((format.last_ballot().0 / 5 * 4) & !1);
        let flags = CellFlags::CONFIRMED | CellFlags::ACCEPTED;
        let worn = format.cell(ballot, located.view.record(), flags);
        for node in NodeSet::all(3) {
            let at = located.cell.place.at(node, 3).plus(cell::WORD);
            nodes.set_word(node, at, worn.0);
        }
        for (key, length, life) in [
            (endless, 1000, Life::Kept),
            (expiring, 1000, Life::Kept),
            (expiring, 9000, Life::Set(None)),
        ] {
            assert_eq!(change(key, length, life), Err(EXHAUSTED), "{length}");
            let (found, seen) = find(key);
            let version = client.version(&found.0, &seen);
            let value = vec![7; 1000];
            let put = client.put_if_version_now(HASH, key, &value, version);
            assert_eq!(block_on(put), Err(EXHAUSTED), "{length}");
            let (_, shown) = block_on(client.read_cell_as_it_is(&found.0)).expect("nodes answer");
            assert_eq!((shown.kind, shown.value.len()), (Kind::Value, 5));
        }
    }
}

//! Settling keys: what others wrote under them has taken effect, or never will, for clients that have ended.
//!
//! A write that its client did not see to its end may surface later: at a minority of the nodes lies a stamp, or a record, that
//! a reader or a proposer may yet find and complete. A newer write does not keep it from that: its timestamp may be the larger
//! one. But an operation that is under way on a register that moved, or on a record that was replaced, is lost unless what came after took it along.
//!
//! **Invariant (L7):** a key that was settled has a register, a record of its cell, or, if it is absent, a record of its bucket, that is
//! younger than the operation that settled it. So no write that a client began before, and does not go on with, takes effect after that.
//!
//! Roundtrips: a move's seven for a register; two for a cell, and for an absent key.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::{Bucket, Content};
use crate::index::keyed_cell::{CellContent, KeyedCell, Kind};
use crate::ops::insert::Before;
use crate::ops::locate::Place;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Settles a key: what clients that have ended by now wrote under it took effect before this, or never will.
    ///
    /// It changes no value, and is safe to call at any time. Others' operations that are under way go on.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have settled the key or not.
    ///
    /// # Errors
    /// A key out of bounds; a full pool; too few memory nodes that answer.
    pub async fn settle(&self, key: &[u8]) -> Result<(), Error> {
        let settle = self.with_memory(async || {
            let hash = self.check(key, &[])?;
            let _lock = self.lock_key(hash).await?;
            self.settle_now(hash, key).await
        });
        let settle = Box::pin(self.in_own_process(settle));
        let (result, tally) = self.group.fabric().track(settle).await;
        self.count(|counters| &mut counters.modify, tally);
        self.gc_assist().await;
        result
    }

    async fn settle_now(&self, hash: u64, key: &[u8]) -> Result<(), Error> {
        for lost in 0..TRIES as u32 {
            if lost > 0 {
                self.pause_after(lost).await;
            }
            let listed = self.read_by_index(hash, key).await?;
            let is_settled = match listed.map(|(_, place)| place).transpose()? {
                None => self.settle_absent(hash, key).await?,
                Some(Place::Cell((cell, _))) => self.settle_cell(hash, key, &cell).await?,
                // Its successor takes along what took effect (V1).
                Some(Place::Register(register, _)) => {
                    self.move_on(hash, &register, 0, Purpose::Insert).await?.is_some()
                }
            };
            if is_settled {
                return Ok(());
            }
        }
        Err(Error::Contended)
    }

    /// Changes the bucket of a key that is not there to what it is: an insert that is built on the record before is lost. Returns false
    /// if another change came first.
    async fn settle_absent(&self, hash: u64, key: &[u8]) -> Result<bool, Error> {
        let located = self.fresh_to_change(hash).await?;
        let Before::Absent(_) = self.before(&located, hash, key).await? else { return Ok(false) };
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(false) };
        let content = Content::Entries { entries: entries.clone(), created: None };
        let bucket = Bucket { content, ..located.bucket };
        let is_changed = self.change(&located, bucket, &[], Purpose::Replace).await?;
        if !is_changed {
            self.index.forget(located.cell.place.pointer);
        }
        Ok(is_changed)
    }

    /// Changes a cell to what it is: a change that is built on the record before is lost. Returns false if another change came first.
    async fn settle_cell(&self, hash: u64, key: &[u8], cell: &KeyedCell) -> Result<bool, Error> {
        let Some(shown) = self.read_cell(cell, key).await? else { return Ok(false) };
        let (kind, deadline, value) = (shown.kind, shown.deadline, &*shown.value);
        self.cells.remove(hash);
        match kind {
            Kind::Absent => Ok(false),
            Kind::Forward => {
                self.move_forwarded(hash, key, cell, &shown).await?;
                Ok(false)
            }
            // S6: it goes on in another one.
            Kind::Value if shown.view.is_worn(self.geometry.format) => {
                let last = (kind, &shown.view, value, deadline);
                Box::pin(self.move_cell_out(hash, key, cell, last)).await
            }
            Kind::Value => {
                let same = CellContent { kind, deadline, key, value };
                let proposed = self.propose_to(cell, &shown.view, &same, Purpose::Replace);
                Ok(proposed.await?.is_some())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::runtime::block_on::block_on;

    /// Keys in registers, in cells, deleted and never there: all are what they were.
    #[test]
    fn to_settle_a_key_changes_no_value() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry").with_keyed_cells(true);
        let nodes = Loopback::new(3, 4 << 17);
        let [one, two] = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let clock = LoneClock::new(1000 + client as u64);
            Client::<_, _>::new(nodes.clone(), clock, geometry, session, Options::default())
        });
        let (here, there) = (one.blocking(), two.blocking());
        here.put(b"register", b"value").expect("memory");
        here.put(b"long", &[7; 9000]).expect("memory");
        here.increment(b"cell", 5).expect("memory");
        here.increment(b"cell", 5).expect("memory");
        here.put(b"deleted", b"value").expect("memory");
        here.delete(b"deleted").expect("memory");
        here.increment(b"dead cell", 5).expect("memory");
        here.increment(b"dead cell", 5).expect("memory");
        here.delete(b"dead cell").expect("memory");
        let keys: [&[u8]; 6] = [b"register", b"long", b"cell", b"deleted", b"dead cell", b"none"];
        let read = |client: &Client<_, _>| {
            let get = |key| client.blocking().get(key).expect("nodes").map(|value| value.to_vec());
            keys.map(get)
        };
        let before = read(&one);
        for _ in 0..3 {
            for key in keys {
                block_on(two.settle(key)).expect("memory");
                assert_eq!((read(&one), read(&two)), (before.clone(), before.clone()));
                block_on(one.settle(key)).expect("memory");
            }
        }
        assert_eq!(there.increment(b"cell", 1), Ok(11));
        assert_eq!(there.insert(b"none", b"value"), Ok(true));
        assert_eq!(block_on(two.settle(b"")), Err(Error::Key(0)));
    }
}

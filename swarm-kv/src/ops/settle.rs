//! Settling keys: what clients that have ended wrote under them took effect by now, or never will.
//!
//! A write to a register that its client did not see to its end may surface later: at a minority of the nodes
//! lies a stamp that a reader may yet find and complete. A newer write does not keep it from that, as its
//! timestamp may be the smaller one. So the key moves: its next register begins with what the freeze of this
//! one shows, and nobody asks this one any more.
//!
//! In a cell, the key's or, where the key is not there, that of its bucket, this client commits a change to
//! what is there already. Whatever clients that have ended proposed is built on an older record, and so is
//! committed by then or never will be (C6). A read is not enough: it may go by a majority, and behind a
//! network a client that is fenced at a majority may still reach another node (C9).
//!
//! **Invariant (O7):** a key that was settled shows no more of what clients wrote that had ended before.
//!
//! Roundtrips: seven for a move of a register; three for a cell, and six for a key that is not there.

use std::rc::Rc;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::{Bucket, Content};
use crate::ops::locate::Place;
use crate::ops::modify::Next;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Settles a key: what clients that have ended by now wrote under it took effect before this, or never will.
    ///
    /// It changes no value and no time to live, and is safe to call at any time. A key in a cell has another
    /// [version](Self::get_versioned) after it. Others' operations that are under way go on.
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
        let mut is_bucket_settled = false;
        for tries in 1..=TRIES as u32 {
            let listed = self.read_by_index(hash, key).await?;
            match listed.map(|(_, place)| place).transpose()? {
                // O7: its successor takes along what took effect (V1).
                Some(Place::Register(register, _)) => {
                    if self.move_on(hash, &register, 0, Purpose::Insert).await?.is_some() {
                        return Ok(());
                    }
                }
                // C9: the same value again, in a record of this client.
                Some(Place::Cell(found)) => {
                    let same = |value: Option<&[u8]>| {
                        Ok(Rc::new(Next::Put(value.unwrap_or_default().to_vec())))
                    };
                    if self.change_cell(hash, key, found, &same).await?.is_some() {
                        return Ok(());
                    }
                }
                // It is not there, and no insert of a client that had ended is to come.
                None if is_bucket_settled => return Ok(()),
                None => is_bucket_settled = self.settle_bucket(hash).await?,
            }
            self.pause_after(tries).await;
        }
        Err(Error::Contended)
    }

    /// Commits the entries of this hash's bucket again (C9). Returns false if another change came first.
    async fn settle_bucket(&self, hash: u64) -> Result<bool, Error> {
        let located = self.fresh_to_change(hash).await?;
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(false) };
        let content = Content::Entries { entries: entries.clone(), created: None };
        let bucket = Bucket { content, ..located.bucket };
        let is_changed = self.change(&located, bucket, &[], Purpose::Replace).await?;
        if !is_changed {
            self.index.forget(located.cell.place.pointer);
        }
        Ok(is_changed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::ops::expiry::TimeToLive;
    use crate::runtime::block_on::block_on;

    /// Keys in registers, in cells, deleted and never there: all are what they were, for as long as before.
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
        let hour = Duration::from_secs(3600);
        here.put_with_ttl(b"brief", b"value", hour).expect("memory");
        let keys: [&[u8]; 7] =
            [b"register", b"long", b"cell", b"deleted", b"dead cell", b"none", b"brief"];
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
        assert!(matches!(there.ttl(b"brief"), Ok(TimeToLive::Left(left)) if left <= hour));
        assert_eq!(there.increment(b"cell", 1), Ok(11));
        assert_eq!(there.insert(b"none", b"value"), Ok(true));
        assert_eq!(block_on(two.settle(b"")), Err(Error::Key(0)));
    }
}

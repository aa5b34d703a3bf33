//! Filling: all that a node has to hold is put at the one that takes a lost node's place.
//!
//! This is the part of a replacement that knows what is in a pool, and nothing of files or daemons.
//! It works over two fabrics: the client's own, which answers for the lost node that it is down,
//! and `joining`, which posts to the new node alone. Its caller has seen to the rest: the new
//! node is all zeros; no operation is under way that began before the lost node was gone (H7), or
//! none at all (H4); and only this client posts to the new node until that votes.
//!
//! **Invariant (H5):** the new node holds what the index leads to, and the chunk map with all marks
//! of what is handed out, as of some moment after the lost node was gone. All else that a node holds
//! is of no use: what no bucket names and no operation under way can reach is garbage, and garbage
//! is zeroed at every node before it is used again (E8), which at the new node it is. What others
//! change, create or take out of the index meanwhile is at a majority without the new node (H8).
//!
//! The client is pinned from the look at a bucket until what it lists is at the new node: what it
//! carries there is not used for anything else meanwhile (E2). A bucket of many keys is one pin.
//!
//! - *The index*, bucket by bucket along their prefixes: split buckets, and the children that these
//!   name. Each by H2; then what it lists, before the next one.
//! - *Registers*, each by H1. A register is read first, as a get does: so what clients left half
//!   done when they died is settled at a majority of the others, and the new node gets that. A key
//!   on the move is moved to its end first, and its bucket gone over again: where a register is
//!   frozen at a majority, one with the new node might show slots that are not (V1).
//! - *Keyed cells*, each by H2, with their headers.
//! - *First buffers* of registers that their bucket's record still brings along. To bring that record to a node that lacks
//!   it copies them from any node that has it (S1, E4b).
//! - *The chunk map and the marks*, last (E8a): a move takes memory.

use swarm_core::cell;
use swarm_core::clock::Clock;
use swarm_core::error::Error as CoreError;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{BufferHeader, Header, buffer, register};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::quorum::Next;
use swarm_core::register::freeze::predecessor;
use swarm_core::register::{Check, Protocol, Register, fill, read_key};

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::{Content, Created, Entry, KeyObject};
use crate::index::keyed_cell::KeyedCell;
use crate::index::lookup::Walk;

/// How much was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Filled {
    /// Buckets of the index, split or not.
    pub buckets: u64,
    /// Keys, and deleted ones that are still listed.
    pub keys: u64,
    /// How many of the index's first buckets were gone over. Keys are spread evenly over them.
    pub done: u64,
    /// How many first buckets there are.
    pub first_buckets: u64,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Puts all that a node has to hold at `node`, by `joining`. Calls `progress` behind each first
    /// bucket, and gives up if it returns `false`; what was filled is of no use then. Returns
    /// whether all was filled.
    ///
    /// # Errors
    /// Too few nodes that answer, or the new one does not; damaged memory;
    /// [`Full`](Error::Full) if a key was left on the move, and there is no memory to move it.
    pub(crate) async fn fill_node<N: Fabric>(
        &self,
        joining: (&N, NodeId),
        progress: &mut dyn FnMut(Filled) -> bool,
    ) -> Result<bool, Error> {
        let all = self.geometry.first_buckets();
        let mut filled = Filled { first_buckets: all as u64, ..Filled::default() };
        for first in 0..all {
            let mut walk = self.index.walk(first);
            while walk.next_place().is_some() {
                filled.keys += self.fill_bucket(&mut walk, joining).await?;
                filled.buckets += 1;
            }
            filled.done += 1;
            if !progress(filled) {
                return Ok(false);
            }
        }
        let _pin = self.pin();
        self.heap.fill(&self.group, joining).await?;
        Ok(true)
    }

    /// Fills the next bucket of a walk and what it lists. Returns how many keys that is.
    async fn fill_bucket<N: Fabric>(
        &self,
        walk: &mut Walk,
        joining: (&N, NodeId),
    ) -> Result<u64, Error> {
        for _ in 0..TRIES {
            let _pin = self.pin();
            let mut next = walk.clone();
            let located = self.index.fill_step(&self.group, &mut next, joining).await?;
            let Some(located) = located else { break };
            let Content::Entries { entries, created } = &located.bucket.content else {
                *walk = next;
                return Ok(0);
            };
            // Of a cell, H2 brings the committed record. A first record that is not it any more is read by
            // nobody, so it does not matter if a client that adopts the bucket's record copies nothing.
            if let Some(created) = created
                && let entry = &entries[created.entry]
                && !entry.is_cell
            {
                self.fill_first_buffer(entry, *created, joining).await?;
            }
            // H5: all that the bucket lists; what is listed from now on is at a majority of the others (H8).
            let mut on_the_move = None;
            for entry in entries {
                let object = entry.object(&self.geometry).ok_or(Error::DAMAGED)?;
                let mut register = match object {
                    KeyObject::Register(register) => register,
                    KeyObject::Cell(cell) => {
                        self.fill_cell(&cell, joining).await?;
                        continue;
                    }
                };
                match self.fill_register(&mut register, joining).await {
                    Ok(()) => {}
                    Err(CoreError::Moved) => on_the_move = Some((entry, register)),
                    Err(error) => return Err(error.into()),
                }
            }
            // V2: the cell has one winner, which is listed when it is gone over again.
            if let Some((entry, register)) = on_the_move {
                self.move_on(entry.hash, &register, 0, Purpose::Relocate).await?;
                continue;
            }
            *walk = next;
            return Ok(entries.len() as u64);
        }
        Err(Error::Contended)
    }

    /// Settles a register among the others, and puts it at the new node.
    async fn fill_register<N: Fabric>(
        &self,
        register: &mut Register,
        joining: (&N, NodeId),
    ) -> Result<(), swarm_core::error::Error> {
        // H5: as a get reads it, so what the dead left half done is settled at a majority of the others.
        drop(P::read(&self.group, register, Check::Identity).await?);
        fill::fill(&self.group, register, joining).await
    }

    /// Puts a key's cell at the new node: its committed record and word (H2), and the header that
    /// writers that follow predecessors go by (V5).
    async fn fill_cell<N: Fabric>(
        &self,
        cell: &KeyedCell,
        (joining, node): (&N, NodeId),
    ) -> Result<(), Error> {
        let (place, n) = (cell.at.place, self.group.nodes());
        drop(cell::fill(&self.group, &cell.at, &(), (joining, node)).await?);
        // A cell has its header where a register of its shape has it.
        let register = Register::new(place, cell.identity, cell.shape);
        let key = read_key(&self.group, &register).await?;
        let number = cell.identity.number;
        let before = predecessor(&self.group, &place, cell.shape, number).await?;
        let predecessor = before.ok_or(Error::DAMAGED)?;
        let header = Header { number, key: &key, predecessor }.encode();
        let identity = cell.identity.encode();
        let at = cell.shape.header_place(&place).at(node, n);
        let chain = [
            Verb::Write { at, head: &header, tail: &key },
            Verb::Write {
                at: place.at(node, n).plus(register::IDENTITY),
                head: &identity,
                tail: &[],
            },
        ];
        joining.post(node, &chain).await.map(drop).map_err(|_| CoreError::NO_ANSWER.into())
    }

    /// Puts the first buffer of a register at the new node, if another one has it. Before the
    /// register is filled, whose latest write may lie there, rewritten (I4).
    ///
    /// A majority of the others has the record, as it was just read among them, and with it the
    /// buffer, except for the one that the buffer leaves out. So any majority of them includes one
    /// that has it.
    async fn fill_first_buffer<N: Fabric>(
        &self,
        entry: &Entry,
        created: Created,
        (joining, node): (&N, NodeId),
    ) -> Result<(), Error> {
        let (n, words) = (self.group.nodes(), created.words.saturating_sub(buffer::REWRITE));
        let site = self.group.placement().site(created.buffer);
        if !site.holders.contains(node) {
            return Ok(());
        }
        let (mut found, need) = (Vec::new(), self.group.majority());
        let read = |other| {
            let at = site.place.at(other, n).plus(buffer::REWRITE);
            self.group.fabric().post(other, &[Verb::Read { at, words }])
        };
        self.group
            .collect_votes(NodeSet::all(n), need, |other, reply| {
                let Some(reply) = reply else {
                    let holds = site.holders.contains(other);
                    return if holds { Next::Post(read(other)) } else { Next::Vote };
                };
                let is_its = BufferHeader::decode(&reply).is_some_and(|header| {
                    header.number == entry.identity.number && header.register == entry.pointer
                });
                if is_its {
                    found = reply.to_vec();
                }
                Next::Vote
            })
            .await?;
        if !found.is_empty() {
            let at = site.place.at(node, n).plus(buffer::REWRITE);
            let write = [Verb::Write { at, head: &found, tail: &[] }];
            joining.post(node, &write).await.map_err(|_| CoreError::NO_ANSWER)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    use swarm_core::node::Address;
    use swarm_core::register::freeze::freeze;
    use swarm_core::words::StampFlags;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::use_up_bootstrap_records;
    use crate::ops::replace::ReplaceStep;
    use crate::pools::shm::{self, CreateOptions, OpenOptions, Pool, ReplaceOptions};
    use crate::runtime::block_on::block_on;

    type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

    /// A pool, the files of its nodes that are away, and what it has to have.
    struct Kept {
        dir: tempfile::TempDir,
        pairs: Pairs,
    }

    impl Kept {
        fn of(nodes: usize) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let options = CreateOptions {
                nodes,
                capacity: 8 << 20,
                max_clients: 8,
                ..CreateOptions::default()
            };
            drop(Pool::create(dir.path().join("pool"), &options).expect("a pool"));
            Self { dir, pairs: Pairs::new() }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("pool")
        }

        fn open(&self) -> Pool {
            let options = OpenOptions { degraded: true, ..OpenOptions::default() };
            Pool::open(self.path(), options).expect("a majority")
        }

        fn place(&self, node: u8) -> PathBuf {
            self.path().join(format!("node-{node}"))
        }

        fn away(&self, node: u8) -> PathBuf {
            self.dir.path().join(format!("away-{node}"))
        }

        fn take_away(&self, node: u8) {
            fs::rename(self.place(node), self.away(node)).expect("it is there");
        }

        fn bring_back(&self, node: u8) {
            fs::rename(self.away(node), self.place(node)).expect("it was away");
        }

        fn lose(&self, node: u8) {
            fs::remove_file(self.place(node)).expect("it is there");
        }

        /// Writes keys of some round: new ones and others, long values and short ones, and deletes.
        fn work(&mut self, round: usize, keys: usize) {
            let pool = self.open();
            let clients = [0, 1].map(|_| shm::open(&pool, Options::default()).expect("a slot"));
            for number in 0..keys {
                let store = clients[number % 2].blocking();
                let old = format!("key {}", number * 7 % (round * keys + 1)).into_bytes();
                let new = format!("key {}", round * keys + number).into_bytes();
                for key in [old, new] {
                    let length = if number % 50 == 0 { 5000 } else { (number + round) % 60 };
                    let value = vec![(number + round) as u8; length];
                    store.put(&key, &value).expect("memory");
                    // Some keys move, or are cells.
                    if number % 5 == 0 {
                        store.swap(&key, b"another").expect("memory");
                        store.swap(&key, &value).expect("memory");
                    }
                    self.pairs.insert(key.clone(), value);
                    if (number + round).is_multiple_of(6) {
                        store.delete(&key).expect("a majority");
                        self.pairs.remove(&key);
                    }
                }
            }
        }

        fn replace(&self, node: u8) -> Filled {
            let mut filled = Filled::default();
            let mut goes_on = |step| {
                if let ReplaceStep::Fills(now) = step {
                    filled = now;
                }
                true
            };
            assert!(self.try_to_replace(node, &mut goes_on), "it was not given up");
            filled
        }

        fn try_to_replace(&self, node: u8, goes_on: &mut dyn FnMut(ReplaceStep) -> bool) -> bool {
            let (pool, options) = (self.open(), ReplaceOptions::default());
            let mut open = || shm::open(&pool, Options::default());
            let replaced = shm::replace_node(&pool, NodeId(node), &options, &mut open, goes_on);
            replaced.expect("a majority, and nobody else replaces it")
        }

        /// All keys are there, and nothing else.
        fn has_all(&self) {
            let pool = self.open();
            let client = shm::open(&pool, Options::default()).expect("a slot");
            for (key, value) in &self.pairs {
                let found = client.blocking().get(key).expect("a majority");
                assert!(found.as_deref() == Some(value), "{}", String::from_utf8_lossy(key));
            }
            let (mut cursor, mut keys) = (crate::Cursor::new(), 0);
            while client.blocking().next_keys(&mut cursor, |_, _| keys += 1).expect("a majority") {}
            assert_eq!(keys, self.pairs.len());
        }

        /// Whatever node has what it is to have.
        fn is_sound(&self) {
            let pool = Pool::open(self.path(), OpenOptions::default()).expect("all are there");
            let verdict = shm::verify(&pool, &mut |_, _| {}).expect("all answer");
            assert!(verdict.is_sound() && verdict.busy == 0, "{verdict:?}");
        }
    }

    /// One node after the other is lost for good and replaced, and each time any other may go.
    #[test]
    fn a_pool_outlives_its_nodes_one_after_the_other() {
        let (mut kept, mut splits) = (Kept::of(3), 0);
        for (round, node) in [0, 1, 2, 1].into_iter().enumerate() {
            kept.work(round, 600);
            kept.lose(node);
            let filled = kept.replace(node);
            assert_eq!(filled.done, filled.first_buckets);
            splits = filled.buckets - filled.first_buckets;
            kept.is_sound();
            for other in (0..3).filter(|&other| other != node) {
                kept.take_away(other);
                kept.has_all();
                kept.bring_back(other);
            }
        }
        assert_eq!(kept.open().configuration().lives()[..3], [1, 2, 1]);
        assert!(splits > 0, "it lists keys in buckets that were split");
    }

    /// No key is read in between, or the client that reads it would complete its cell.
    #[test]
    fn cells_of_keys_outlive_nodes_that_are_lost_one_after_the_other() {
        let mut kept = Kept::of(3);
        kept.work(0, 100);
        for node in [0, 1, 2] {
            kept.lose(node);
            kept.replace(node);
        }
        kept.has_all();
        kept.work(1, 100);
        kept.has_all();
        kept.is_sound();
    }

    /// Of what was done while one node was away, another one alone has it all: keys, buckets, and
    /// which memory is in use. With that one lost behind the replacement, the new node and the one
    /// that was away are all that is left.
    #[test]
    fn what_only_one_of_the_others_has_is_at_the_new_node() {
        for nodes in [3, 5] {
            let mut kept = Kept::of(nodes);
            kept.work(0, 100);
            let away: Vec<u8> = (0..nodes as u8 / 2).collect();
            away.iter().for_each(|&node| kept.take_away(node));
            kept.work(1, 100);
            away.iter().for_each(|&node| kept.bring_back(node));
            let lost = nodes as u8 - 1;
            kept.lose(lost);
            kept.replace(lost);
            // Of the nodes that were never away as many are lost as a pool stands.
            (nodes as u8 / 2..lost).for_each(|node| kept.lose(node));
            kept.has_all();
            // Were memory handed out again that is in use, keys would be overwritten.
            kept.work(2, 100);
            kept.has_all();
            for node in nodes as u8 / 2..lost {
                kept.replace(node);
            }
            kept.is_sound();
            kept.has_all();
        }
    }

    /// A node lacks the last change of a bucket, which made a cell of a key, and the cell has changed
    /// since. All others that had that change when it was made are lost: the cell's first record is
    /// nowhere.
    #[test]
    fn the_first_record_of_a_cell_is_missed_by_nobody() {
        let mut kept = Kept::of(5);
        kept.work(0, 100);
        kept.take_away(0);
        kept.work(1, 100);
        for node in [1, 2] {
            kept.lose(node);
            kept.replace(node);
        }
        kept.bring_back(0);
        [3, 4].into_iter().for_each(|node| kept.lose(node));
        kept.has_all();
        kept.work(2, 100);
        kept.has_all();
        [3, 4].into_iter().for_each(|node| _ = kept.replace(node));
        kept.is_sound();
    }

    fn write(client: &shm::Client, node: NodeId, at: Address, word: u64) {
        let write = Verb::Write { at, head: &[word], tail: &[] };
        block_on(client.group.fabric().post(node, &[write])).expect("up");
    }

    /// Guesses that nobody knows to be complete, and keys on the move: what clients leave that die.
    #[test]
    fn what_the_dead_left_half_done_is_settled() {
        let mut kept = Kept::of(3);
        kept.work(0, 120);
        let pool = kept.open();
        let client = shm::open(&pool, Options::default()).expect("a slot");
        for (number, key) in kept.pairs.keys().enumerate() {
            client.blocking().get(key).expect("a majority");
            let hash = client.check(key, &[]).expect("a key");
            // What is half done in a cell is settled by the next round.
            let Some(register) = client.locations.get(hash, key) else { continue };
            if number % 3 == 0 {
                block_on(freeze(&client.group, &register)).expect("a majority");
            } else if number % 3 == 1 {
                let n = client.group.nodes();
                for node in (0..n as u8).map(NodeId) {
                    let at = register.place.at(node, n);
                    for slot in 0..client.group.slots() {
                        let at = at.plus(slot);
                        let read = client.group.fabric().post(node, &[Verb::Read { at, words: 1 }]);
                        let word = block_on(read).expect("up")[0];
                        write(&client, node, at, word & !StampFlags::VERIFIED.bits());
                    }
                }
            }
        }
        drop(client);
        drop(pool);
        for node in 0..3 {
            kept.lose(node);
            kept.replace(node);
            kept.is_sound();
            kept.has_all();
        }
    }

    /// Each client died with a key on the move: to move them takes memory, of which relocations have a reserve.
    #[test]
    fn a_pool_that_is_full_while_a_node_is_gone_is_healed() {
        let mut kept = Kept::of(3);
        kept.work(0, 200);
        kept.lose(1);
        let pool = kept.open();
        let client = shm::open(&pool, Options::default()).expect("a slot");
        for number in 0.. {
            let (key, value) = (format!("more {number}").into_bytes(), vec![7; 40 + number % 300]);
            match client.blocking().put(&key, &value) {
                Ok(()) => kept.pairs.insert(key, value),
                Err(Error::Full(_)) => break,
                Err(error) => panic!("{error}"),
            };
        }
        let spread = kept.pairs.len() / 50;
        let registers = kept.pairs.keys().step_by(spread).filter_map(|key| {
            client.blocking().get(key).expect("a majority");
            client.locations.get(client.check(key, &[]).expect("a key"), key)
        });
        let frozen = registers.take(8).map(|register| block_on(freeze(&client.group, &register)));
        assert_eq!(frozen.filter(Result::is_ok).count(), 8, "one of each client");
        drop(client);
        drop(pool);
        kept.replace(1);
        kept.is_sound();
        kept.has_all();
        kept.work(1, 10);
        kept.has_all();
    }

    /// To move a key on takes memory, and the lowest free slots have no record left to claim it with.
    #[test]
    fn a_replacement_passes_by_slots_that_can_claim_no_memory() {
        let mut kept = Kept::of(3);
        let pool = kept.open();
        let mut clients =
            [0; 3].map(|_| Some(shm::open(&pool, Options::default()).expect("a slot")));
        let last = clients[2].take().expect("it was opened");
        let (key, value) = (b"key".to_vec(), vec![7; 20_000]);
        last.blocking().put(&key, &value).expect("memory");
        last.blocking().get(&key).expect("a majority");
        let hash = last.check(&key, &[]).expect("a key");
        let register = last.locations.get(hash, &key).expect("it was read");
        for slot in 0..2 {
            use_up_bootstrap_records(&last.group, &last.geometry, slot);
        }
        kept.lose(1);
        block_on(freeze(&last.group, &register)).expect("a majority");
        kept.pairs.insert(key, value);
        drop((clients, last, pool));
        kept.replace(1);
        kept.is_sound();
        kept.has_all();
    }

    /// The node was well. Once it is gone it stays so; the next replacement begins anew.
    #[test]
    fn a_replacement_that_is_given_up_leaves_the_pool_without_the_node() {
        for at in [0, 1] {
            let mut kept = Kept::of(3);
            kept.work(0, 60);
            let mut steps = 0;
            let mut goes_on = |_| {
                steps += 1;
                steps <= at
            };
            assert!(!kept.try_to_replace(0, &mut goes_on));
            assert!(!kept.path().join("node-0.new").exists());
            assert_eq!(kept.open().absent_nodes().len(), 1);
            kept.work(1, 60);
            kept.has_all();
            kept.replace(0);
            kept.is_sound();
            kept.has_all();
        }
    }
}

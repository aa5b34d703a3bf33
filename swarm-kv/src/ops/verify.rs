//! Whether all of a pool is whole: every bucket, every register, at every node; and nothing done about it.
//!
//! *No verb but READ leaves*, as of every [read-only fabric](crate::read_only). What the read-only fabric's protocols would have changed is
//! forgotten before the nodes are looked at, or it would be taken for what is there.
//!
//! S14: what is under way looks half done. So nothing is called a fault by one look: it is looked at again once every operation
//! is over that was under way at the look before, and is a fault if it is wrong still *and nobody has changed a word of it*:
//! then nobody is at it. What was changed meanwhile is looked at once more. An object that is wrong, and another way, at
//! each of [`LOOKS`] looks is being worked upon by somebody, and is counted as [busy](Verdict::busy).

use swarm_core::cell::{CellRef, committed};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{Location, RecordHeader, cell, cell_checksum, record};
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};
use swarm_core::register::Protocol;
use swarm_core::register::audit::{Audit, audit};
use swarm_core::words::{CellWord, Pointer};

use crate::client::handle::Client;
use crate::client::location_cache::hash_key;
use crate::error::Error;
use crate::index::bucket::{Content, Entry, KeyObject};
use crate::index::keyed_cell::Kind;
use crate::index::lookup::Walk;
use crate::read_only::ReadOnlyFabric;

/// How often something is looked at that is wrong in another way each time.
const LOOKS: usize = 8;
/// Faults that are reported one by one.
const MOST_REPORTED: usize = 1000;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// A node has no replica of a key's register.
    MissingReplica,
    /// The latest complete write of a key is at fewer nodes than a majority: this one is to have it and does not.
    LaggingSlot,
    /// What a node has was not written so: a value, a key, or a bucket's record.
    BadChecksum,
    /// Whether the latest write of a key took effect is for the next client that uses it to settle; or the key is on the move.
    UnsettledGuess,
    /// A node's cell of a bucket does not name the record that is committed.
    MissingBucket,
    /// What a bucket's cells name is for the next client that uses it to settle.
    UnsettledBucket,
}

impl FaultKind {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::MissingReplica => "missing replica",
            Self::LaggingSlot => "lagging slot",
            Self::BadChecksum => "bad checksum",
            Self::UnsettledGuess => "unsettled guess",
            Self::MissingBucket => "missing bucket",
            Self::UnsettledBucket => "unsettled bucket",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// At which node, if at one.
    pub node: Option<usize>,
    /// Of which key, if of one, and some node has it.
    pub key: Option<Vec<u8>>,
    /// The hash of the key, or the first one that the bucket covers.
    pub hash: u64,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// Buckets of the index, split or not.
    pub buckets: u64,
    /// Keys.
    pub keys: u64,
    /// Nodes that do not answer: nothing is reported of what they have.
    pub down: Vec<usize>,
    /// For each node, keys whose latest write it does not show. As a rule a write goes to a majority, so that this is no fault.
    pub behind: Vec<u64>,
    /// Copies in place that are torn. Writers at the same time leave them so, and readers, which go by another
    /// copy then, mend them: this is no fault.
    pub torn: u64,
    /// What is wrong, the first thousand.
    pub faults: Vec<Fault>,
    /// How much is wrong.
    pub fault_count: u64,
    /// Keys and buckets that were half done, and another way, at each look: clients were at work there.
    pub busy: u64,
}

impl Verdict {
    /// Whether all nodes answer, and nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.down.is_empty() && self.fault_count == 0
    }

    fn add(&mut self, kind: FaultKind, node: Option<NodeId>, hash: u64, key: Option<&[u8]>) {
        self.fault_count += 1;
        if self.faults.len() < MOST_REPORTED {
            let (node, key) = (node.map(NodeId::index), key.map(<[u8]>::to_vec));
            self.faults.push(Fault { kind, node, key, hash });
        }
    }

    fn add_at(&mut self, kind: FaultKind, nodes: NodeSet, hash: u64, key: Option<&[u8]>) {
        nodes.for_each(|node| self.add(kind, Some(node), hash, key));
    }

    fn down(&mut self, nodes: NodeSet) {
        for node in nodes.map(NodeId::index) {
            if !self.down.contains(&node) {
                self.down.push(node);
            }
        }
    }
}

/// Something that was wrong at a look, and the words that it had then.
enum Suspect {
    /// A bucket.
    Bucket { place: Location, hash: u64, seen: Vec<u64> },
    /// A register that a bucket listed.
    Register { entry: Entry, seen: u64 },
    /// A cell that a bucket listed.
    Cell { entry: Entry, seen: Vec<u64> },
}

/// What the nodes have of a cell: a bucket's, or a key's.
#[derive(Default)]
struct CellAudit {
    down: NodeSet,
    /// Nodes whose word names another record than the committed one.
    lacking: NodeSet,
    /// Nodes whose record is not whole.
    bad: NodeSet,
    /// Whether the copy of it in place is not.
    is_torn_in_place: bool,
    is_unsettled: bool,
    /// The words that were seen.
    seen: Vec<u64>,
}

impl CellAudit {
    fn is_sound(&self) -> bool {
        self.lacking.is_empty() && self.bad.is_empty() && !self.is_unsettled
    }

    /// Whether nothing is wrong with a key's cell. As of a register, some nodes may lag.
    fn is_sound_of_key(&self) -> bool {
        self.bad.is_empty() && !self.is_unsettled
    }

    fn report_for_key(&self, hash: u64, verdict: &mut Verdict) {
        verdict.add_at(FaultKind::BadChecksum, self.bad, hash, None);
        if self.is_unsettled {
            verdict.add(FaultKind::UnsettledGuess, None, hash, None);
        }
    }

    fn report(&self, hash: u64, verdict: &mut Verdict) {
        verdict.add_at(FaultKind::MissingBucket, self.lacking, hash, None);
        verdict.add_at(FaultKind::BadChecksum, self.bad, hash, None);
        if self.is_unsettled {
            verdict.add(FaultKind::UnsettledBucket, None, hash, None);
        }
    }
}

/// Reports what is wrong with a register.
fn report_register(audit: &Audit, entry: &Entry, verdict: &mut Verdict) {
    let key = Some(audit.key()).filter(|key| !key.is_empty());
    let mut add = |kind, nodes| verdict.add_at(kind, nodes, entry.hash, key);
    add(FaultKind::MissingReplica, audit.missing);
    add(FaultKind::LaggingSlot, audit.lagging);
    add(FaultKind::BadChecksum, audit.bad_headers.union(audit.bad_values));
    if audit.is_unsettled {
        verdict.add(FaultKind::UnsettledGuess, None, entry.hash, key);
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<ReadOnlyFabric<F>, C, P> {
    /// Looks at all of the pool. `progress` gets how many of the index's first buckets were gone over, and of how many;
    /// `grace` waits until every operation is over that is under way when it is called.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub(crate) async fn verify(
        &self,
        progress: &mut dyn FnMut(u64, u64),
        grace: &mut dyn FnMut(),
    ) -> Result<Verdict, Error> {
        let mut verdict = Verdict { behind: vec![0; self.group.nodes()], ..Verdict::default() };
        let mut suspects = Vec::new();
        let all = self.geometry.first_buckets();
        for first in 0..all {
            let mut walk = self.index.walk(first);
            while let Some(place) = walk.next_place() {
                self.look_first(place, &mut walk, &mut verdict, &mut suspects).await?;
            }
            progress(first as u64 + 1, all as u64);
        }
        for _ in 1..LOOKS {
            if suspects.is_empty() {
                break;
            }
            grace();
            for suspect in std::mem::take(&mut suspects) {
                suspects.extend(self.look_again(suspect, &mut verdict).await?);
            }
        }
        verdict.busy = suspects.len() as u64;
        verdict.down.sort_unstable();
        Ok(verdict)
    }

    /// What the protocols would have changed is not there.
    fn forget_changes(&self) {
        self.group.fabric().inner().forget();
    }

    /// The first look at the next bucket of a walk, and at what it lists.
    async fn look_first(
        &self,
        place: Location,
        walk: &mut Walk,
        verdict: &mut Verdict,
        suspects: &mut Vec<Suspect>,
    ) -> Result<(), Error> {
        self.forget_changes();
        let bucket = self.audit_cell(&self.index.cell(place)).await;
        verdict.buckets += 1;
        verdict.down(bucket.down);
        verdict.torn += u64::from(bucket.is_torn_in_place);
        let hash = walk.next_prefix();
        let is_sound = bucket.is_sound();
        if !is_sound {
            suspects.push(Suspect::Bucket { place, hash, seen: bucket.seen });
        }
        let located = match self.index.step(&self.group, walk).await {
            Ok(located) => located,
            Err(swarm_core::error::Error::Damaged) if !is_sound => return Ok(()),
            // It is whole at each node, and nothing that a bucket can hold.
            Err(swarm_core::error::Error::Damaged) => {
                verdict.add(FaultKind::BadChecksum, None, hash, None);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let Some(Content::Entries { entries, .. }) = located.map(|it| it.bucket.content) else {
            return Ok(());
        };
        self.forget_changes();
        for entry in &entries {
            if entry.is_cell {
                self.look_at_cell(entry, verdict, suspects).await?;
                continue;
            }
            let Some(audit) = self.audit_entry(entry).await else {
                verdict.add(FaultKind::BadChecksum, None, entry.hash, None);
                continue;
            };
            verdict.down(audit.down);
            verdict.keys += u64::from(!audit.is_deleted);
            verdict.torn += u64::from(audit.is_torn_in_place);
            audit.behind.for_each(|node| verdict.behind[node.index()] += 1);
            if !audit.is_sound() {
                suspects.push(Suspect::Register { entry: *entry, seen: audit.digest });
            }
        }
        Ok(())
    }

    /// Looks again at something that was wrong. Yields it if it is, and somebody was at work there since.
    async fn look_again(
        &self,
        suspect: Suspect,
        verdict: &mut Verdict,
    ) -> Result<Option<Suspect>, Error> {
        self.forget_changes();
        match suspect {
            Suspect::Bucket { place, hash, seen } => {
                let audit = self.audit_cell(&self.index.cell(place)).await;
                if audit.is_sound() {
                    return Ok(None);
                }
                if audit.seen != seen {
                    return Ok(Some(Suspect::Bucket { place, hash, seen: audit.seen }));
                }
                audit.report(hash, verdict);
            }
            Suspect::Cell { entry, seen } => {
                let located = match self.index.fresh(&self.group, entry.hash).await {
                    Ok(located) => located,
                    // That is reported for the bucket.
                    Err(swarm_core::error::Error::Damaged) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                if !located.bucket.lists(entry.pointer, entry.identity) {
                    return Ok(None);
                }
                self.forget_changes();
                let Some(KeyObject::Cell(cell)) = entry.object(&self.geometry) else {
                    return Ok(None);
                };
                let audit = self.audit_cell(&cell.at).await;
                if audit.is_sound_of_key() {
                    return Ok(None);
                }
                if audit.seen != seen {
                    return Ok(Some(Suspect::Cell { entry, seen: audit.seen }));
                }
                audit.report_for_key(entry.hash, verdict);
            }
            Suspect::Register { entry, seen } => {
                // Its memory may serve something else by now.
                let located = match self.index.fresh(&self.group, entry.hash).await {
                    Ok(located) => located,
                    // That is reported for the bucket.
                    Err(swarm_core::error::Error::Damaged) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                let Content::Entries { entries, .. } = &located.bucket.content else {
                    return Ok(None);
                };
                let is_it = |other: &&Entry| {
                    (other.pointer, other.identity) == (entry.pointer, entry.identity)
                };
                let Some(entry) = entries.iter().find(is_it) else { return Ok(None) };
                self.forget_changes();
                let Some(audit) = self.audit_entry(entry).await else { return Ok(None) };
                if audit.is_sound() {
                    return Ok(None);
                }
                if audit.digest != seen {
                    let suspect = Suspect::Register { entry: *entry, seen: audit.digest };
                    return Ok(Some(suspect));
                }
                report_register(&audit, entry, verdict);
            }
        }
        Ok(None)
    }

    /// What the nodes have of a register. `None` if the entry names none that there can be.
    async fn audit_entry(&self, entry: &Entry) -> Option<Audit> {
        let KeyObject::Register(register) = entry.object(&self.geometry)? else { return None };
        let mut audit = audit(&self.group, &register).await;
        let is_its = |key: &[u8]| hash_key(key, self.geometry.hash_seed) == entry.hash;
        if !audit.key().is_empty() && !is_its(audit.key()) {
            // A whole key, and another one than is found there.
            audit.bad_headers = NodeSet::all(self.group.nodes()).minus(audit.down);
        }
        Some(audit)
    }

    /// The first look at a key's cell.
    async fn look_at_cell(
        &self,
        entry: &Entry,
        verdict: &mut Verdict,
        suspects: &mut Vec<Suspect>,
    ) -> Result<(), Error> {
        self.forget_changes();
        let Some(KeyObject::Cell(cell)) = entry.object(&self.geometry) else {
            verdict.add(FaultKind::BadChecksum, None, entry.hash, None);
            return Ok(());
        };
        let audit = self.audit_cell(&cell.at).await;
        verdict.down(audit.down);
        verdict.torn += u64::from(audit.is_torn_in_place);
        audit.lacking.for_each(|node| verdict.behind[node.index()] += 1);
        let is_sound = audit.is_sound_of_key();
        if !is_sound {
            suspects.push(Suspect::Cell { entry: *entry, seen: audit.seen });
        }
        match self.read_cell_as_it_is(&cell).await {
            Ok((key, shown)) => {
                verdict.keys += u64::from(shown.kind != Kind::Absent);
                if hash_key(&key, self.geometry.hash_seed) != entry.hash {
                    verdict.add(FaultKind::BadChecksum, None, entry.hash, None);
                }
            }
            Err(Error::Replication(swarm_core::error::Error::Damaged)) if !is_sound => {}
            // It is whole at each node, and nothing that a key's cell can hold.
            Err(Error::Replication(swarm_core::error::Error::Damaged)) => {
                verdict.add(FaultKind::BadChecksum, None, entry.hash, None);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn audit_cell(&self, cell: &CellRef) -> CellAudit {
        let (n, place) = (self.group.nodes(), &cell.place);
        let (mut audit, mut words) = (CellAudit::default(), [None; MAX_NODES]);
        let mut in_place = None;
        for node in NodeSet::all(n) {
            let at = place.at(node, n).plus(cell::WORD);
            let read = [Verb::Read { at, words: cell.words_to_read(node == place.home) }];
            let Ok(reply) = self.group.fabric().post(node, &read).await else {
                audit.down.insert(node);
                continue;
            };
            let word = CellWord(reply[0]);
            words[node.index()] = Some(word);
            audit.seen.extend(reply.iter());
            if node == place.home {
                in_place = Some(reply);
            }
        }
        let Some((record, word)) = committed(self.group.format(), n, &words) else {
            audit.is_unsettled = true;
            return audit;
        };
        let names = |node: NodeId| {
            words[node.index()].is_some_and(|word| self.group.format().record(word) == record)
        };
        let there = NodeSet::all(n).minus(audit.down);
        audit.lacking = there.holding(|node| !names(node));
        if record.is_null() {
            return audit;
        }
        for node in there.holding(names) {
            if !self.has_record_at((record, cell.room), node, &mut audit.seen).await {
                audit.bad.insert(node);
            }
        }
        audit.is_torn_in_place = in_place.is_some_and(|reply| is_torn(&reply, cell.in_place, word));
        audit
    }

    /// Whether a record is whole at `node`, or that does not answer any more.
    async fn has_record_at(
        &self,
        (pointer, room): (Pointer, usize),
        node: NodeId,
        seen: &mut Vec<u64>,
    ) -> bool {
        let at =
            Location::everywhere(pointer, node).at(node, self.group.nodes()).plus(record::BODY);
        let read = async |at: swarm_core::node::Address, words: usize| {
            let end = at.0.saturating_add(words as u64);
            if end > self.geometry.capacity / 8 {
                return Some(None);
            }
            let reply = self.group.fabric().post(node, &[Verb::Read { at, words }]).await;
            reply.ok().map(Some)
        };
        let front = record::HEADER_WORDS - record::BODY;
        let Some(reply) = read(at, front).await else { return true };
        let Some(header) = reply.as_deref().and_then(RecordHeader::decode) else { return false };
        seen.extend(header.encode());
        if header.length > room {
            return false;
        }
        match read(at.plus(front), header.length).await {
            None => true,
            Some(payload) => payload.is_some_and(|payload| header.agrees(pointer, &payload)),
        }
    }
}

/// Whether the copy beside a cell's word says that it is the word's record, and is not whole.
fn is_torn(home: &[u64], in_place: usize, word: CellWord) -> bool {
    let Some(&[of, checksum, length, ref payload @ ..]) = home.get(in_place..) else {
        return false;
    };
    let payload = usize::try_from(length).ok().and_then(|length| payload.get(..length));
    of == word.0
        && home[cell::WORD] == word.0
        && payload.is_none_or(|payload| checksum != cell_checksum(word, payload))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use swarm_core::layout::{buffer, register};
    use swarm_core::node::Address;
    use swarm_core::register::Register;
    use swarm_core::words::{Stamp, StampFlags};

    use super::*;
    use crate::client::handle::Options;
    use crate::pools::shm::{self, CreateOptions, Pool};
    use crate::runtime::block_on::block_on;

    fn pool() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 8 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        (dir, pool)
    }

    fn verify(pool: &Pool) -> Verdict {
        shm::verify(pool, &mut |_, _| {}).expect("the nodes answer")
    }

    fn read(client: &shm::Client, node: NodeId, at: Address) -> u64 {
        let read = client.group.fabric().post(node, &[Verb::Read { at, words: 1 }]);
        block_on(read).expect("up")[0]
    }

    fn write(client: &shm::Client, node: NodeId, at: Address, words: &[u64]) {
        let write = Verb::Write { at, head: words, tail: &[] };
        block_on(client.group.fabric().post(node, &[write])).expect("up");
    }

    fn located(client: &shm::Client, key: &[u8]) -> Register {
        let hash = client.check(key, &[]).expect("a key");
        client.locations.get(hash, key).expect("it is remembered")
    }

    /// After inserts, splits, updates in and out of place, deletes and moves, all is where it is to be; and verifying
    /// changes no byte.
    #[test]
    fn a_pool_that_was_worked_on_is_sound() {
        let (dir, pool) = pool();
        assert!(verify(&pool).is_sound());
        let [one, two] = [0, 1].map(|_| shm::open(&pool, Options::default()).expect("a client"));
        for number in 0..3000_u32 {
            let key = number.to_le_bytes();
            one.blocking().put(&key, &key).expect("memory");
            if number % 2 == 0 {
                let length = if number % 64 == 0 { 6000 } else { number as usize % 100 };
                two.blocking().put(&key, &vec![7; length]).expect("memory");
            }
            if number % 7 == 0 {
                two.blocking().swap(&key, b"another").expect("memory");
                one.blocking().swap(&key, b"and another").expect("memory");
            }
            if number % 5 == 0 {
                one.blocking().delete(&key).expect("it is there");
            }
        }
        let bytes = || [0, 1, 2].map(|n| fs::read(dir.path().join(format!("pool/node-{n}"))).ok());
        let before = bytes();
        assert!(before[0].is_some(), "that is what the files are called");
        let verdict = verify(&pool);
        assert!(verdict.is_sound(), "{verdict:?}");
        assert_eq!((verdict.keys, verdict.busy), (2400, 0));
        assert!(verdict.buckets > pool.geometry().first_buckets() as u64, "some are split");
        assert!(before == bytes());
    }

    /// Each kind of fault is found where it was planted, and nothing else; twice, as nothing is mended.
    #[test]
    fn each_fault_is_found() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a client");
        let keys = [
            "missing", "lagging", "value", "in place", "header", "guess", "bucket", "deleted",
            "well",
        ];
        for key in keys {
            client.blocking().put(key.as_bytes(), b"first").expect("memory");
            client.blocking().put(key.as_bytes(), b"second").expect("memory");
        }
        assert!(verify(&pool).is_sound());
        let of = |key: &str| {
            let register = located(&client, key.as_bytes());
            let home = register.home();
            let next = NodeId((home.0 + 1) % 3);
            (register, home, next)
        };
        let mut expected = Vec::new();
        let mut expect = |kind, node: Option<NodeId>, key: &str| {
            let hash = client.check(key.as_bytes(), &[]).expect("a key");
            let key = Some(key.as_bytes().to_vec());
            expected.push(Fault { kind, node: node.map(NodeId::index), key, hash });
        };
        // The node that no operation of this key turned to.
        let (register, home, _) = of("missing");
        let other = NodeId((home.0 + 2) % 3);
        write(&client, other, register.place.at(other, 3), &[0; register::STATE_WORDS]);
        expect(FaultKind::MissingReplica, Some(other), "missing");
        let (register, _, next) = of("lagging");
        write(&client, next, register.place.at(next, 3), &[0; register::SLOTS]);
        expect(FaultKind::LaggingSlot, Some(next), "lagging");
        let (register, _, next) = of("value");
        let stamp = register.last_stamp();
        let site = client.group.placement().site(client.geometry.format.pointer(stamp));
        let value = site.place.at(next, 3).plus(buffer::HEADER_WORDS);
        assert_eq!(read(&client, next, value).to_le_bytes()[..6], *b"second");
        write(&client, next, value, &[read(&client, next, value) ^ 0x100]);
        expect(FaultKind::BadChecksum, Some(next), "value");
        let (register, in_place) = (of("in place").0, register::VALUE);
        let value = register.place.at(register.home(), 3).plus(in_place);
        write(&client, register.home(), value, &[read(&client, register.home(), value) ^ 1]);
        let (register, _, next) = of("header");
        let key = register.shape().header_place(&register.place).at(next, 3);
        write(&client, next, key, &[read(&client, next, key) ^ 1]);
        expect(FaultKind::BadChecksum, Some(next), "header");
        // As a writer leaves it that dies behind its first roundtrip.
        let (register, home_of_guess, next) = of("guess");
        for node in [home_of_guess, next] {
            let at = register.place.at(node, 3).plus(client.group.slot());
            let slot = read(&client, node, at);
            assert_ne!(slot & StampFlags::VERIFIED.bits(), 0);
            write(&client, node, at, &[slot & !StampFlags::VERIFIED.bits()]);
        }
        expect(FaultKind::UnsettledGuess, None, "guess");
        // What is deleted need not be anywhere else than where its delete is.
        let (register, home, _) = of("deleted");
        client.blocking().delete(b"deleted").expect("it is there");
        let other = NodeId((home.0 + 2) % 3);
        write(&client, other, register.place.at(other, 3), &[0; register::STATE_WORDS]);
        let hash = client.check(b"bucket", &[]).expect("a key");
        let bucket = client.index.root(hash).0;
        write(&client, home, bucket.at(home, 3).plus(cell::WORD), &[0]);
        let prefix = crate::index::lookup::prefix(hash, client.geometry.bucket_bits);
        let node = Some(home.index());
        expected.push(Fault { kind: FaultKind::MissingBucket, node, key: None, hash: prefix });
        for _ in 0..2 {
            let verdict = verify(&pool);
            let mut faults = verdict.faults.clone();
            let order = |fault: &Fault| (fault.hash, fault.kind.name(), fault.node);
            faults.sort_by_key(order);
            expected.sort_by_key(order);
            assert_eq!(faults, expected);
            assert_eq!((verdict.fault_count, verdict.busy), (expected.len() as u64, 0));
            assert_eq!(verdict.torn, 1);
            assert!(!verdict.is_sound());
        }
        // A client that uses a key mends what can be mended of it.
        for key in keys {
            client.blocking().put(key.as_bytes(), b"third").expect("memory");
        }
        let left: Vec<_> = verify(&pool).faults.into_iter().map(|fault| fault.kind).collect();
        assert!(left.len() < expected.len(), "{left:?}");
    }

    /// A write is seen in the middle. At the second look it is over; or another one is in the middle, each time; or nothing
    /// has happened, so that nobody is at it.
    #[test]
    fn what_changes_between_two_looks_is_no_fault() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a client");
        client.blocking().put(b"key", b"value").expect("memory");
        let half = || {
            client.blocking().put(b"key", b"another").expect("memory");
            let register = located(&client, b"key");
            for node in (0..3).map(NodeId) {
                let at = register.place.at(node, 3).plus(client.group.slot());
                let slot = read(&client, node, at);
                let guessed = slot & !StampFlags::VERIFIED.bits();
                let is_latest = Stamp(slot).same_write(register.last_stamp());
                write(&client, node, at, &[if is_latest { guessed } else { slot }]);
            }
        };
        let verify = |grace: &mut dyn FnMut()| {
            let read_only = shm::read_only(&pool);
            block_on(read_only.verify(&mut |_, _| {}, grace)).expect("the nodes answer")
        };
        half();
        let mut graces = 0;
        let ended = verify(&mut || {
            graces += 1;
            client.blocking().put(b"key", b"value").expect("memory");
        });
        assert_eq!((ended.is_sound(), ended.busy, graces), (true, 0, 1));
        half();
        let mut graces = 0;
        let busy = verify(&mut || {
            graces += 1;
            half();
        });
        assert_eq!((busy.is_sound(), busy.busy, graces), (true, 1, LOOKS - 1));
        half();
        let deleted = verify(&mut || client.blocking().delete(b"key").expect("memory"));
        assert_eq!((deleted.is_sound(), deleted.busy), (true, 0));
        half();
        let fault = verify(&mut || {});
        assert_eq!((fault.fault_count, fault.busy), (1, 0));
        assert_eq!(fault.faults[0].kind, FaultKind::UnsettledGuess);
    }

    /// What clients are in the middle of is no fault.
    #[test]
    fn what_is_under_way_is_no_fault() {
        let (_dir, pool) = pool();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for me in 0..3_u8 {
                let (pool, done) = (&pool, &done);
                scope.spawn(move || {
                    let client = shm::open(pool, Options::default()).expect("a client");
                    let store = client.blocking();
                    for round in 0.. {
                        let key = [b'k', (round % 7) as u8];
                        match (round + u32::from(me)) % 4 {
                            0 => store.delete(&key),
                            1 => store.insert(&key, &[me; 100]).map(drop),
                            _ => store.put(&key, &[me; 40]),
                        }
                        .expect("memory");
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            for _ in 0..6 {
                let verdict = verify(&pool);
                assert!(verdict.is_sound(), "{verdict:?}");
            }
            done.store(true, Ordering::Relaxed);
        });
        let verdict = verify(&pool);
        assert!(verdict.is_sound() && verdict.busy == 0, "{verdict:?}");
    }
}

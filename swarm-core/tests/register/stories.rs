//! Scripted scenarios of the register, each made to break one rule of the design.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Client, FIRST_VALUE, FORMAT, Held, KEY, Polls, create_replica, place, value};
use swarm_core::history::{Answer, BUDGET, Recorder, check_key};
use swarm_core::layout::{Identity, SLOTS, buffer, header, register};
use swarm_core::node::{Address, NodeId};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Protocol, Write, Written};
use swarm_core::sim::{Outcome, Setup, Sim, SimFabric};
use swarm_core::words::{Pointer, Stamp, StampFlags, Timestamp, WriteNumber};

const N0: NodeId = NodeId(0);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const ALL: [NodeId; 3] = [N0, N1, N2];
/// The client that created the register.
const CREATOR: usize = 3;
/// Nanoseconds after which a node is late.
const LATE: u64 = 500;

struct Story {
    sim: Sim,
    nodes: usize,
    home: u8,
    held: Held,
    recorder: Recorder,
}

impl Story {
    /// Three nodes, three clients, and a register with its home at node `home`. Its creation has
    /// reached the nodes in `created`; the chains to the others are pending.
    fn new(home: u8, created: &[NodeId]) -> Self {
        Self::of(3, (home, Held::Everywhere), created)
    }

    /// Likewise, where each buffer leaves out a node.
    fn all_but_one(home: u8) -> Self {
        Self::of(3, (home, Held::AllButOne), &ALL)
    }

    /// Likewise, with `nodes` nodes.
    fn of(nodes: usize, (home, held): (u8, Held), created: &[NodeId]) -> Self {
        let mut sim = Sim::new(&Setup { words: 1 << 13, ..Setup::new(1, nodes, 4) });
        let fabric = sim.fabric(CREATOR);
        for node in (0..nodes).map(|node| NodeId(node as u8)) {
            use swarm_core::fabric::Fabric;
            let place = (&place(home), held);
            drop(create_replica(place, node, nodes, |chain| fabric.post(node, chain)));
        }
        for &node in created {
            sim.take_all(CREATOR, node);
        }
        Self { sim, nodes, home, held, recorder: Recorder::new() }
    }

    fn client(&self, id: usize) -> Client<SimFabric> {
        let connection = (self.sim.fabric(id), self.sim.clock(id));
        let timeouts = (LATE, u64::MAX / 4);
        let client = Client::new(connection, (id, id), place(self.home), timeouts, &self.recorder);
        client.of(SLOTS, self.held)
    }

    /// Lets a client start to write these values, one after the other. It is polled once.
    fn write(&mut self, id: usize, values: &'static [u64]) {
        let mut client = self.client(id);
        self.sim.spawn(id, async move {
            for &value in values {
                client.write::<SafeGuess>(value, Polls::ALL).await.expect("a write ends well");
            }
        });
        self.sim.poll_once(id);
    }

    fn read(&mut self, id: usize) {
        let mut client = self.client(id);
        self.sim.spawn(id, async move {
            client.read::<SafeGuess>(Polls::ALL).await.expect("a read ends well");
        });
        self.sim.poll_once(id);
    }

    /// Lets a client start to read, and freeze the register if the key must be relocated. Returns
    /// whether it did.
    fn read_or_freeze(&mut self, id: usize) -> Rc<Cell<Option<bool>>> {
        let (mut client, froze) = (self.client(id), Rc::<Cell<_>>::default());
        let outcome = Rc::clone(&froze);
        self.sim.spawn(id, async move {
            outcome.set(Some(client.read_or_freeze::<SafeGuess>().await));
        });
        self.sim.poll_once(id);
        froze
    }

    fn delete(&mut self, id: usize) {
        let mut client = self.client(id);
        self.sim.spawn(id, async move {
            client.delete::<SafeGuess>(Polls::ALL).await.expect("a delete ends well");
        });
        self.sim.poll_once(id);
    }

    /// Does roundtrips of one client to these nodes until its operations end.
    fn finish(&mut self, id: usize, nodes: &[NodeId]) {
        assert!(self.sim.finish(id, nodes), "client {id} does not end");
    }

    /// Does roundtrips of one client to these nodes until it has the lock of its write to `buffer`
    /// there.
    fn lock(&mut self, id: usize, buffer: Pointer, nodes: &[NodeId]) {
        let lock = Address(buffer.0 * 8).plus(buffer::LOCK);
        for _ in 0..10 {
            self.sim.roundtrip(id, nodes);
            if nodes.iter().all(|&node| self.sim.word(node, lock) != 0) {
                return;
            }
        }
        panic!("client {id} does not lock its write");
    }

    /// Does roundtrips of one client to this node until its slot there has grown.
    fn raise(&mut self, id: usize, node: NodeId) {
        let before = self.slot(id, node);
        for _ in 0..10 {
            self.sim.roundtrip(id, &[node]);
            if self.slot(id, node) > before {
                return;
            }
        }
        panic!("client {id} does not write");
    }

    /// The reader `r` returns 100, which is `p`'s guess. Then `q`'s write with a larger stamp
    /// completes, and only then `p` continues. Its value stays overwritten.
    fn guess_is_returned_and_overwritten(&mut self, (q, p, r): (usize, usize, usize)) {
        self.finish(r, &[N0, N1]);
        assert_eq!(self.answer(1), Some(Answer::Value(Some(100))));
        self.write(q, &[200]);
        self.finish(q, &[N0, N1]);
        self.finish(p, &[N0, N1]);
        self.read(r);
        self.finish(r, &[N0, N1]);
        assert_eq!(self.answer(3), Some(Answer::Value(Some(200))));
        self.is_linearizable();
    }

    /// Lets a client wait until it finds nodes late.
    fn wait(&mut self, id: usize) {
        for _ in 0..4 * LATE / 10 {
            self.sim.poll_once(id);
        }
    }

    /// Returns the answer of operation number `index`, counted from 0.
    fn answer(&self, index: usize) -> Option<Answer> {
        self.recorder.operations()[index].answered.map(|(_, answer)| answer)
    }

    fn is_linearizable(&self) {
        let history = self.recorder.operations();
        if let Err(rejected) = check_key(&history, Some(FIRST_VALUE), BUDGET) {
            panic!("{rejected}");
        }
    }

    fn slot(&self, id: usize, node: NodeId) -> u64 {
        self.sim.word(node, place(self.home).at(node, self.nodes).plus(register::SLOTS_AT + id))
    }
}

/// A reader that loses its lock must find something newer next time. Here what the writer lost to
/// is on one node. Its writer dies, then the other writer (which holds the lock), then that node.
/// Without the read before the lock, the reader loops for ever.
#[test]
fn what_a_write_lost_to_is_stable_before_it_locks() {
    let (p, q, r) = (0, 1, 2);
    let mut story = Story::new(2, &ALL);
    // The writer that is behind takes the lock, the other is ahead.
    story.sim.set_clock(q, 100_000, 0);
    story.write(q, &[200]);
    story.sim.take_all(q, N2);
    story.sim.lose_chains(q, N0);
    story.sim.crash_client(q);
    story.write(p, &[100]);
    let lock = |story: &Story, node| story.sim.word(node, Address(64 * 8).plus(buffer::LOCK));
    for _ in 0..1000 {
        if lock(&story, N2) != 0 && lock(&story, N0) != 0 {
            break;
        }
        story.sim.deliver(p, N2);
        story.sim.deliver(p, N0);
        story.sim.poll_once(p);
        story.sim.take_all(p, N2);
        story.sim.take_all(p, N0);
    }
    assert!(lock(&story, N2) != 0 && lock(&story, N0) != 0, "the lock is held");
    story.sim.crash_client(p);
    story.sim.crash_node(N2, true);
    story.read(r);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(2), Some(Answer::Value(Some(200))));
    story.is_linearizable();
}

/// Two concurrent writers raise their slots before either READs all of them. So the writer that is
/// behind sees the other's stamp, and is not done in one roundtrip.
#[test]
fn of_two_writers_one_sees_the_other() {
    let (p, q) = (1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    story.write(q, &[200]);
    for node in [N0, N1] {
        // All but the last verb of each chain.
        story.sim.take_verbs(p, node, 2);
        story.sim.take_verbs(q, node, 2);
    }
    story.sim.roundtrip(q, &[N0, N1]);
    assert_eq!(story.answer(1), Some(Answer::Done), "nothing is above its guess");
    story.sim.roundtrip(p, &[N0, N1]);
    assert_eq!(story.answer(0), None, "it met the other's guess");
    story.finish(p, &[N0, N1]);
    story.is_linearizable();
}

/// The register's creation arrives late at a node, after a write. It must not erase the write's
/// stamp, which a majority was to hold. Before it arrived, that node had no vote.
#[test]
fn a_late_created_part_does_not_erase_what_came_before() {
    // Writers that share the first slot with the creation, and that do not.
    for writer in [0, 1] {
        let mut story = Story::new(1, &[N0, N1]);
        story.write(writer, &[100]);
        story.sim.take_all(writer, N2);
        story.sim.deliver(writer, N2);
        story.sim.take_all(writer, N1);
        story.sim.deliver(writer, N1);
        story.sim.poll_once(writer);
        assert_eq!(story.answer(0), None, "node 2 had no vote");
        story.finish(writer, &[N0, N1, N2]);
        assert_eq!(story.answer(0), Some(Answer::Done));
        let stamp = story.slot(writer, N2);
        assert_ne!(stamp, 0, "the write's chain ran there all the same");
        story.sim.take_all(CREATOR, N2);
        assert_eq!(story.slot(writer, N2), stamp, "a late birth erases no stamp");
        story.sim.crash_node(N1, false);
        story.read(2);
        story.finish(2, &[N0, N2]);
        assert_eq!(story.answer(1), Some(Answer::Value(Some(100))));
    }
}

/// The memory of a deleted register is reused for a new one, whose creation has not reached node 2
/// yet. What is there does not belong to the new register.
#[test]
fn another_life_of_the_memory_has_no_vote() {
    let mut story = Story::new(0, &[N0, N1]);
    story.sim.lose_chains(CREATOR, N2);
    let at = place(0).at(N2, 3);
    story.sim.set_word(N2, at.plus(1), !1);
    let other = Identity { created_at: 77, number: WriteNumber(3) };
    let image = other.encode().into_iter().chain(header(other.number, KEY));
    for (word, value) in image.chain([u64::from_le_bytes(*KEY)]).enumerate() {
        story.sim.set_word(N2, at.plus(register::IDENTITY + word), value);
    }
    story.sim.freeze_node(N1);
    story.read(1);
    for _ in 0..1000 {
        story.sim.roundtrip(1, &[N0, N2]);
        assert_eq!(story.answer(0), None, "node 2 has no vote");
        if story.sim.on_their_way(1, N1) == 2 {
            break;
        }
    }
    story.sim.thaw_node(N1);
    story.sim.roundtrip(1, &[N1]);
    story.finish(1, &[N0, N1]);
    assert_eq!(story.answer(0), Some(Answer::Value(Some(FIRST_VALUE))));
}

/// A replica's header is being written: its identity is there, its key is not. That is not another
/// key.
#[test]
fn a_torn_header_is_not_another_key() {
    let mut story = Story::new(2, &[N0, N1]);
    story.sim.take_words(CREATOR, N2, &[1, 0]);
    story.read(0);
    story.finish(0, &[N2, N0]);
    assert_eq!(story.answer(0), Some(Answer::Value(Some(FIRST_VALUE))));
}

/// The register has reached two nodes when one of them dies. The third must be backfilled, or the
/// register is lost to a minority's failure.
#[test]
fn a_register_outlives_a_replica_that_dies_before_it_reached_all() {
    for silent in [true, false] {
        let mut story = Story::new(0, &[N0, N1]);
        story.sim.lose_chains(CREATOR, N2);
        story.sim.crash_node(N1, silent);
        story.read(1);
        story.finish(1, &[N0, N2]);
        assert_eq!(story.answer(0), Some(Answer::Value(Some(FIRST_VALUE))));
        story.write(2, &[100]);
        story.finish(2, &[N0, N2]);
        story.read(1);
        story.finish(1, &[N0, N2]);
        assert_eq!(story.answer(2), Some(Answer::Value(Some(100))));
    }
}

/// A buffer is reused for a second write of the same register, whose in-place copy is torn: its
/// stamp and its guess's timestamp are there, all else is still the first write's. Only the
/// timestamp distinguishes the two.
#[test]
fn a_torn_in_place_copy_of_a_buffer_used_again_is_noticed() {
    let mut story = Story::new(0, &ALL);
    let mut client = story.client(1);
    story.sim.spawn(1, async move {
        let buffer: Pointer = client.fresh();
        for value in [4, 8] {
            client.write_to::<SafeGuess>(buffer, value, Polls::ALL).await.expect("it is written");
        }
    });
    story.sim.poll_once(1);
    story.sim.roundtrip(1, &[N0, N1]);
    assert_eq!(story.answer(0), Some(Answer::Done));
    // The rest of the first write, and the second, without its in-place copy.
    story.sim.take_verbs(1, N0, 2);
    story.sim.take_all(1, N1);
    story.sim.roundtrip(1, &[N0, N1]);
    assert_eq!(story.answer(1), Some(Answer::Done));
    story.sim.take_words(1, N0, &[buffer::LOCK, buffer::GUESS]);
    story.sim.take_all(1, N1);
    story.sim.lose_chains(1, N0);
    // Another client confirms the write, so that its stamp is verified where the copy is torn.
    for reader in [0, 2] {
        story.read(reader);
        story.finish(reader, &[N0, N1]);
    }
    assert_eq!(story.answer(2), Some(Answer::Value(Some(8))));
    assert_eq!(story.answer(3), Some(Answer::Value(Some(8))));
}

/// A write that finds a delete is refused. A reader saw its guess before. The reader's READ lasts
/// from before the delete until after the writer's next guess, so it sees the second guess and not
/// the delete. The second guess must not count as proof that the first took effect.
#[test]
fn a_refused_write_is_not_proved_by_the_next() {
    let (p, d, r) = (1, 0, 2);
    let mut story = Story::new(0, &ALL);
    story.write(p, &[100, 101]);
    story.sim.take_verbs(p, N0, 2);
    story.read(r);
    // The reader sees the guess, fetches its value, writes it back, and reads again.
    while story.slot(r, N1) == 0 {
        story.sim.roundtrip(r, &[N0, N1]);
        assert_eq!(story.answer(1), None);
        story.sim.take_all(r, N1);
        story.sim.take_all(r, N0);
    }
    story.sim.deliver(r, N0);
    story.sim.deliver(r, N1);
    story.sim.poll_once(r);
    for node in [N0, N1] {
        assert_eq!(story.sim.on_their_way(r, node), 1, "the second look");
        story.sim.take_words(r, node, &[d]);
    }
    story.delete(d);
    story.finish(d, &[N0, N1]);
    assert_eq!(story.answer(2), Some(Answer::Done));
    while story.answer(0).is_none() {
        story.sim.roundtrip(p, &[N0, N1]);
    }
    assert_eq!(story.answer(0), Some(Answer::Refused));
    story.sim.take_all(p, N0);
    story.sim.take_all(p, N1);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(1), Some(Answer::Value(None)));
    story.is_linearizable();
}

/// A reader writes a guess back to a node where its writer has taken the lock meanwhile. If the
/// WRITE touched the lock word, the lock would be free again, and the reader could lock what the
/// writer took back.
#[test]
fn a_write_back_does_not_free_a_lock() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    story.sim.take_verbs(p, N0, 2);
    story.read(r);
    // It reads, and fetches the value; node 0 has the guess and node 1 is to get it.
    story.sim.roundtrip(r, &[N0, N1]);
    story.sim.roundtrip(r, &[N0, N1]);
    assert_eq!((story.sim.on_their_way(r, N0), story.sim.on_their_way(r, N1)), (0, 1));
    assert_eq!(story.slot(r, N1), 0, "the write-back is on its way");
    story.write(q, &[200]);
    story.finish(q, &[N0, N1]);
    let lock = |story: &Story, node| {
        story.sim.word(node, Address((64 + p as u64 * 64) * 8).plus(buffer::LOCK))
    };
    while lock(&story, N0) == 0 || lock(&story, N1) == 0 {
        story.sim.roundtrip(p, &[N0, N1]);
    }
    let locked = lock(&story, N1);
    story.sim.take_all(r, N1);
    assert_ne!(story.slot(r, N1), 0, "it has landed");
    assert_eq!(lock(&story, N1), locked);
    story.finish(r, &[N0, N1]);
    story.finish(p, &[N0, N1]);
    story.is_linearizable();
}

/// A reader determines that a guess stands, and marks it as verified where its value is. A slot of
/// the third node, which the write has not reached, must not name a buffer that is not there.
#[test]
fn a_client_that_confirms_a_guess_names_no_buffer_that_is_missing() {
    let (p, r) = (1, 2);
    let mut story = Story::new(0, &ALL);
    story.write(p, &[100]);
    story.sim.take_verbs(p, N0, 2);
    story.read(r);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(1), Some(Answer::Value(Some(100))));
    ALL.into_iter().for_each(|node| story.sim.take_all(r, node));
    assert!(Stamp(story.slot(r, N0)).is_verified(), "it is confirmed");
    assert_eq!(story.slot(r, N2), 0);
}

/// A write takes its guess back and writes again. Then a reader's write-back of the guess takes
/// effect at a node that has the rewrite already. If the WRITE touched the word for the rewrite's
/// timestamp, the buffer there would no longer be the rewrite's, and the rewrite would be lost with
/// the other node.
#[test]
fn a_write_back_of_a_guess_does_not_undo_its_rewrite() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    story.sim.take_verbs(p, N0, 2);
    story.read(r);
    story.sim.roundtrip(r, &[N0, N1]);
    story.sim.roundtrip(r, &[N0, N1]);
    assert_eq!((story.sim.on_their_way(r, N0), story.sim.on_their_way(r, N1)), (0, 1));
    assert_eq!(story.slot(r, N1), 0, "the write-back is on its way");
    story.write(q, &[200]);
    story.finish(q, &[N0, N1]);
    story.finish(p, &[N0, N1]);
    story.sim.take_all(r, N1);
    assert_ne!(story.slot(r, N1), 0, "it has landed");
    story.sim.crash_node(N0, false);
    story.read(q);
    story.finish(q, &[N1, N2]);
    assert_eq!(story.answer(3), Some(Answer::Value(Some(100))));
    story.is_linearizable();
}

/// A reader has READ node 0 when a write completes, at nodes 0 and 2. Only then another write
/// begins, whose guess is stale, and the reader sees that at node 1. The writer has not taken it
/// back yet, and the reader would win its lock; but then the write that completed before would come
/// after it. A second read sees what completed.
#[test]
fn a_guess_that_is_met_is_looked_at_again() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.read(r);
    story.sim.take_all(r, N0);
    story.write(q, &[200]);
    story.finish(q, &[N0, N2]);
    story.sim.take_all(q, N0);
    story.sim.take_all(q, N2);
    assert_eq!(story.answer(1), Some(Answer::Done));
    story.write(p, &[100]);
    story.sim.take_all(p, N1);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(0), Some(Answer::Value(Some(200))));
    story.finish(p, &[N0, N1]);
    story.read(r);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(3), Some(Answer::Value(Some(100))));
    story.is_linearizable();
}

/// A reader sees a guess twice and returns it. Then a write with a larger stamp completes. Then the
/// first writer's chains READ the slots, and it finds its guess stale. It must not write again what
/// was already read and overwritten: the reader's lock prevents that.
#[test]
fn a_guess_that_was_returned_is_not_written_again() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    for node in [N0, N1] {
        story.sim.take_verbs(p, node, 2);
    }
    story.read(r);
    story.guess_is_returned_and_overwritten((q, p, r));
}

/// Likewise, but the reader's lock reaches only one of its nodes, and the writer gets answers from
/// the others. A READ lock of fewer than a majority would leave it enough words for a WRITE lock.
#[test]
fn a_guess_is_locked_to_be_returned_at_a_majority() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    for node in [N0, N1] {
        story.sim.take_verbs(p, node, 2);
    }
    story.read(r);
    // Two READs for the guess, and one for its buffer.
    for _ in 0..3 {
        story.sim.roundtrip(r, &[N0, N1]);
    }
    let lock = Address(story.client(p).fresh().0 * 8).plus(buffer::LOCK);
    assert!(ALL.iter().all(|&node| story.sim.word(node, lock) == 0));
    story.sim.roundtrip(r, &[N0]);
    assert!(story.sim.word(N0, lock) != 0 && story.sim.word(N1, lock) == 0);
    story.finish(r, &[N0, N2]);
    assert_eq!(story.answer(1), Some(Answer::Value(Some(100))));
    story.write(q, &[200]);
    story.finish(q, &[N0, N1]);
    story.wait(p);
    story.finish(p, &[N1, N2]);
    story.read(r);
    story.finish(r, &[N1, N2]);
    assert_eq!(story.answer(3), Some(Answer::Value(Some(200))));
    story.is_linearizable();
}

/// The same, but the reader finds the write's buffer at a node where all of it has landed except
/// its number: the number there is of an earlier write, or of none. A lock for that would not keep
/// the writer from writing again. Nor may the number be spread by writing the buffer back.
#[test]
fn a_torn_number_is_not_locked_for_the_writes_own() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(p, &[100]);
    story.sim.take_verbs(p, N0, 2);
    // The number is the first word of the WRITE.
    let words = buffer::HEADER_WORDS - buffer::NUMBER + value(100).len() / 8;
    story.sim.take_words(p, N1, &(1..words).collect::<Vec<_>>());
    story.read(r);
    story.sim.roundtrip(r, &[N0, N1]);
    // The node that has the write is late, so the reader asks another one for the buffer.
    story.wait(r);
    assert_eq!(story.sim.on_their_way(r, N1), 1, "the READ of the buffer");
    story.sim.roundtrip(r, &[N1]);
    story.guess_is_returned_and_overwritten((q, p, r));
}

/// A buffer is reused for a second write, which is written again. One word of that rewrite has
/// landed at a node where all else is still the first write's. A client that asks that node for the
/// rewrite must not take the first write's value for it.
#[test]
fn a_rewrite_is_not_put_together_with_a_former_life() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    let mut client = story.client(p);
    let buffer: Pointer = client.fresh();
    story.sim.spawn(p, async move {
        for value in [4, 8] {
            client.write_to::<SafeGuess>(buffer, value, Polls::ALL).await.expect("it is written");
        }
    });
    story.sim.poll_once(p);
    story.sim.roundtrip(p, &[N0, N1]);
    assert_eq!(story.answer(0), Some(Answer::Done));
    // The first write was at the third node, too.
    for word in buffer::REWRITE..buffer::HEADER_WORDS + value(4).len() / 8 {
        let at = Address(buffer.0 * 8).plus(word);
        story.sim.set_word(N2, at, story.sim.word(N0, at));
    }
    story.write(q, &[200]);
    story.finish(q, &[N0, N1]);
    // The second write's guess is stale; it has its lock, and is written again.
    story.lock(p, buffer, &[N0, N1]);
    story.raise(p, N0);
    story.wait(p);
    assert_eq!(story.sim.on_their_way(p, N2), 1, "the rewrite");
    story.sim.take_words(p, N2, &[0]);
    story.read(r);
    story.sim.roundtrip(r, &[N0, N1]);
    story.wait(r);
    assert_eq!(story.sim.on_their_way(r, N2), 1, "the READ of the buffer");
    story.sim.roundtrip(r, &[N1, N2]);
    story.finish(r, &ALL);
    // No majority has the rewrite yet.
    assert_eq!(story.answer(3), Some(Answer::Value(Some(200))));
    story.finish(p, &ALL);
    story.read(r);
    story.finish(r, &ALL);
    assert_eq!(story.answer(4), Some(Answer::Value(Some(8))));
    story.is_linearizable();
}

/// A write takes its guess back and writes again, while a chain of the guess to a node is pending.
/// A reader brings the rewrite there; only then the guess's chain takes effect. Once the other node
/// that has the rewrite and the writer are gone, that node has the last one.
#[test]
fn a_late_guess_does_not_undo_its_rewrite() {
    let (q, p, r) = (0, 1, 2);
    let mut story = Story::new(0, &ALL);
    story.sim.set_clock(q, 100_000, 0);
    story.write(q, &[200]);
    story.finish(q, &[N0, N1]);
    story.write(p, &[100]);
    story.sim.roundtrip(p, &[N0]);
    story.wait(p);
    assert_eq!(story.sim.on_their_way(p, N1), 1, "the guess");
    // Guess, read and lock are at the other two.
    story.lock(p, story.client(p).fresh(), &[N0, N2]);
    story.raise(p, N0);
    story.sim.lose_chains(p, N2);
    story.read(r);
    story.finish(r, &[N0, N1]);
    assert_eq!(story.answer(2), Some(Answer::Value(Some(100))));
    story.sim.take_chains(p, N1, 1);
    story.sim.crash_client(p);
    story.sim.crash_node(N0, false);
    story.read(q);
    story.finish(q, &[N1, N2]);
    assert_eq!(story.answer(3), Some(Answer::Value(Some(100))));
    story.is_linearizable();
}

/// Two writers guess the same timestamp; only their pointers distinguish their stamps. The second
/// one's in-place copy is torn: its stamp is there, checksum and value are still the first one's.
#[test]
fn a_torn_in_place_copy_under_an_equal_timestamp_is_noticed() {
    let (p, q) = (0, 1);
    let mut story = Story::new(0, &ALL);
    for id in [p, q] {
        // Both clocks stand still, at the same time.
        story.sim.set_clock(id, 64_000, -1_000_000);
    }
    story.write(p, &[4]);
    story.write(q, &[8]);
    let timestamp = |story: &Story, id| FORMAT.timestamp(Stamp(story.slot(id, N0)));
    story.finish(p, &[N0, N1]);
    story.sim.take_all(p, N0);
    story.sim.take_all(p, N1);
    assert_eq!(story.answer(0), Some(Answer::Done));
    story.sim.roundtrip(q, &[N0, N1]);
    assert_eq!(story.answer(1), Some(Answer::Done));
    assert_eq!(timestamp(&story, p), timestamp(&story, q), "the story needs that");
    story.sim.take_words(q, N0, &[0]);
    story.sim.take_all(q, N1);
    story.sim.lose_chains(q, N0);
    // Another client confirms the write, so that its stamp is verified where the copy is torn.
    for (index, reader) in [p, 2].into_iter().enumerate() {
        story.read(reader);
        story.finish(reader, &[N0, N1]);
        assert_eq!(story.answer(2 + index), Some(Answer::Value(Some(8))));
    }
}

/// A buffer at the home node is damaged: its checksum does not match. Another replica's is used,
/// and the damaged one repaired.
#[test]
fn a_damaged_buffer_is_passed_over_and_repaired() {
    let mut story = Story::new(0, &ALL);
    // Five words, more than fit in place.
    story.write(1, &[102]);
    story.finish(1, &[N0, N1]);
    story.sim.take_all(1, N0);
    story.sim.take_all(1, N1);
    let value = Address((64 + 64) * 8).plus(buffer::HEADER_WORDS);
    let whole = story.sim.word(N0, value);
    assert_eq!(whole, 102);
    story.sim.set_word(N0, value, 7);
    story.read(2);
    story.finish(2, &ALL);
    assert_eq!(story.answer(1), Some(Answer::Value(Some(102))));
    story.sim.drain();
    assert_eq!(story.sim.word(N0, value), whole);
}

/// Of five nodes, two die: the only one that has a guess, while a reader fetches its value there,
/// and one more, when the reader asks all others. No node that answers has the value. The reader
/// must not wait for the second one to die, but read again, where the guess is gone.
#[test]
fn a_value_whose_holder_died_is_not_waited_for_at_another_that_died() {
    let (p, r) = (1, 2);
    let five = [N0, N1, N2, NodeId(3), NodeId(4)];
    let mut story = Story::of(5, (0, Held::Everywhere), &five);
    story.write(p, &[100]);
    story.sim.take_verbs(p, N0, 2);
    assert_ne!(story.slot(p, N0), 0, "the guess is there");
    for node in five {
        story.sim.lose_chains(p, node);
    }
    story.sim.crash_client(p);
    story.read(r);
    story.sim.roundtrip(r, &[N0, N1, N2]);
    assert_eq!(story.sim.on_their_way(r, N0), 1, "the READ of the value");
    story.sim.crash_node(N0, true);
    story.sim.crash_node(N1, true);
    story.finish(r, &[N2, NodeId(3), NodeId(4)]);
    assert_eq!(story.answer(1), Some(Answer::Value(Some(FIRST_VALUE))));
    story.is_linearizable();
}

/// No node fails, but all answer a reader that fetches a value only after it finds them late. All
/// of them have the value. The reader must wait for it, and neither read again and again nor take
/// their memory for damaged.
#[test]
fn a_value_is_waited_for_at_nodes_that_are_merely_late() {
    let r = 2;
    let mut story = Story::new(0, &ALL);
    story.read(r);
    story.sim.roundtrip(r, &ALL);
    assert_eq!(story.sim.on_their_way(r, N0), 1, "the READ of the value");
    // More often than a read restarts.
    for _ in 0..20 {
        story.wait(r);
        story.sim.roundtrip(r, &ALL);
    }
    story.finish(r, &ALL);
    assert_eq!(story.answer(0), Some(Answer::Value(Some(FIRST_VALUE))));
}

/// A scenario leaves nothing behind that the scheduler could not complete.
#[test]
fn a_story_can_be_left_to_chance() {
    let mut story = Story::new(0, &[N0, N1]);
    story.write(0, &[1, 2]);
    story.write(1, &[11]);
    story.read(2);
    assert_eq!(story.sim.run(100_000), Outcome::Done);
    story.is_linearizable();
}

/// A CAS fails at node 1 because another client shares the slot, and before the READ after it a
/// relocating client freezes that slot. The write is complete at the other nodes; the next one must
/// not thaw the slot.
#[test]
fn a_frozen_slot_stays_frozen() {
    let p = 1;
    let mut story = Story::new(0, &ALL);
    story.write(p, &[100, 200, 300]);
    story.sim.roundtrip(p, &[N0, N1]);
    assert_eq!(story.answer(0), Some(Answer::Done));
    // The deferred chains of the first write.
    while story.sim.on_their_way(p, N1) > 1 {
        story.sim.take_chains(p, N1, 1);
    }
    let slot = place(story.home).at(N1, story.nodes).plus(register::SLOTS_AT + p);
    let held = Stamp(story.sim.word(N1, slot));
    let later = |ticks| {
        let timestamp = Timestamp(FORMAT.timestamp(held).0 + ticks);
        FORMAT.stamp(timestamp, FORMAT.pointer(held), StampFlags::empty())
    };
    // No node answers until all three are asked.
    story.sim.set_clock(p, 1 << 20, 0);
    while story.sim.on_their_way(p, N2) == 0 {
        story.sim.poll_once(p);
    }
    assert_ne!(held, later(0));
    story.sim.set_word(N1, slot, later(0).0);
    story.sim.take_verbs(p, N1, 2);
    let frozen = later(1 << 12).frozen();
    story.sim.set_word(N1, slot, frozen.0);
    story.sim.take_all(p, N1);
    story.sim.deliver(p, N1);
    story.sim.poll_once(p);
    for node in [N0, N2] {
        story.sim.take_all(p, node);
        story.sim.deliver(p, node);
    }
    story.sim.poll_once(p);
    assert_eq!(story.answer(1), Some(Answer::Done));
    assert!(story.sim.on_their_way(p, N1) > 1, "the third write is, too");
    story.sim.take_all(p, N1);
    assert_eq!(story.slot(p, N1), frozen.0);
}

/// A relocating client has frozen a client's own slots at two nodes, and no others yet. The
/// client's write must not count as complete: its stamp is nowhere.
#[test]
fn a_write_whose_slots_are_frozen_is_not_done() {
    let p = 1;
    let mut story = Story::new(0, &ALL);
    for node in [N0, N1] {
        let slot = place(story.home).at(node, story.nodes).plus(register::SLOTS_AT + p);
        story.sim.set_word(node, slot, Stamp::EMPTY.frozen().0);
    }
    let mut client = story.client(p);
    story.sim.spawn(p, async move {
        let number = client.group.number().expect("numbers last");
        let write = Write { number, buffer: client.fresh(), value: &value(100) };
        let written = SafeGuess::write(&client.group, &mut client.register, write).await;
        assert!(matches!(written, Ok(Written::Moved(_))), "{written:?}");
    });
    story.finish(p, &[N0, N1]);
}

/// Returns the home, the next node, and the node that buffers leave out, of a register with its
/// home at `home`.
fn ranks(home: u8) -> [NodeId; 3] {
    [0, 1, 2].map(|rank| NodeId((home + rank) % 3))
}

/// A complete write is at both nodes that hold its buffer: one of them is in every majority, and
/// nothing has to be written back.
#[test]
fn a_complete_write_without_one_node_is_read_at_every_majority() {
    for home in 0..3 {
        let mut story = Story::all_but_one(home);
        let [first, second, without] = ranks(home);
        story.write(1, &[100, 101]);
        story.finish(1, &[first, second]);
        for majority in [[first, second], [first, without], [second, without]] {
            let froze = story.read_or_freeze(2);
            story.finish(2, &majority);
            assert_eq!(froze.get(), Some(false), "{majority:?}");
        }
        let answers = (2..5).map(|index| story.answer(index));
        answers.for_each(|answer| assert_eq!(answer, Some(Answer::Value(Some(101)))));
    }
}

/// A guess is at one of the two nodes that hold its buffer, and its writer is gone. A client that
/// gets no answer from the other one cannot complete it, and cannot tell whether a client has
/// returned it: the key is relocated, with the guess.
#[test]
fn a_guess_at_one_holder_moves_where_the_other_is_silent() {
    for (home, rank) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let mut story = Story::all_but_one(home);
        let (holder, without) = (ranks(home)[rank], ranks(home)[2]);
        story.write(1, &[100]);
        story.sim.take_all(1, holder);
        ALL.into_iter().for_each(|node| story.sim.lose_chains(1, node));
        story.sim.crash_client(1);
        let froze = story.read_or_freeze(2);
        story.finish(2, &[holder, without]);
        assert_eq!(froze.get(), Some(true));
        assert_eq!(story.answer(2), Some(Answer::Value(Some(100))));
        story.is_linearizable();
    }
}

/// The node that does not hold a buffer never shows its stamp: nothing is written there, not even
/// by a client that writes a guess back to the other holder.
#[test]
fn the_node_that_does_without_shows_no_stamp() {
    for home in 0..3 {
        let mut story = Story::all_but_one(home);
        let [first, second, without] = ranks(home);
        story.write(1, &[100]);
        story.sim.take_all(1, first);
        ALL.into_iter().for_each(|node| story.sim.lose_chains(1, node));
        story.sim.crash_client(1);
        let froze = story.read_or_freeze(2);
        story.finish(2, &ALL);
        assert_eq!((froze.get(), story.answer(1)), (Some(false), Some(Answer::Value(Some(100)))));
        let created = story.slot(CREATOR, without);
        let shows =
            |story: &Story, node| [1, 2].into_iter().any(|id| story.slot(id, node) > created);
        assert_eq!([first, second, without].map(|node| shows(&story, node)), [true, true, false]);
        story.is_linearizable();
    }
}

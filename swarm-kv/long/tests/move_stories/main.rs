//! Scripted schedules of keys that move to new registers, each a scenario.
//!
//! A client whose clock is far ahead of a register's creation finds the register's timestamps
//! exhausted, and moves its key.

mod cells;
mod full;
mod majorities;
mod modify;

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::history::{Answer, BUDGET, Call, Recorder, check};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::{Setup, Sim, seeds};
use swarm_kv_long::store_sim_common::{self, GaveUp, Line, Story, of_six_keys, options};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Bytes of each node's memory. The simulator stores only what is accessed.
const CAPACITY: u64 = 8 << 20;
/// A client whose operation is stuck, one that reads, and one whose guesses are a little ahead.
const STUCK: usize = 0;
const READER: usize = 1;
const RIVAL: usize = 2;
/// Two clients that move what the others write; the second also moves what the first does.
const MOVES: usize = 3;
const MOVES_AGAIN: usize = 4;
const CLIENTS: usize = 5;
/// Readings of the clocks. The timestamps of this pool end 2^51 nanoseconds after a register's
/// creation.
const CLOCKS: [u64; CLIENTS] = [10_000, 10_000, 1_000_000, 1 << 53, 1 << 55];
/// Keys that only fill the bucket have numbers from here on.
const FILLERS: u64 = 100;
/// A key with which a client gets memory of its own.
const WARM: u64 = 200;
/// More roundtrips than any operation here takes.
const ENOUGH: usize = 300;
/// Nanoseconds after which a client asks a third node.
const LATE: u64 = 2_000;

thread_local! {
    /// Whether read-modify-writes make cells of keys.
    static ARE_CELLS: Cell<bool> = const { Cell::new(false) };
}

/// A client, a key, and its operation.
type Action = (usize, u64, Call);

/// One bucket, of six keys at most, and enough memory for everything.
fn geometry() -> Geometry {
    let geometry = Geometry::new(3, CAPACITY, 16, 7).expect("a small geometry");
    let geometry = of_six_keys(geometry).with_keyed_cells(ARE_CELLS.get());
    Geometry { bucket_bits: 0, ..geometry }
}

/// Runs stories in a pool without keyed cells, and in one with them.
fn with_and_without_cells(stories: impl Fn()) {
    for are_cells in [false, true] {
        ARE_CELLS.set(are_cells);
        stories();
    }
}

/// Three nodes, five clients, and the recorded operations.
struct Play {
    sim: Sim,
    recorder: Recorder,
    hung_up: Rc<Cell<bool>>,
    stories: Vec<Rc<Story>>,
}

impl Drop for Play {
    /// No client leaves properly: some are dead.
    fn drop(&mut self) {
        self.hung_up.set(true);
    }
}

impl Play {
    /// Key 0 exists, and all clients except the last two have its location cached. No node is ever
    /// late.
    fn new() -> Self {
        Self::late_after(1 << 55)
    }

    /// The same, with nodes late after `late` nanoseconds.
    fn late_after(late: u64) -> Self {
        let mut play = Self::of_strangers(late, geometry());
        for id in 0..CLIENTS {
            play.warm(id);
        }
        play.all(&[(RIVAL, WARM, Call::Insert(801)), (RIVAL, 0, Call::Insert(805))], &NODES);
        play.all(&[STUCK, READER].map(|id| (id, 0, Call::Get)), &NODES);
        play
    }

    /// Clients that have done nothing yet, and an empty pool.
    fn of_strangers(late: u64, geometry: Geometry) -> Self {
        let sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(1, 3, CLIENTS) });
        let (recorder, hung_up) = (Recorder::new(), Rc::<Cell<bool>>::default());
        let story = |(id, now): (usize, u64)| {
            let line = Line { inner: sim.fabric(id), hung_up: Rc::clone(&hung_up), members: None };
            let (identity, timeouts) = ((id, id, id as u64 + 1), (late, 1 << 60));
            let connection = (line, Rc::new(LoneClock::new(now)) as _);
            Rc::new(Story::new(connection, geometry, identity, options(timeouts), &recorder))
        };
        let stories = CLOCKS.into_iter().enumerate().map(story).collect();
        Self { sim, recorder, hung_up, stories }
    }

    /// A client gets memory of its own, for all that a move takes.
    fn warm(&mut self, id: usize) {
        self.all(&[(id, WARM, Call::Insert(801)), (id, WARM, Call::Delete)], &NODES);
    }

    /// A client begins an operation.
    fn begin(&mut self, (id, key, call): Action) {
        let story = Rc::clone(&self.stories[id]);
        self.sim.spawn(id, async move {
            let outcome = story.call(key, call, None).await;
            assert!(outcome.is_ok(), "client {id}: {call:?} of key {key}: {outcome:?}");
        });
        self.sim.poll_once(id);
    }

    /// The same, for an operation that may find no memory, or whose outcome may stay unknown.
    /// Returns its result.
    fn begin_in_a_full_pool(
        &mut self,
        (id, key, call): Action,
    ) -> Rc<Cell<Option<Result<(), GaveUp>>>> {
        let (story, outcome) = (Rc::clone(&self.stories[id]), Rc::<Cell<_>>::default());
        let result = Rc::clone(&outcome);
        self.sim.spawn(id, async move {
            let answer = story.call(key, call, None).await;
            let refused = answer.is_err_and(|gave_up| gave_up.shortage().is_some());
            assert!(answer.is_ok() || refused, "client {id}: {call:?} of key {key}: {answer:?}");
            result.set(Some(answer));
        });
        self.sim.poll_once(id);
        outcome
    }

    /// Runs these operations one after the other; only these nodes answer.
    fn all(&mut self, deeds: &[Action], nodes: &[NodeId]) {
        for &action in deeds {
            self.begin(action);
            assert!(self.sim.finish(action.0, nodes), "{action:?} does not end");
        }
    }

    /// Returns the last operation's answer.
    fn last(&self) -> Option<Answer> {
        self.recorder.operations().last()?.answered.map(|(_, answer)| answer)
    }

    /// Returns how often keys moved.
    fn moves(&self) -> u64 {
        self.stories.iter().map(|story| story.client.counters().moved).sum()
    }

    fn is_linearizable(&self, what: impl std::fmt::Debug) {
        let history = self.recorder.operations();
        if let Err(wrong) = check(&history, |_| None, BUDGET) {
            let line = |op: &swarm_core::history::Operation| format!("key {}: {op}\n", op.key);
            panic!("{what:?}: {wrong}\n{}", history.iter().map(line).collect::<String>());
        }
    }
}

/// Returns each node, and the other two.
fn apart() -> impl Iterator<Item = (NodeId, Vec<NodeId>)> {
    let others = |one| NODES.into_iter().filter(move |&node| node != one).collect();
    NODES.into_iter().map(move |one| (one, others(one)))
}

/// Returns none of the nodes, some of them, all.
fn some_nodes() -> impl Iterator<Item = Vec<NodeId>> {
    let chosen = |set: u32| NODES.into_iter().filter(move |node| set >> node.0 & 1 != 0).collect();
    (0..1 << NODES.len()).map(chosen)
}

/// Runs `most` roundtrips of a client to these nodes, or fewer if its operation ends.
fn rounds(play: &mut Play, id: usize, most: usize, nodes: &[NodeId]) {
    (0..most).for_each(|_| play.sim.roundtrip(id, nodes));
}

/// Runs as many roundtrips of a client to these nodes as bring `most` answers, or fewer if its
/// operation ends. After each it also runs those in which the client only waits for late nodes,
/// until it asks one of them again.
fn answers(play: &mut Play, id: usize, most: usize, nodes: &[NodeId]) {
    for _ in 0..most {
        play.sim.roundtrip(id, nodes);
        let waits = |play: &Play| nodes.iter().all(|&node| play.sim.on_their_way(id, node) == 0);
        for _ in 0..ENOUGH {
            if play.sim.tasks(id) == 0 || !waits(play) {
                break;
            }
            play.sim.roundtrip(id, nodes);
        }
    }
}

/// Repeats with more and more roundtrips before the turn, until an operation is over by then.
fn until_over(over: impl FnMut(usize) -> bool) {
    let over = seeds::until_over(0..ENOUGH, over);
    assert!(over.expect("it ends") > 0, "it takes some roundtrips");
}

fn ends(play: &mut Play, id: usize, nodes: &[NodeId]) {
    assert!(play.sim.finish(id, nodes), "client {id} does not end");
}

/// A client dies, and its chains in flight are lost.
fn dies(play: &mut Play, id: usize) {
    NODES.into_iter().for_each(|node| play.sim.lose_chains(id, node));
    play.sim.crash_client(id);
}

/// A client is stuck in an operation: `turn` roundtrips are over, and the chains that it posted
/// then have executed at the nodes of `lands` only. The others do their operations, `first` before
/// the client continues at all. Then it continues. Returns false if it was over before.
fn is_stuck(call: Call, turn: usize, lands: &[NodeId], first: &[Action], deeds: &[Action]) -> bool {
    let mut play = Play::new();
    play.begin((STUCK, 0, call));
    play.all(first, &NODES);
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    play.all(deeds, &NODES);
    ends(&mut play, STUCK, &NODES);
    play.all(&[(READER, 0, Call::Get), (MOVES_AGAIN, 0, Call::Get)], &NODES);
    play.is_linearizable((call, turn, lands, first, deeds));
    true
}

/// Stuck at every roundtrip of every operation, with its chains executed at some nodes.
fn stuck_anywhere(deeds: &[Action]) {
    let rival: &[Action] = &[(RIVAL, 0, Call::Update(13))];
    for call in [Call::Update(1), Call::Put(1), Call::Delete, Call::Insert(1), Call::Get] {
        for first in [&[], rival] {
            for lands in some_nodes() {
                until_over(|n| !is_stuck(call, n, &lands, first, deeds));
            }
        }
    }
}

/// A client's update is stuck, with its guess at the nodes of `lands`. Another client moves the key; after
/// `pause` roundtrips of that, a reader reads, which may find the update in what the move took along.
/// Then the others do their operations, and the update continues: it must not be written again.
/// Returns whether the move was over before the read, and whether the read returned the update from
/// where the key had moved to: no lock shows that to the writer.
fn is_stuck_behind(pause: usize, lands: &[NodeId], deeds: &[Action]) -> (bool, bool) {
    let mut play = Play::new();
    // It has memory for a value of that length: the first that the update posts is its guess.
    play.all(&[(STUCK, 0, Call::Update(5))], &NODES);
    play.begin((STUCK, 0, Call::Update(1)));
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    play.begin(MOVE);
    rounds(&mut play, MOVES, pause, &NODES);
    let over = play.sim.tasks(MOVES) == 0;
    play.all(&[(READER, 0, Call::Get)], &NODES);
    let returned = play.moves() == 1 && play.last() == Some(Answer::Value(Some(1)));
    ends(&mut play, MOVES, &NODES);
    play.all(deeds, &NODES);
    ends(&mut play, STUCK, &NODES);
    play.all(&[(READER, 0, Call::Get), (MOVES_AGAIN, 0, Call::Get)], &NODES);
    play.is_linearizable((pause, lands, deeds));
    (over, returned)
}

/// Whatever happens after a move, a write that it took along is not written again.
fn stuck_behind(deeds: &[Action]) {
    let mut returned = 0;
    for lands in some_nodes().skip(1) {
        until_over(|pause| {
            let (over, read) = is_stuck_behind(pause, &lands, deeds);
            returned += usize::from(read);
            over
        });
    }
    assert!(returned > 0, "{deeds:?}: no move took the update along before it was read");
}

const MOVE: Action = (MOVES, 0, Call::Update(21));
const MOVE_AGAIN: Action = (MOVES_AGAIN, 0, Call::Update(25));

/// A writer whose guess a reader returned finds its register moved. The guess took effect, before
/// what the move took along: writing it again would make it the latest value again.
#[test]
fn a_guess_that_was_returned_is_not_written_again_after_a_move() {
    stuck_anywhere(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Update(9)), MOVE]);
}

/// No client returned the guess, and the move took a later write along, or this very one.
#[test]
fn a_write_is_in_what_the_move_took_along_or_is_written_again() {
    stuck_anywhere(&[MOVE]);
    stuck_anywhere(&[(RIVAL, 0, Call::Update(9)), MOVE]);
    stuck_anywhere(&[(READER, 0, Call::Get), MOVE, (READER, 0, Call::Get)]);
}

/// The mapped register does not record what happened to the one before the last.
#[test]
fn a_writer_finds_out_over_two_moves() {
    stuck_behind(&[]);
    stuck_behind(&[MOVE_AGAIN]);
    stuck_anywhere(&[MOVE, MOVE_AGAIN]);
    stuck_anywhere(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Update(9)), MOVE, MOVE_AGAIN]);
}

/// Nor would one that was inserted after the key had been deleted, without its link.
#[test]
fn a_writer_finds_out_over_delete_and_insert() {
    let deleted = (MOVES, 0, Call::Delete);
    stuck_behind(&[deleted]);
    stuck_behind(&[deleted, (MOVES, 0, Call::Insert(29))]);
    stuck_behind(&[deleted, (MOVES, 0, Call::Insert(29)), MOVE_AGAIN]);
    stuck_anywhere(&[MOVE, deleted]);
    stuck_anywhere(&[MOVE, deleted, (MOVES, 0, Call::Insert(29))]);
    stuck_anywhere(&[MOVE, deleted, (MOVES, 0, Call::Insert(29)), MOVE_AGAIN]);
    let returned = (READER, 0, Call::Get);
    stuck_anywhere(&[returned, MOVE, deleted, (MOVES, 0, Call::Insert(29)), MOVE_AGAIN]);
}

/// A client moves a key, and is interrupted after `pause` roundtrips by a delete, which gets stuck after
/// `turn` more, with its chains executed at the nodes of `lands`. The move continues, another client
/// finds the key absent and inserts it, and then the delete continues: done again, it would take that
/// value away as well. Returns false if the delete was over before.
fn is_deleted_once(pause: usize, turn: usize, lands: &[NodeId]) -> bool {
    let mut play = Play::new();
    play.begin(MOVE);
    rounds(&mut play, MOVES, pause, &NODES);
    play.begin((STUCK, 0, Call::Delete));
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    ends(&mut play, MOVES, &NODES);
    play.all(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Insert(29))], &NODES);
    ends(&mut play, STUCK, &NODES);
    play.all(&[(READER, 0, Call::Get), (MOVES_AGAIN, 0, Call::Get)], &NODES);
    play.is_linearizable((pause, turn, lands));
    true
}

#[test]
fn a_delete_that_a_move_took_along_is_not_done_again() {
    for pause in 0..8 {
        for lands in some_nodes() {
            until_over(|turn| !is_deleted_once(pause, turn, &lands));
        }
    }
}

/// A bucket that is full drops deleted keys, but none that a stuck client may need.
#[test]
fn a_writer_finds_out_when_the_bucket_is_full() {
    let mut deeds = vec![(READER, 0, Call::Get), MOVE, (MOVES, 0, Call::Delete)];
    deeds.extend((0..7).map(|n| (MOVES, FILLERS + n, Call::Insert(900 + n))));
    stuck_anywhere(&deeds);
    stuck_behind(&deeds[2..]);
    deeds.push((MOVES, 0, Call::Insert(29)));
    stuck_anywhere(&deeds);
    stuck_behind(&deeds[2..]);
}

/// A client dies while it moves a key: after `turn` roundtrips, with its chains executed at some
/// nodes. The next client continues the move, whatever its operation. Returns false if it was over
/// before.
fn is_left_half_way(turn: usize, lands: &[NodeId], next: Call) -> bool {
    let mut play = Play::new();
    play.begin(MOVE);
    rounds(&mut play, MOVES, turn, &NODES);
    if play.sim.tasks(MOVES) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(MOVES, node));
    dies(&mut play, MOVES);
    play.all(&[(READER, 0, next), (RIVAL, 0, Call::Get), (STUCK, 0, Call::Get)], &NODES);
    play.is_linearizable((turn, lands, next));
    true
}

#[test]
fn a_move_that_was_left_half_way_is_gone_on_with() {
    let next = [Call::Get, Call::Update(9), Call::Put(9), Call::Insert(9), Call::Delete];
    for call in next {
        for lands in [&[], &NODES[..1], &NODES[..2], &NODES] {
            until_over(|turn| !is_left_half_way(turn, lands, call));
        }
    }
}

/// While a client is about to move a key, another one deletes it, and a third one inserts it. What
/// the mover took along must not become current again.
#[test]
fn what_was_deleted_while_it_moved_stays_deleted() {
    let insert = (RIVAL, 0, Call::Insert(29));
    for then in [&[][..], &[insert]] {
        for lands in [&[], &NODES[..1], &NODES[..2], &NODES] {
            until_over(|turn| {
                let mut play = Play::new();
                play.begin(MOVE);
                rounds(&mut play, MOVES, turn, &NODES);
                let over = play.sim.tasks(MOVES) == 0;
                lands.iter().for_each(|&node| play.sim.take_all(MOVES, node));
                play.all(&[(RIVAL, 0, Call::Delete), (READER, 0, Call::Get)], &NODES);
                play.all(then, &NODES);
                play.all(&[(STUCK, 0, Call::Get)], &NODES);
                ends(&mut play, MOVES, &NODES);
                play.all(&[(READER, 0, Call::Get)], &NODES);
                play.is_linearizable((turn, lands, then));
                over
            });
        }
    }
}

/// A delete is at one node when the register is frozen: one mover's majority shows it, and
/// another's does not. The index decides which of them is right.
#[test]
fn two_movers_do_not_both_decide() {
    for at in NODES {
        for away in NODES {
            for away_again in NODES {
                let mut play = Play::new();
                play.begin((STUCK, 0, Call::Delete));
                // It has READ the index; its stamp arrives at one node.
                play.sim.roundtrip(STUCK, &NODES);
                play.sim.take_all(STUCK, at);
                let but = |away: NodeId| NODES.into_iter().filter(move |&node| node != away);
                play.begin(MOVE);
                let up: Vec<_> = but(away).collect();
                for _ in 0..ENOUGH {
                    play.sim.roundtrip(MOVES, &up);
                }
                let up: Vec<_> = but(away_again).collect();
                play.begin(MOVE_AGAIN);
                for _ in 0..ENOUGH {
                    play.sim.roundtrip(MOVES_AGAIN, &up);
                }
                play.all(&[(READER, 0, Call::Get)], &NODES);
                for id in [STUCK, MOVES, MOVES_AGAIN] {
                    ends(&mut play, id, &NODES);
                }
                play.all(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Get)], &NODES);
                play.is_linearizable((at, away, away_again));
            }
        }
    }
}

/// A value that does not fit in place makes its key move to where it does, once.
#[test]
fn a_value_that_outgrew_its_place_is_read_in_one_roundtrip_again() {
    let mut play = Play::new();
    for id in [7, 11, 15, 7, 13, 15] {
        play.all(&[(RIVAL, 0, Call::Update(id)), (RIVAL, 0, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(Some(id))));
        assert_eq!(play.stories[RIVAL].client.last().roundtrips, 1, "a get of {id}");
    }
    assert_eq!(play.moves(), 1);
    play.all(&[(READER, 0, Call::Get), (READER, 0, Call::Get)], &NODES);
    assert_eq!(play.stories[READER].client.last().roundtrips, 1);
}

/// A value grows, and its writer is stuck after `stuck` roundtrips: maybe before it makes room for
/// it in place. Another client moves the key, with no more room than the register had, and inserts
/// keys whose registers lie after the one that it moves the key to. Returns whether the write and
/// the move were over before.
fn lies_before_others(stuck: usize, pause: usize) -> [bool; 2] {
    let mut play = Play::new();
    // Of words that would pass for a delete's stamp.
    play.begin((STUCK, 0, Call::Update(u64::MAX)));
    rounds(&mut play, STUCK, stuck, &NODES);
    play.begin(MOVE);
    rounds(&mut play, MOVES, pause, &NODES);
    let over = [STUCK, MOVES].map(|id| play.sim.tasks(id) == 0);
    // Of one length, so that some are of the moved register's class, and have its home.
    let others = [3, 6, 9, 12];
    others.into_iter().for_each(|key| play.begin((MOVES, key, Call::Insert(809))));
    ends(&mut play, MOVES, &NODES);
    for key in others.into_iter().chain([0]) {
        play.all(&[(READER, key, Call::Get)], &NODES);
    }
    ends(&mut play, STUCK, &NODES);
    play.is_linearizable((stuck, pause));
    over
}

#[test]
fn a_value_that_does_not_fit_in_place_lies_elsewhere() {
    until_over(|stuck| {
        let [mut written, mut moved] = [false; 2];
        until_over(|pause| {
            [written, moved] = lies_before_others(stuck, pause);
            moved
        });
        written
    });
}

/// Timestamps are exhausted, and the key lives on: each time in a register that others find.
#[test]
fn a_key_outlives_its_timestamps() {
    let mut play = Play::new();
    play.all(&[MOVE], &NODES);
    assert_eq!(play.moves(), 1);
    play.all(&[(RIVAL, 0, Call::Update(9)), MOVE, (READER, 0, Call::Get)], &NODES);
    // By that clock, the register is young.
    assert_eq!(play.moves(), 1);
    play.all(&[MOVE_AGAIN, (RIVAL, 0, Call::Update(9)), (READER, 0, Call::Get)], &NODES);
    assert_eq!((play.last(), play.moves()), (Some(Answer::Value(Some(9))), 2));
    play.all(&[(STUCK, 0, Call::Delete), MOVE, (READER, 0, Call::Insert(33))], &NODES);
    play.all(&[MOVE_AGAIN, (STUCK, 0, Call::Get)], &NODES);
    assert_eq!((play.last(), play.moves()), (Some(Answer::Value(Some(25))), 3));
    play.is_linearizable("all");
}

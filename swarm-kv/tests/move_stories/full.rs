//! A key on the move in a pool that is full.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::fabric::NodeId;
use swarm_core::geometry::Geometry;
use swarm_core::history::Call;
use swarm_kv::Error;

use super::store_sim_common::GaveUp;
use super::{ENOUGH, MOVE, MOVES, NODES, Play, READER, RIVAL, STUCK, WARM, geometry};

/// Bytes of a chunk.
const CHUNK: u64 = 4096;
/// Chunks for clients: few.
const CHUNKS: u64 = 24;

/// All memory is somebody's. The client that will be stuck has buffers and nothing else; two
/// others have what a move takes.
fn full_pool() -> Play {
    let small = |capacity| Geometry { chunk_bytes: CHUNK, capacity, max_clients: 8, ..geometry() };
    let before = small(CHUNKS * CHUNK).first_chunk() as u64;
    let mut play = Play::of_strangers(1 << 55, small((before + CHUNKS) * CHUNK));
    play.warm(RIVAL);
    play.all(&[(RIVAL, WARM, Call::Insert(801)), (RIVAL, 0, Call::Insert(805))], &NODES);
    play.all(&[(READER, 0, Call::Get), (STUCK, 0, Call::Update(5))], &NODES);
    // Values of three lengths, and records of all that the bucket may come to.
    play.all(&[1, 2, 3].map(|more| (MOVES, WARM + more, Call::Insert(800 + more))), &NODES);
    play.all(&[1, 2, 3].map(|more| (MOVES, WARM + more, Call::Delete)), &NODES);
    let filler = Rc::clone(&play.stories[RIVAL]);
    play.sim.spawn(RIVAL, async move {
        for words in 1..CHUNK as usize / 8 {
            let put = filler.client.put(b"filler", &vec![1; 8 * words]).await;
            assert!(matches!(put, Ok(()) | Err(Error::Full(_))), "{put:?}");
        }
    });
    assert!(play.sim.finish(RIVAL, &NODES), "it fills up");
    play
}

/// An update or delete is at one node, a reader may have seen it, and an update came after it. Then the
/// key is on the move, and the mover stops after some roundtrips. The writer cannot go on with the
/// move, and says that it does not know. To begin again would write twice; to say that there was
/// no memory for it would deny what was read.
///
/// Whether the mover was done, and whether the writer did not know.
fn is_met_on_the_move(call: Call, one: NodeId, turn: usize) -> (bool, bool) {
    let mut play = full_pool();
    let answer = Rc::new(Cell::new(None));
    let (story, told) = (Rc::clone(&play.stories[STUCK]), Rc::clone(&answer));
    play.sim.spawn(STUCK, async move { told.set(Some(story.call(0, call, None).await)) });
    play.sim.poll_once(STUCK);
    if call == Call::Delete {
        // It looks at the index first.
        play.sim.roundtrip(STUCK, &NODES);
    }
    play.sim.take_all(STUCK, one);
    play.all(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Update(9))], &NODES);
    play.begin(MOVE);
    (0..turn).for_each(|_| play.sim.roundtrip(MOVES, &NODES));
    let over = play.sim.tasks(MOVES) == 0;
    assert!(play.sim.finish(STUCK, &NODES), "it does not end");
    let unsettled = match answer.get() {
        Some(Ok(())) => false,
        Some(Err(GaveUp::Failed(Error::Unsettled(_)))) => true,
        told => panic!("{told:?}"),
    };
    assert!(play.sim.finish(MOVES, &NODES), "it does not end");
    play.all(&[READER, RIVAL, STUCK].map(|id| (id, 0, Call::Get)), &NODES);
    play.is_linearizable((call, one, turn));
    (over, unsettled)
}

#[test]
fn a_write_that_met_a_move_is_not_begun_again_for_want_of_memory() {
    let cases = [Call::Update(1), Call::Delete].map(|call| NODES.map(|node| (call, node)));
    for (call, one) in cases.into_iter().flatten() {
        let mut unsettled = 0;
        let over = (0..ENOUGH).find(|&turn| {
            let (over, unknown) = is_met_on_the_move(call, one, turn);
            unsettled += usize::from(unknown);
            over
        });
        assert!(over.expect("it ends") > 0, "it takes some roundtrips");
        assert!(unsettled > 0, "{call:?}, {one}: the writer had memory for the move");
    }
}

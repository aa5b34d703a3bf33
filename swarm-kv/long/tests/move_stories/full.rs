//! A key that is moved in a full pool.

use std::ops::ControlFlow;
use std::rc::Rc;

use swarm_core::history::{Answer, Call};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_kv::Error;

use super::store_sim_common::{GaveUp, key};
use super::{
    LATE, MOVE, MOVES, MOVES_AGAIN, NODES, Play, READER, RIVAL, STUCK, WARM, apart, dies, ends,
    geometry, rounds, until_over,
};

/// Bytes of a chunk.
const CHUNK: u64 = 4096;
/// Chunks for clients: few.
const CHUNKS: u64 = 24;

/// Roundtrips of a read that has found a guess: it has fetched it; or it has waited for a late
/// node's answer, and written the guess back to a second node.
const LOOKS: [usize; 2] = [1, 8];

/// How often a client reads the clock until a node is late.
const TILL_LATE: usize = 40;

/// Makes a pool without free memory. The client that will be stuck has buffers and nothing else;
/// two others have what a move takes.
fn full_pool(late: u64) -> Play {
    let small = |capacity| Geometry { chunk_bytes: CHUNK, capacity, max_clients: 8, ..geometry() };
    let before = small(CHUNKS * CHUNK).first_chunk() as u64;
    let mut play = Play::of_strangers(late, small((before + CHUNKS) * CHUNK));
    play.warm(RIVAL);
    play.all(&[(RIVAL, WARM, Call::Insert(801)), (RIVAL, 0, Call::Insert(805))], &NODES);
    play.all(&[(READER, 0, Call::Get), (STUCK, 0, Call::Update(5))], &NODES);
    // Values of three lengths, and records for all that the bucket may become.
    play.all(&[1, 2, 3].map(|more| (MOVES, WARM + more, Call::Insert(800 + more))), &NODES);
    play.all(&[1, 2, 3].map(|more| (MOVES, WARM + more, Call::Delete)), &NODES);
    let filler = Rc::clone(&play.stories[RIVAL]);
    play.sim.spawn(RIVAL, async move {
        for words in 1..CHUNK as usize / 8 {
            match filler.client.put(b"filler", &vec![1; 8 * words]).await {
                Ok(()) => {}
                Err(Error::Full(_)) => return,
                put => panic!("{put:?}"),
            }
        }
        panic!("there is room for values of all lengths");
    });
    assert!(play.sim.finish(RIVAL, &NODES), "it fills up");
    play
}

/// An update or delete is at one node, a reader may have seen it, and an update came after it. Then
/// the key is being moved, and the mover stops after some roundtrips. The writer cannot continue
/// the move, and reports that the outcome is unknown. Starting over would write twice; reporting
/// that there was no memory would deny what was read.
///
/// Returns whether the mover was done, and whether the writer reported an unknown outcome.
fn is_met_on_the_move(call: Call, one: NodeId, turn: usize) -> (bool, bool) {
    let mut play = full_pool(1 << 55);
    let answer = play.begin_in_a_full_pool((STUCK, 0, call));
    if call == Call::Delete {
        // It READs the index first.
        play.sim.roundtrip(STUCK, &NODES);
    }
    play.sim.take_all(STUCK, one);
    play.all(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Update(9))], &NODES);
    play.begin(MOVE);
    rounds(&mut play, MOVES, turn, &NODES);
    let over = play.sim.tasks(MOVES) == 0;
    ends(&mut play, STUCK, &NODES);
    let unsettled = match answer.get() {
        Some(Ok(())) => false,
        Some(Err(GaveUp::Failed(Error::Unsettled(_)))) => true,
        outcome => panic!("{outcome:?}"),
    };
    ends(&mut play, MOVES, &NODES);
    play.all(&[READER, RIVAL, STUCK].map(|id| (id, 0, Call::Get)), &NODES);
    play.is_linearizable((call, one, turn));
    (over, unsettled)
}

#[test]
fn a_write_that_met_a_move_is_not_begun_again_for_want_of_memory() {
    for call in [Call::Update(1), Call::Delete] {
        // A rival that finds the delete completes it, and then no client is stuck: it does not ask
        // every node.
        let mut unsettled = 0;
        for one in NODES {
            until_over(|turn| {
                let (over, unknown) = is_met_on_the_move(call, one, turn);
                unsettled += usize::from(unknown);
                over
            });
        }
        assert!(unsettled > 0, "{call:?}: the writer had memory for the move");
    }
}

/// A client that moves the key stops after some roundtrips, or dies. A get without memory to
/// continue the move still gets an answer.
#[test]
fn a_key_on_the_move_is_read_where_there_is_no_memory_to_move_it() {
    for lives in [true, false] {
        until_over(|turn| {
            let mut play = full_pool(1 << 55);
            play.begin(MOVE);
            rounds(&mut play, MOVES, turn, &NODES);
            let over = play.sim.tasks(MOVES) == 0;
            if !lives {
                dies(&mut play, MOVES);
            }
            play.all(&[READER, STUCK, MOVES_AGAIN].map(|id| (id, 0, Call::Get)), &NODES);
            goes_over_all(&mut play, MOVES_AGAIN);
            ends(&mut play, MOVES, &NODES);
            play.all(&[READER, RIVAL, STUCK].map(|id| (id, 0, Call::Get)), &NODES);
            play.is_linearizable((lives, turn));
            over
        });
    }
}

/// An export, and `info`, read every key.
fn goes_over_all(play: &mut Play, id: usize) {
    let story = Rc::clone(&play.stories[id]);
    play.sim.spawn(id, async move {
        let mut met = Vec::new();
        let all = story.client.for_each(|key, value| {
            met.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        all.await.expect("an export");
        assert!(met.iter().any(|(met, _)| *met == key(0)), "{met:?}");
        let usage = story.client.usage().await.expect("what the pool holds");
        assert_eq!(usage.keys, met.len() as u64);
    });
    ends(play, id, &NODES);
}

/// Such a get finds a guess, which a reader may have written back to a second node. If it returns
/// it, the writer must not write it again, though the move took another value along: the guess took
/// effect. If only one node has it, it is not returned: the move may take along an earlier value.
#[test]
fn a_guess_that_was_read_frozen_is_not_written_again() {
    let mut returned = 0;
    for (one, others) in apart() {
        for [first, second] in [[others[0], others[1]], [others[1], others[0]]] {
            for (rival, looks) in
                LOOKS.into_iter().flat_map(|looks| [(true, looks), (false, looks)])
            {
                until_over(|turn| {
                    let nodes = [one, first, second];
                    let (over, read) = is_read_frozen(nodes, rival, looks, turn);
                    returned += usize::from(read);
                    over
                });
            }
        }
    }
    assert!(returned > 0, "the guess was never returned");
}

/// Returns whether the move was over before the get, and whether the get returned the guess.
fn is_read_frozen(
    [one, first, second]: [NodeId; 3],
    rival: bool,
    looks: usize,
    turn: usize,
) -> (bool, bool) {
    let mut play = full_pool(LATE);
    if rival {
        // Its buffer must leave out another node than the guess's: one that it found late.
        NODES.into_iter().for_each(|node| play.sim.take_all(STUCK, node));
        for (key, call) in [(0, Call::Get), (WARM, Call::Update(13))] {
            let outcome = play.begin_in_a_full_pool((RIVAL, key, call));
            ends(&mut play, RIVAL, &[one, second]);
            assert_eq!(outcome.get(), Some(Ok(())));
        }
    }
    play.begin_in_a_full_pool((STUCK, 0, Call::Update(1)));
    play.sim.take_all(STUCK, first);
    play.begin_in_a_full_pool((READER, 0, Call::Get));
    rounds(&mut play, READER, TILL_LATE, &[]);
    rounds(&mut play, READER, looks, &[first, second]);
    if rival {
        play.begin_in_a_full_pool((RIVAL, 0, Call::Update(9)));
        play.sim.take_all(RIVAL, one);
    }
    play.begin(MOVE);
    rounds(&mut play, MOVES, TILL_LATE, &[]);
    rounds(&mut play, MOVES, turn, &[one, second]);
    let over = play.sim.tasks(MOVES) == 0;
    let outcome = play.begin_in_a_full_pool((MOVES_AGAIN, 0, Call::Get));
    ends(&mut play, MOVES_AGAIN, &[first, second]);
    let read = outcome.get() == Some(Ok(())) && play.last() == Some(Answer::Value(Some(1)));
    ends(&mut play, MOVES, &NODES);
    play.all(&[(MOVES_AGAIN, 0, Call::Get)], &NODES);
    [STUCK, RIVAL, READER].iter().for_each(|&id| ends(&mut play, id, &NODES));
    play.all(&[READER, RIVAL].map(|id| (id, 0, Call::Get)), &NODES);
    play.is_linearizable((one, first, second, rival, looks, turn));
    (over, read)
}

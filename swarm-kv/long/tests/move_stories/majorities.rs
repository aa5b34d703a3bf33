//! Moves whose clients reach different majorities.

use swarm_core::history::{Answer, Call};
use swarm_core::node::NodeId;

use super::{
    FILLERS, LATE, MOVE, MOVES, MOVES_AGAIN, NODES, Play, READER, RIVAL, STUCK, answers, apart,
    dies, ends, rounds, until_over,
};

/// All clients read, and the histories are judged.
fn judged(play: &mut Play, what: impl std::fmt::Debug) {
    play.all(&[READER, RIVAL, STUCK].map(|id| (id, 0, Call::Get)), &NODES);
    play.is_linearizable(what);
}

/// A mover has one node's answer, and meanwhile a write completes at the others: it takes along
/// what a majority shows.
#[test]
fn a_move_waits_for_a_majority() {
    for (one, others) in apart() {
        until_over(|turn| {
            let mut play = Play::late_after(LATE);
            play.begin(MOVE);
            rounds(&mut play, MOVES, turn, &NODES);
            let over = play.sim.tasks(MOVES) == 0;
            rounds(&mut play, MOVES, 3, &[one]);
            play.all(&[(RIVAL, 0, Call::Update(9))], &others);
            ends(&mut play, MOVES, &NODES);
            judged(&mut play, (one, turn));
            over
        });
    }
}

/// An update that came too late is about to be at a majority under its new timestamp, and is at one
/// node. A reader finds it there, and then a move freezes the others: what the reader returns must
/// be what the move takes along.
#[test]
fn what_a_reader_returns_is_what_moves() {
    for (one, others) in apart() {
        for &second in &others {
            for looks in 0..4 {
                until_over(|turn| {
                    let mut play = Play::late_after(LATE);
                    play.begin((STUCK, 0, Call::Update(1)));
                    play.all(&[(RIVAL, 0, Call::Update(13))], &NODES);
                    rounds(&mut play, STUCK, turn, &NODES);
                    let over = play.sim.tasks(STUCK) == 0;
                    play.sim.take_all(STUCK, one);
                    play.begin((READER, 0, Call::Get));
                    rounds(&mut play, READER, looks, &[one, second]);
                    play.all(&[MOVE], &others);
                    ends(&mut play, READER, &NODES);
                    play.all(&[(RIVAL, 0, Call::Get)], &NODES);
                    ends(&mut play, STUCK, &NODES);
                    judged(&mut play, (one, second, looks, turn));
                    over
                });
            }
        }
    }
}

/// A writer whose update is at one node finds a move, and moves the key on: its own majority shows
/// the update. But it comes second, and the first mover did not see the update.
#[test]
fn the_second_client_goes_by_the_first() {
    for (one, others) in apart() {
        until_over(|frozen| {
            let mut over = false;
            until_over(|turn| {
                let mut play = Play::late_after(LATE);
                play.begin((STUCK, 0, Call::Update(1)));
                play.sim.take_all(STUCK, one);
                play.begin(MOVE);
                answers(&mut play, MOVES, frozen, &others);
                over = play.sim.tasks(MOVES) == 0;
                answers(&mut play, STUCK, turn, &[one, others[0]]);
                let second_is_over = play.sim.tasks(STUCK) == 0;
                // Its own relocation, or it would report that: it takes another value along.
                play.all(&[(MOVES_AGAIN, 0, Call::Get)], &others);
                ends(&mut play, STUCK, &NODES);
                play.all(&[(RIVAL, 0, Call::Get)], &NODES);
                ends(&mut play, MOVES, &NODES);
                judged(&mut play, (one, frozen, turn));
                second_is_over
            });
            over
        });
    }
}

/// A key was deleted, and its deleter is dead. A client begins to move the key, with one node away,
/// and dies. The next client to change the bucket, with a node away too, completes the proposal at
/// the others, created objects included: the register is created as deleted there as well, for
/// every reader.
#[test]
fn a_deleted_key_that_is_moved_stays_deleted() {
    for (_, others) in apart() {
        for (_, looks) in apart() {
            for lands in [&others[..1], &others[1..], &others[..]] {
                until_over(|turn| is_deleted(&others, lands, turn, &looks));
            }
        }
    }
}

/// A mover that reaches `others` only dies, with its last chains executed at `lands`; the read that
/// counts is at `looks`. Returns true if the move was over.
fn is_deleted(others: &[NodeId], lands: &[NodeId], turn: usize, looks: &[NodeId]) -> bool {
    let mut play = Play::late_after(LATE);
    play.all(&[(MOVES, 0, Call::Get)], &NODES);
    play.begin((STUCK, 0, Call::Delete));
    // It has READ the index, and its stamp is in all slots. The index does not show it yet.
    rounds(&mut play, STUCK, 2, &NODES);
    dies(&mut play, STUCK);
    play.all(&[(READER, 0, Call::Get)], &NODES);
    assert_eq!(play.last(), Some(Answer::Value(None)));
    play.begin(MOVE);
    rounds(&mut play, MOVES, turn, others);
    let over = play.sim.tasks(MOVES) == 0;
    lands.iter().for_each(|&node| play.sim.take_all(MOVES, node));
    dies(&mut play, MOVES);
    play.all(&[(RIVAL, FILLERS, Call::Insert(5))], others);
    play.all(&[READER, RIVAL].map(|id| (id, 0, Call::Get)), looks);
    play.is_linearizable((others, lands, turn, looks));
    over
}

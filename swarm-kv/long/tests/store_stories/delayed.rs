//! Scenarios of epochs that clients learn of one after the other, as behind RDMA cards.

use std::rc::Rc;

use swarm_core::fabric::EpochDomain;
use swarm_core::history::{Answer, Call};

use crate::domain::{Notes, SimParticipant};
use crate::play::{ASTRAY, CAPACITY, LAST, NEXT, NODES, Play, WARM};

/// The other key of the client whose memory is reclaimed.
const OTHER: u64 = 1;

/// A reader knows of an epoch that the writer does not know of. It finds a buffer there, and is
/// slow; the writer writes again and retires the buffer, in an epoch that is over for others. If it
/// used that epoch, it would reuse the buffer while the reader is about to access it.
#[test]
fn what_is_retired_waits_for_clients_that_are_an_epoch_ahead() {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let notes = Rc::new(Notes::by_hand());
    play.notes = Some(Rc::clone(&notes));
    let (writer, reader) = (play.patient(NEXT), play.patient(ASTRAY));
    let observer = SimParticipant::new(&notes, play.sim.fabric(LAST), LAST);
    let calls = [(0, 800), (OTHER, 804), (WARM, 808)].map(|(key, id)| (key, Call::Insert(id)));
    let grown = [(0, 803), (OTHER, 807), (0, 811)].map(|(key, id)| (key, Call::Update(id)));
    play.all(&writer, calls.into_iter().chain(grown).collect(), &NODES);
    play.all(&reader, vec![(0, Call::Get), (WARM, Call::Get)], &NODES);
    let over = |play: &mut Play| {
        for client in [NEXT, ASTRAY] {
            NODES.into_iter().for_each(|node| play.sim.take_all(client, node));
        }
        // An operation that leaves no chains in flight: the writer is unpinned.
        play.all(&writer, vec![(WARM, Call::Get)], &NODES);
    };
    over(&mut play);
    [NEXT, ASTRAY].into_iter().for_each(|client| notes.is_informed(client));
    observer.try_advance();
    assert_eq!(notes.epoch(), 2);
    notes.is_informed(ASTRAY);
    // A guess, whose value is in its buffer only.
    play.all(&writer, vec![(0, Call::Update(815))], &NODES);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(NEXT, node));
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(ASTRAY);
    play.sim.roundtrip(ASTRAY, &NODES);
    assert!(NODES.into_iter().any(|node| play.sim.on_their_way(ASTRAY, node) > 0), "to the buffer");
    play.all(&writer, vec![(0, Call::Update(819))], &NODES);
    over(&mut play);
    [NEXT, NEXT, ASTRAY].into_iter().for_each(|client| notes.is_informed(client));
    observer.try_advance();
    assert_eq!(notes.epoch(), 3);
    notes.is_informed(NEXT);
    let values = || (0..64).map(|n| (OTHER, Call::Update(903 + 4 * n))).collect();
    play.all(&writer, values(), &NODES);
    assert_eq!(writer.client.counters().reclaimed, 0, "the reader is on its way to it");
    assert!(play.sim.finish(ASTRAY, &NODES), "the reader ends");
    let read = play.recorder.operations();
    let read = read.iter().rfind(|op| op.client == ASTRAY).expect("it read");
    assert!(matches!(read.answered, Some((_, Answer::Value(Some(815 | 819))))), "{read}");
    over(&mut play);
    for _ in 0..3 {
        [NEXT, ASTRAY].into_iter().for_each(|client| notes.is_informed(client));
        observer.try_advance();
    }
    notes.is_informed(NEXT);
    play.all(&writer, values(), &NODES);
    assert!(writer.client.counters().reclaimed > 0, "it comes back in the end");
    play.is_linearizable();
}

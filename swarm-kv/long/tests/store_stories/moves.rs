//! Scenarios of GC cycles while keys move.

use swarm_core::history::Call;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;

use crate::play::{ASTRAY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM};

/// A clock past the last timestamp of a register that was created when the others' clocks began.
const LATER: u64 = 1 << 53;

/// A client's update is stuck: its guess is at one node. Another one moves the key; after `pause`
/// roundtrips a reader returns what the move took along, that update. Then the key is deleted, and
/// a GC cycle that began before all this reaches its bucket. A client that follows predecessors
/// must still learn the outcome. Returns false if the move was over before.
fn line_ends(pause: usize, lands: NodeId) -> bool {
    let mut play = Play::with_epochs(8 << 20, 6);
    let (client, stuck, reader) = (play.patient(NEXT), play.patient(LAST), play.patient(ASTRAY));
    let mover = play.client(CREATOR, LoneClock::new(LATER), 1 << 40);
    play.all(&mover, vec![(WARM, Call::Insert(801)), (WARM, Call::Update(821))], &NODES);
    play.all(&client, vec![(0, Call::Insert(805)), (1, Call::Insert(807))], &NODES);
    play.all(&stuck, vec![(WARM + 3, Call::Insert(809)), (0, Call::Get)], &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.sim.drain();
    play.collect_and_wait(&client);
    play.begin(&stuck, vec![(0, Call::Update(817))]);
    play.sim.poll_once(LAST);
    play.sim.take_all(LAST, lands);
    play.begin(&mover, vec![(0, Call::Update(813))]);
    play.sim.poll_once(CREATOR);
    (0..pause).for_each(|_| play.sim.roundtrip(CREATOR, &NODES));
    let over = play.sim.tasks(CREATOR) == 0;
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    assert!(play.sim.finish(CREATOR, &NODES), "the move ends");
    play.all(&reader, vec![(0, Call::Delete)], &NODES);
    play.sim.drain();
    assert!(play.sim.finish(NEXT, &NODES), "the collection ends");
    assert!(play.sim.finish(LAST, &NODES), "the update ends");
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.is_linearizable();
    assert!(mover.client.counters().moved + reader.client.counters().moved > 0, "it moves");
    !over
}

#[test]
fn a_line_that_ended_is_kept_for_clients_that_walk_it() {
    for lands in NODES {
        let over = (0..ENOUGH).find(|&pause| !line_ends(pause, lands));
        assert!(over > Some(1), "it takes some roundtrips");
    }
}

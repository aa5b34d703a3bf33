//! Races that begin in the midst of operations: what leads up to them would take more surprises than
//! can be explored.

use swarm_core::history::Call;
use swarm_core::node::NodeId;
use swarm_core::sim::Sim;

use crate::{LATER, MOVE, MOVED, NODES, NOW, Plan};

/// What has happened already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Midst {
    Nothing,
    /// Of what this racer posted first, the chain to this node has landed.
    Half(usize, NodeId),
}

impl Midst {
    pub(crate) fn play(self, sim: &mut Sim) {
        match self {
            Self::Nothing => {}
            Self::Half(racer, node) => {
                sim.poll_once(racer);
                sim.take_all(racer, node);
            }
        }
    }
}

/// An update is at one node when a reader comes, which writes as well, and then the key moves. If the
/// reader returned the update, it must not be written again.
#[test]
fn a_move_behind_a_reader_of_half_an_update() {
    let racers: &[&[_]] =
        &[&[(0, Call::Get), (0, Call::Update(13))], MOVE, &[(0, Call::Update(5))]];
    for node in NODES {
        let midst = Midst::Half(2, node);
        let plan = Plan { racers, clocks: &[NOW, LATER], midst, ..MOVED };
        plan.play_many_steps("a move behind a reader of half an update");
    }
}

//! Members of a barrier that meet, leave, join again and die.
//!
//! What is checked: the barrier's history ([`check_barrier`]), and that all that live come to their ends.

use std::rc::Rc;

use swarm_core::sim::seeds::seeds;
use swarm_kv::objects::ObjectError;
use swarm_kv_long::barrier_history::{BarrierDeed, BarrierHistory, check_barrier};

use crate::{CLIENTS, Player, again, run};

/// How often each client joins.
const JOINS: u32 = 3;

/// It ends where its operations fail.
async fn meets(player: &Player, history: &BarrierHistory) -> Result<(), ObjectError> {
    let story = Rc::clone(&player.story);
    let world = player.world.clone();
    let note = |deed| history.note(story.id, deed, |client| world.is_gone(client));
    // All of them join before anything goes wrong: it opens for nobody before that.
    let barrier = story.client.barrier(b"barrier", CLIENTS as u32);
    for _ in 0..JOINS {
        note(BarrierDeed::Joins);
        let mut member = barrier.join().await?;
        note(BarrierDeed::Joined);
        player.is_so(|| player.has_begun.get()).await;
        for _ in 0..=player.draws(4) {
            note(BarrierDeed::Arrives);
            let met = member.wait_paced(None, async |pause| player.pauses(pause).await).await?;
            let met = met.expect("it has no limit");
            let members = met.members.iter().map(|seat| seat.slot).collect();
            note(BarrierDeed::Passes { generation: met.generation, members });
        }
        note(BarrierDeed::Leaves);
        member.leave().await?;
        note(BarrierDeed::Left);
    }
    Ok(())
}

#[test]
fn members_meet_under_any_schedule() {
    let (mut passed, mut died) = (0, 0);
    let seeds = seeds(100);
    // In a few schedules it may be that no member dies.
    let are_many = seeds.end - seeds.start >= 100;
    for seed in seeds {
        let history = Rc::<BarrierHistory>::default();
        let task = |player: Player| {
            let history = Rc::clone(&history);
            async move {
                match meets(&player, &history).await {
                    Ok(()) => {}
                    Err(ObjectError::Store(_)) => {
                        history.note(player.story.id, BarrierDeed::Leaves, |_| false);
                    }
                    Err(other) => panic!("client {}: {other}", player.story.id),
                }
                player.gives_up().await;
            }
        };
        let have_joined = || {
            let all = history.all();
            all.iter().filter(|(_, deed)| *deed == BarrierDeed::Joined).count() == CLIENTS
        };
        run(seed, task, have_joined);
        let all = history.all();
        let judged = check_barrier(&all, CLIENTS);
        passed += judged.unwrap_or_else(|wrong| panic!("{wrong}: {}", again(seed)));
        died += all.iter().filter(|(_, deed)| *deed == BarrierDeed::Ends).count();
    }
    assert!(!are_many || died > 0, "no member died");
    println!("{passed} times a member passed, {died} members died");
}

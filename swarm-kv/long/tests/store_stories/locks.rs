//! Scenarios of locks: clients that are stuck at any roundtrip while they enter, hold, wait or leave, and go
//! on, or die.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use swarm_core::history::Call;
use swarm_core::node::NodeId;
use swarm_core::sim::dropped_after;
use swarm_kv::objects::Guard;

use crate::play::{ASTRAY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM, all_but};
use crate::store_sim_common::{Story, key};

const LOCK: &[u8] = b"lock";

/// What a client does with the lock, until it is stuck.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Deed {
    /// It acquires the lock, and holds it.
    Acquires,
    /// It holds the lock, and releases it.
    Releases,
    /// Another one holds the lock; it waits.
    Waits,
}

/// Who held the lock, in which order: token and client.
type Held = Rc<RefCell<Vec<(u64, usize)>>>;

/// Pools of few clients, whose deaths are known.
fn play() -> Play {
    Play::with_epochs(8 << 20, 4)
}

/// A client acquires the lock, notes that, and releases it if it `leaves`.
fn acquires(play: &mut Play, story: &Rc<Story>, held: &Held, leaves: bool) {
    let (story, held) = (Rc::clone(story), Rc::clone(held));
    play.sim.spawn(story.id, async move {
        let lock = story.client.lock(LOCK);
        // A client that dies drops nothing.
        let guard = lock.acquire_paced(None, async |_| {}).await.expect("memory");
        let guard = ManuallyDrop::new(guard.expect("it is its turn"));
        held.borrow_mut().push((guard.token(), story.id));
        if leaves {
            let guard: Guard<'_, _, _, _> = ManuallyDrop::into_inner(guard);
            guard.release().await.expect("it holds the lock");
        }
    });
}

fn ends(play: &mut Play, id: usize, what: impl std::fmt::Debug) {
    assert!(play.sim.finish(id, &NODES), "client {id} does not end: {what:?}");
}

/// A client dies, and its chains in flight are lost.
fn dies(play: &mut Play, id: usize) {
    NODES.into_iter().for_each(|node| play.sim.lose_chains(id, node));
    play.sim.crash_client(id);
}

/// The lock was used before, and is free.
fn is_warm(play: &mut Play, stories: &[Rc<Story>], held: &Held) {
    for story in stories {
        acquires(play, story, held, true);
        ends(play, story.id, "warm");
    }
}

/// A client is stuck after so many roundtrips of its deed, with its chains executed at the nodes of `lands`
/// only. Others come: one of them tries to acquire the lock before the client dies, or goes on, and waits for
/// it after. Returns false if the deed was over before.
fn is_stuck(deed: Deed, rounds: usize, lands: &[NodeId], it_dies: bool) -> bool {
    let what = (deed, rounds, lands, it_dies);
    let mut play = play();
    let stories = [ASTRAY, NEXT, LAST].map(|id| play.patient(id));
    let [astray, next, last] = &stories;
    let held = Held::default();
    is_warm(&mut play, &stories, &held);
    let waits_for = deed == Deed::Waits;
    if waits_for {
        acquires(&mut play, last, &held, false);
        ends(&mut play, LAST, what);
    }
    acquires(&mut play, astray, &held, deed == Deed::Releases);
    play.sim.poll_once(ASTRAY);
    (0..rounds).for_each(|_| play.sim.roundtrip(ASTRAY, &NODES));
    let is_over = play.sim.tasks(ASTRAY) == 0 && deed != Deed::Acquires;
    if is_over || rounds > 12 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(ASTRAY, node));
    // Nobody else holds it while it may.
    let had = held.borrow().iter().filter(|(_, id)| *id == ASTRAY).count() > 1;
    acquires(&mut play, next, &held, true);
    play.sim.poll_once(NEXT);
    (0..40).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    let is_free = held.borrow().last().is_some_and(|(_, id)| *id == NEXT);
    let may_leave = deed == Deed::Releases;
    assert!(!(had && is_free) || may_leave, "{what:?}: it holds it, and so does another");
    if waits_for {
        assert!(!is_free, "{what:?}: past its holder");
    }
    if waits_for {
        dies(&mut play, LAST);
    }
    if it_dies {
        dies(&mut play, ASTRAY);
        ends(&mut play, NEXT, what);
    } else {
        dies(&mut play, NEXT);
        ends(&mut play, ASTRAY, what);
    }
    let held = held.borrow();
    assert!(held.windows(2).all(|two| two[0].0 < two[1].0), "{what:?}: {held:?}");
    true
}

/// Whichever client dies, and wherever: the next one gets the lock, with a larger token, and nobody while it is held.
#[test]
fn a_lock_outlives_whoever_dies_at_any_roundtrip() {
    for deed in [Deed::Acquires, Deed::Releases, Deed::Waits] {
        for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
            let over = (0..ENOUGH).find(|&rounds| !is_stuck(deed, rounds, lands, true));
            assert!(over.expect("it ends") > 0);
        }
    }
}

/// One that is only slow keeps what it holds, and its place in the queue.
#[test]
fn a_slow_client_loses_neither_lock_nor_place() {
    for deed in [Deed::Acquires, Deed::Releases, Deed::Waits] {
        for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
            let over = (0..ENOUGH).find(|&rounds| !is_stuck(deed, rounds, lands, false));
            assert!(over.expect("it ends") > 0);
        }
    }
}

/// A client died while its change was on its way to one node: had the lock been taken over before that was lost
/// or done, the dead client would have held it, or released it, afterwards.
#[test]
fn nothing_of_a_dead_client_takes_effect_after_the_takeover() {
    let mut play = play();
    let stories = [ASTRAY, NEXT].map(|id| play.patient(id));
    let held = Held::default();
    is_warm(&mut play, &stories, &held);
    acquires(&mut play, &stories[0], &held, false);
    ends(&mut play, ASTRAY, "it acquires");
    let leaving = Rc::new(Cell::new(false));
    let (story, leaves) = (Rc::clone(&stories[0]), Rc::clone(&leaving));
    // An update is on its way when the client dies.
    play.sim.spawn(ASTRAY, async move {
        leaves.set(true);
        story.client.put(b"another", b"value").await.expect("memory");
    });
    play.sim.poll_once(ASTRAY);
    assert!(leaving.get());
    play.sim.crash_client(ASTRAY);
    acquires(&mut play, &stories[1], &held, false);
    play.sim.poll_once(NEXT);
    (0..40).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    assert_eq!(held.borrow().len(), 3, "its chains are under way");
    NODES.into_iter().for_each(|node| play.sim.take_all(ASTRAY, node));
    ends(&mut play, NEXT, "it takes over");
    assert_eq!(held.borrow().last(), Some(&(4, NEXT)));
}

/// A client has memory, and another one has made the key that it is about to `call`.
fn has_made(play: &mut Play, (astray, creator): (&Rc<Story>, &Rc<Story>), call: Call) {
    let warm = [(WARM, Call::Insert(801)), (WARM, Call::Delete), (WARM, Call::Insert(805))];
    play.all(astray, warm.to_vec(), &NODES);
    match call {
        Call::Insert(_) => {}
        Call::Swap(_) => {
            let makes = [Call::Insert(800), Call::Swap(Some(804)), Call::Swap(Some(808))];
            play.all(creator, makes.map(|call| (0, call)).to_vec(), &NODES);
            // It has memory for records.
            let warm = (0..3).flat_map(|_| [812, 808].map(|id| (0, Call::Swap(Some(id)))));
            play.all(astray, warm.collect(), &NODES);
        }
        _ => play.all(creator, vec![(0, Call::Insert(800))], &NODES),
    }
    play.all(astray, vec![(0, Call::Get)], &NODES);
}

/// A client calls, and gets no further than so many roundtrips: where it does not `suspect` a node, or does. Returns false
/// if the call is over by then.
fn is_under_way(
    play: &mut Play,
    astray: &Rc<Story>,
    call: Call,
    (rounds, suspects): (usize, Option<NodeId>),
) -> bool {
    if let Some(node) = suspects {
        // Its changes of cells begin with classic rounds: those of fast ones at one node come to nothing.
        play.begin(astray, vec![(WARM, Call::Get)]);
        play.sim.poll_once(ASTRAY);
        play.sim.disconnect(ASTRAY, node, false);
        ends(play, ASTRAY, call);
    }
    play.begin(astray, vec![(0, call)]);
    play.sim.poll_once(ASTRAY);
    (0..rounds).for_each(|_| play.sim.roundtrip(ASTRAY, &NODES));
    play.sim.tasks(ASTRAY) > 0
}

/// What a client has read.
type Read = Rc<RefCell<Option<Vec<u8>>>>;

/// Lets a client read the key, behind what it does `first`. Only these nodes answer.
fn reads(
    play: &mut Play,
    story: &Rc<Story>,
    (id, nodes): (usize, &[NodeId]),
    first: impl AsyncFnOnce(&Story) + 'static,
) -> Option<Vec<u8>> {
    let (story, found) = (Rc::clone(story), Read::default());
    let read = Rc::clone(&found);
    play.sim.spawn(id, async move {
        first(&story).await;
        let value = story.client.get(&key(0)).await.expect("two nodes");
        *read.borrow_mut() = value.map(|value| value.to_vec());
    });
    assert!(play.sim.finish(id, nodes), "client {id} does not come to an end");
    found.take()
}

/// What the holder of a lock wrote when it died, after so many roundtrips, reached one node only; it `suspects`
/// another one. The next holder, which does not reach that node, settles the key if it `settles`, and reads it;
/// then another client reads it, at that node and one other. Returns what both read; `None` if the write was
/// over before.
fn two_reads(
    call: Call,
    (rounds, lands, suspects): Case,
    settles: bool,
) -> Option<[Option<Vec<u8>>; 2]> {
    let away = all_but(lands);
    let mut play = play();
    let (astray, creator) = (play.patient(ASTRAY), play.patient(CREATOR));
    let [next, last] = [NEXT, LAST].map(|id| play.hasty(id));
    let held = Held::default();
    is_warm(&mut play, &[Rc::clone(&astray)], &held);
    has_made(&mut play, (&astray, &creator), call);
    acquires(&mut play, &astray, &held, false);
    ends(&mut play, ASTRAY, call);
    if !is_under_way(&mut play, &astray, call, (rounds, suspects.then_some(away[1]))) {
        return None;
    }
    play.sim.take_all(ASTRAY, lands);
    dies(&mut play, ASTRAY);
    let takes_over = async move |story: &Story| {
        let lock = story.client.lock(LOCK);
        let guard = lock.acquire_paced(None, async |_| {}).await.expect("memory");
        let mut guard = ManuallyDrop::new(guard.expect("it is its turn"));
        assert!(guard.is_unsettled());
        if settles {
            guard.settle(&[key(0)]).await.expect("memory");
        }
    };
    let first = reads(&mut play, &next, (NEXT, &away), takes_over);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(NEXT, node));
    Some([first, reads(&mut play, &last, (LAST, &[lands, away[0]]), async |_: &Story| ())])
}

/// What a story is about: how far a call got, at which node, and whether its client suspects another one.
type Case = (usize, NodeId, bool);

/// Runs a story of two reads in all cases, without and with settling. Returns in how many what was read first was not
/// read again where nobody settled.
fn surfaced(call: Call, story: impl Fn(Call, Case, bool) -> Option<[Option<Vec<u8>>; 2]>) -> usize {
    let mut surfaced = 0;
    for (lands, suspects) in NODES.into_iter().flat_map(|node| [(node, false), (node, true)]) {
        for rounds in 0..ENOUGH {
            let case = (rounds, lands, suspects);
            let Some([next, last]) = story(call, case, false) else { break };
            surfaced += usize::from(next != last);
            let settled = story(call, case, true).expect("it is not over");
            assert_eq!(settled[0], settled[1], "{call:?}: {case:?}");
        }
    }
    surfaced
}

/// What the dead holder's write had left at one node surfaced after the takeover, over what the next holder had read.
#[test]
fn what_a_dead_holder_left_at_one_node_surfaces_unless_it_is_settled() {
    for call in [Call::Update(1), Call::Swap(Some(1)), Call::Insert(1)] {
        let surfaced = surfaced(call, two_reads);
        // A read of a cell, a bucket's too, ends what it finds half done.
        let may_surface = matches!(call, Call::Update(_));
        assert_eq!(surfaced > 0, may_surface, "{call:?}: {surfaced} surfaced");
    }
}

/// A client is fenced at two nodes, after so many roundtrips of a change, and lives: it has reached one of them,
/// and goes on at the third. Another client, which the first node does not answer, settles the key if it
/// `settles`, and reads it; then one reads it at the first node and the third. Returns what both read; `None` if
/// the change was over before.
fn two_reads_beside_a_fenced_client(
    call: Call,
    (rounds, lands, suspects): Case,
    settles: bool,
) -> Option<[Option<Vec<u8>>; 2]> {
    let [late, fenced] = all_but(lands)[..] else { panic!("three nodes") };
    let mut play = play();
    let (astray, creator) = (play.patient(ASTRAY), play.patient(CREATOR));
    let [next, last] = [NEXT, LAST].map(|id| play.hasty(id));
    has_made(&mut play, (&astray, &creator), call);
    if !is_under_way(&mut play, &astray, call, (rounds, suspects.then_some(fenced))) {
        return None;
    }
    play.sim.roundtrip(ASTRAY, &[lands]);
    play.sim.lose_chains(ASTRAY, lands);
    play.sim.lose_chains(ASTRAY, fenced);
    let settle = async move |story: &Story| {
        if settles {
            story.client.settle(&key(0)).await.expect("memory");
        }
    };
    let first = reads(&mut play, &next, (NEXT, &[late, fenced]), settle);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(NEXT, node));
    for _ in 0..ENOUGH {
        play.sim.roundtrip(ASTRAY, &[late]);
        [lands, fenced].into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    }
    Some([first, reads(&mut play, &last, (LAST, &[lands, late]), async |_: &Story| ())])
}

/// What a client left at one node that has fenced it, and brings to another one that has not, surfaces unless the
/// key is settled: also where it is in a cell, or not there.
#[test]
fn what_a_fenced_client_goes_on_with_surfaces_unless_it_is_settled() {
    for call in [Call::Update(1), Call::Swap(Some(1)), Call::Insert(1)] {
        assert!(surfaced(call, two_reads_beside_a_fenced_client) > 0, "{call:?}");
    }
}

/// A client dropped its future in the middle of entering, after so many polls, and lives on. Its next use of
/// any lock gives the place up. Returns false if it had entered before.
fn is_dropped(polls: u32, reach: &[NodeId]) -> bool {
    let mut play = play();
    let stories = [ASTRAY, NEXT].map(|id| play.patient(id));
    let held = Held::default();
    is_warm(&mut play, &stories, &held);
    let (story, entered) = (Rc::clone(&stories[0]), Rc::<Cell<bool>>::default());
    let over = Rc::clone(&entered);
    play.sim.spawn(ASTRAY, async move {
        let lock = story.client.lock(LOCK);
        let entering = lock.acquire_paced(None, async |_| {});
        if let Some(guard) = dropped_after(Some(polls), entering).await {
            over.set(true);
            let _ = ManuallyDrop::new(guard);
        }
    });
    play.sim.poll_once(ASTRAY);
    for _ in 0..ENOUGH {
        play.sim.roundtrip(ASTRAY, reach);
    }
    if entered.get() {
        return false;
    }
    assert_eq!(play.sim.tasks(ASTRAY), 0, "it is dropped");
    let story = Rc::clone(&stories[0]);
    play.sim.spawn(ASTRAY, async move {
        let other = story.client.lock(b"another lock");
        let guard = other.try_acquire().await.expect("memory").expect("it is free");
        guard.release().await.expect("it is held");
    });
    ends(&mut play, ASTRAY, ("gives up", polls));
    acquires(&mut play, &stories[1], &held, true);
    ends(&mut play, NEXT, ("acquires", polls));
    true
}

/// Nobody waits for a place whose client gave it up half-way, wherever that was.
#[test]
fn a_place_that_was_given_up_half_way_keeps_nobody_waiting() {
    assert!((0..100).any(|polls| !is_dropped(polls, &NODES)), "it enters");
    for reach in [&NODES[..2], &NODES[1..]] {
        let over = (0..100).find(|&polls| !is_dropped(polls, reach));
        assert!(over != Some(0), "it takes some polls");
    }
}

//! Scenarios of GC cycles: objects that look like garbage and are not.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::epoch::GRACE;
use swarm_core::history::{Answer, Call};
use swarm_core::layout::{Geometry, MAX_VALUE, MIN_CAPACITY, buffer, record};
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::seeds::{Playing, is_played};
use swarm_kv::Error;

use crate::domain::Works;
use crate::play::{ASTRAY, CAPACITY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM, all_but};
use crate::store_sim_common::{GaveUp, Story};

/// More roundtrips than the longest wait for others takes.
const LONG: usize = 100_000;
/// Other keys of the client that runs the cycle. They are so many that each node is the home of
/// one, since each leaves out another node in what is written for it. They are so few that no
/// bucket is split, which would read the existing keys. Their values take the reclaimed memory.
const OTHERS: std::ops::Range<u64> = 10..14;

type ClientStory = Rc<Story>;

/// After this, a client has memory, and has the key's location cached.
fn warm() -> Vec<(u64, Call)> {
    vec![(WARM, Call::Insert(808)), (WARM, Call::Update(815)), (0, Call::Get)]
}

/// The result of a cycle, once it is over.
type Found = Rc<Cell<Option<Option<usize>>>>;

impl Play {
    /// A client begins a GC cycle.
    fn collect(&mut self, story: &ClientStory) -> Found {
        let found = Found::default();
        let (story, outcome) = (Rc::clone(story), Rc::clone(&found));
        let works = self.notes.as_ref().map(|notes| Works::new(notes, story.id));
        self.sim.spawn(story.id, async move {
            let _works = works;
            outcome.set(Some(story.client.collect().await.expect("all nodes answer")));
        });
        found
    }

    /// A client begins a GC cycle, which may find that a node does not answer.
    fn begin_to_collect(&mut self, story: &ClientStory) {
        let outcome = Rc::clone(story);
        let works = self.notes.as_ref().map(|notes| Works::new(notes, story.id));
        self.sim.spawn(story.id, async move {
            let _works = works;
            let found = outcome.client.collect().await;
            assert!(matches!(found, Ok(_) | Err(Error::Replication(_))), "{found:?}");
        });
        self.sim.poll_once(story.id);
    }

    /// A client begins a GC cycle, which waits until the operations in progress are over, and no
    /// longer.
    pub(crate) fn collect_and_wait(&mut self, story: &ClientStory) -> Found {
        let found = self.collect(story);
        let notes = self.notes.clone().expect("memory comes back");
        let began = notes.epoch();
        for _ in 0..LONG {
            if notes.epoch() >= began + GRACE {
                return found;
            }
            self.sim.roundtrip(story.id, &NODES);
        }
        panic!("it waits for ever");
    }

    /// A client reclaims what is unreachable, once no chain is in flight any more.
    fn get_back(&mut self, story: &ClientStory) {
        self.sim.drain();
        for _ in 0..3 {
            self.collect(story);
            assert!(self.sim.finish(story.id, &NODES), "a collection ends");
        }
    }

    /// A client reclaims what is unreachable, and reuses it.
    fn use_again(&mut self, story: &ClientStory) {
        self.get_back(story);
        for other in OTHERS {
            let values = (0..64).map(|n| (other, Call::Update(903 + 4 * n)));
            let calls = [(other, Call::Insert(900))].into_iter().chain(values);
            self.all(story, calls.collect(), &NODES);
        }
    }

    /// All chains of these clients in flight execute.
    pub(crate) fn settle(&mut self, clients: &[usize]) {
        for &id in clients {
            NODES.into_iter().for_each(|node| self.sim.take_all(id, node));
        }
    }

    /// The client's task of this number continues, and no other one of its, until `over`.
    fn task<T>(&mut self, id: usize, task: usize, over: impl Fn(&Self) -> Option<T>) -> T {
        for _ in 0..LONG {
            if let Some(over) = over(self) {
                return over;
            }
            for node in NODES {
                self.sim.take_all(id, node);
                self.sim.deliver(id, node);
            }
            self.sim.poll_task(id, task);
        }
        panic!("it does not end");
    }
}

/// A writer's guess is at one node, the first or the last that it posts to; then it dies. A client
/// that does not reach that node reads the earlier value.
fn lies_below_a_guess(last: bool) {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let client = play.patient(NEXT);
    let rival = play.client(ASTRAY, LoneClock::new(1_000_000), 1 << 40);
    // The first update moves the key, the second is an ordinary one.
    let calls = [Call::Insert(800), Call::Update(803), Call::Update(811)];
    play.all(&client, calls.into_iter().map(|call| (0, call)).collect(), &NODES);
    play.all(&rival, warm(), &NODES);
    play.settle(&[NEXT, ASTRAY]);
    play.begin(&rival, vec![(0, Call::Update(807))]);
    play.sim.poll_once(ASTRAY);
    let mut posted = NODES.into_iter().filter(|&node| play.sim.on_their_way(ASTRAY, node) > 0);
    let only = if last { posted.next_back() } else { posted.next() }.expect("it writes");
    play.sim.take_all(ASTRAY, only);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    play.sim.crash_client(ASTRAY);
    play.use_again(&client);
    let reader = play.hasty(LAST);
    let others = all_but(only);
    play.all(&reader, vec![(0, Call::Get)], &others);
    assert_eq!(play.last(), Some(Answer::Value(Some(811))));
    play.is_linearizable();
}

#[test]
fn what_lies_below_a_dead_writers_guess_is_no_garbage() {
    [false, true].into_iter().for_each(lies_below_a_guess);
}

/// A client's write finds that its guess was stale; all nodes show another's larger stamp, and its
/// buffer is unreachable. It continues, and publishes a new stamp for it.
#[test]
fn what_an_operation_under_way_holds_is_no_garbage() {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let client = play.patient(NEXT);
    let rival = play.client(ASTRAY, LoneClock::new(1_000_000), 1 << 40);
    play.all(&client, vec![(0, Call::Insert(800)), (0, Call::Update(803))], &NODES);
    play.all(&rival, warm(), &NODES);
    play.all(&rival, vec![(0, Call::Update(807))], &NODES);
    play.settle(&[NEXT, ASTRAY]);
    play.begin(&client, vec![(0, Call::Update(811))]);
    play.sim.poll_once(NEXT);
    play.settle(&[NEXT]);
    let found = play.collect(&client);
    play.task(NEXT, 1, |_| found.get());
    assert!(play.sim.finish(NEXT, &NODES), "the update ends");
    play.use_again(&client);
    let reader = play.hasty(LAST);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    assert_eq!(play.last(), Some(Answer::Value(Some(811))));
    play.is_linearizable();
}

/// A client's write arrives at one node, and was dropped. A reader finds it there; after that
/// another client's write supersedes it, at that node only. Then no node names the first write's
/// buffer. But the reader, after `rounds` roundtrips, may write it back to the other nodes, and
/// return its value; or it writes it to one and dies `more` roundtrips later. Returns false if the
/// reader was done before.
fn brings_back(rounds: usize, more: Option<usize>) -> bool {
    // All writers share a slot.
    let mut play = Play::with_epochs(CAPACITY, 1);
    let (client, reader) = (play.patient(NEXT), play.hasty(LAST));
    let rival = play.client(ASTRAY, LoneClock::new(1_000_000), 1 << 40);
    play.all(&client, vec![(0, Call::Insert(800)), (0, Call::Update(803))], &NODES);
    play.all(&rival, warm(), &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.settle(&[NEXT, LAST, ASTRAY]);
    let story = Rc::clone(&client);
    play.sim.spawn(NEXT, async move {
        assert_eq!(story.call(0, Call::Update(807), Some(1)).await, Err(GaveUp::Dropped));
    });
    play.sim.poll_once(NEXT);
    let (posted, other): (Vec<_>, Vec<_>) =
        NODES.into_iter().partition(|&node| play.sim.on_their_way(NEXT, node) > 0);
    let ([only, second], [third]) = (&posted[..], &other[..]) else { panic!("a majority") };
    let (only, away) = (*only, [*second, *third]);
    play.sim.take_all(NEXT, only);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(NEXT, node));
    play.sim.poll_once(NEXT);
    assert_eq!(play.sim.tasks(NEXT), 0, "it was dropped");
    play.collect_and_wait(&client);
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    (0..rounds).for_each(|_| play.sim.roundtrip(LAST, &[only, away[0]]));
    if play.sim.tasks(LAST) == 0 {
        return false;
    }
    play.begin(&rival, vec![(0, Call::Update(811))]);
    play.sim.poll_once(ASTRAY);
    (0..4).for_each(|_| play.sim.roundtrip(ASTRAY, &[only]));
    NODES.into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    play.sim.crash_client(ASTRAY);
    assert!(play.sim.finish(NEXT, &NODES), "the collection ends");
    if let Some(more) = more {
        (0..more).for_each(|_| play.sim.roundtrip(LAST, &away[..1]));
        NODES.into_iter().for_each(|node| play.sim.lose_chains(LAST, node));
        play.sim.crash_client(LAST);
    } else {
        assert!(play.sim.finish(LAST, &away), "the read ends");
    }
    play.use_again(&client);
    let last = play.hasty(CREATOR);
    play.all(&last, vec![(0, Call::Get)], &away);
    play.is_linearizable();
    true
}

#[test]
fn what_a_reader_may_bring_back_is_no_garbage() {
    for more in [None, Some(1), Some(2), Some(3)] {
        let over = (0..ENOUGH).find(|&rounds| !brings_back(rounds, more));
        assert!(over > Some(1), "it takes some roundtrips");
    }
}

/// An update is acknowledged by the key's home and the next node. Then a rival's guess supersedes
/// it at the home, in the one slot that all writers share, and the rival dies. Now one of three
/// nodes shows the update, and no majority need show it; its buffer is still no garbage. Returns
/// false if this key's home is another node.
fn is_shown_by_one_node(key: u64) -> bool {
    const HOME: usize = 1;
    let mut play = Play::with_epochs(CAPACITY, 1);
    let client = play.patient(NEXT);
    let rival = play.client(ASTRAY, LoneClock::new(1_000_000), 1 << 40);
    play.all(&client, vec![(key, Call::Insert(800)), (key, Call::Update(803))], &NODES);
    play.begin(&client, vec![(key, Call::Update(811))]);
    play.sim.poll_once(NEXT);
    let posted = NODES.map(|node| play.sim.on_their_way(NEXT, node) > 0);
    assert!(play.sim.finish(NEXT, &NODES), "the update ends");
    play.settle(&[NEXT]);
    if posted != [false, true, true] {
        return false;
    }
    play.all(&rival, vec![(WARM, Call::Insert(808)), (WARM, Call::Update(815))], &NODES);
    play.all(&rival, vec![(key, Call::Get)], &NODES);
    play.settle(&[ASTRAY]);
    play.begin(&rival, vec![(key, Call::Update(807))]);
    play.sim.poll_once(ASTRAY);
    play.sim.take_all(ASTRAY, NODES[HOME]);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    play.sim.crash_client(ASTRAY);
    play.use_again(&client);
    let reader = play.hasty(LAST);
    play.all(&reader, vec![(key, Call::Get)], &all_but(NODES[HOME]));
    assert_eq!(play.last(), Some(Answer::Value(Some(811))));
    play.is_linearizable();
    true
}

#[test]
fn what_one_node_shows_is_no_garbage() {
    let keys = (20..26).filter(|&key| is_shown_by_one_node(key));
    assert!(keys.count() > 0, "none of them has its home there");
}

/// A key has a second value; the first one's buffer was created with the bucket's record. A client
/// changes the bucket and dies half-way, after `rounds` roundtrips. The next client may have to
/// propose the record again, with all that was created with it. Returns false if the change was
/// over before.
fn is_proposed_again(rounds: usize) -> bool {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let (client, astray) = (play.patient(NEXT), play.patient(ASTRAY));
    play.all(&astray, vec![(WARM, Call::Insert(808))], &NODES);
    play.all(&client, vec![(0, Call::Insert(803)), (0, Call::Update(807))], &NODES);
    play.settle(&[NEXT, ASTRAY]);
    play.get_back(&client);
    play.begin(&astray, vec![(2, Call::Insert(1))]);
    play.sim.poll_once(ASTRAY);
    // A fast round would need all nodes.
    play.sim.disconnect(ASTRAY, NODES[2], false);
    (0..rounds).for_each(|_| play.sim.roundtrip(ASTRAY, &NODES));
    if play.sim.tasks(ASTRAY) == 0 {
        return false;
    }
    play.sim.take_all(ASTRAY, NODES[0]);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    play.sim.crash_client(ASTRAY);
    let next = play.hasty(LAST);
    play.all(&next, vec![(0, Call::Get), (2, Call::Get), (2, Call::Put(5))], &NODES[..2]);
    play.use_again(&client);
    play.all(&next, vec![(0, Call::Get), (2, Call::Get)], &NODES[..2]);
    play.is_linearizable();
    true
}

#[test]
fn what_came_with_a_record_is_no_garbage_while_the_record_is_there() {
    let over = (0..ENOUGH).find(|&rounds| !is_proposed_again(rounds));
    assert!(over > Some(1), "it takes some roundtrips");
}

/// While a client looks up a key, after `rounds` roundtrips, the key is deleted and inserted again,
/// and its old register turns out to be garbage. Another operation that the client begins
/// invalidates its cached locations; what the first one found must not be cached after that.
/// Returns false if that one was over before.
fn is_remembered(rounds: usize) -> bool {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let (client, reader, other) = (play.patient(NEXT), play.patient(LAST), play.patient(CREATOR));
    play.all(&client, vec![(0, Call::Insert(800))], &NODES);
    play.all(&reader, vec![(WARM, Call::Insert(804))], &NODES);
    play.all(&other, vec![(WARM + 1, Call::Insert(808))], &NODES);
    play.settle(&[NEXT, LAST, CREATOR]);
    play.collect_and_wait(&client);
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    (0..rounds).for_each(|_| play.sim.roundtrip(LAST, &NODES));
    if play.sim.tasks(LAST) == 0 {
        return false;
    }
    // Its next operation comes after the invalidation.
    play.settle(&[LAST]);
    play.all(&other, vec![(0, Call::Delete), (0, Call::Insert(812))], &NODES);
    assert!(play.sim.finish(NEXT, &NODES), "the collection ends");
    play.begin(&reader, vec![(WARM, Call::Get)]);
    play.task(LAST, 1, |play| (play.sim.tasks(LAST) == 1).then_some(()));
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.get_back(&client);
    // Keys whose registers are as large, and have the same home.
    let keys = || (1..=4).map(|n| 3 * n);
    play.all(&client, keys().map(|key| (key, Call::Insert(816 + 4 * key))).collect(), &NODES);
    play.all(&reader, vec![(0, Call::Update(904))], &NODES);
    play.all(&client, keys().chain([0]).map(|key| (key, Call::Get)).collect(), &NODES);
    play.is_linearizable();
    true
}

#[test]
fn a_place_that_was_found_in_an_earlier_generation_is_not_remembered() {
    let over = (0..ENOUGH).find(|&rounds| !is_remembered(rounds));
    assert!(over > Some(0), "it takes some roundtrips");
}

/// Buckets were split before the client ran a cycle; more are split with the memory that it freed.
#[test]
fn what_a_split_names_is_no_garbage() {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let (client, reader) = (play.patient(NEXT), play.hasty(LAST));
    let inserts = |keys: std::ops::Range<u64>| keys.map(|key| (key, Call::Insert(800 + 4 * key)));
    play.all(&client, inserts(0..16).collect(), &NODES);
    play.get_back(&client);
    play.all(&client, inserts(16..64).collect(), &NODES);
    for away in NODES {
        play.all(&reader, (0..64).map(|key| (key, Call::Get)).collect(), &all_but(away));
    }
    play.is_linearizable();
}

/// Bytes of a small pool's nodes.
const SMALL: u64 = MIN_CAPACITY;
/// Values that leave no room in it for one more of the largest, but for others.
const LARGE: [(&str, usize); 3] = [("a", MAX_VALUE), ("b", MAX_VALUE), ("c", 100 << 10)];

fn small_pool() -> Geometry {
    Geometry::new(3, SMALL, 16, 7).expect("a small geometry")
}

/// A value whose buffer is as large as a record of the chunk map.
fn as_large_as_a_map() -> Vec<u8> {
    let words = record::HEADER_WORDS + small_pool().map_payload() - buffer::HEADER_WORDS;
    vec![7; 8 * words]
}

impl Play {
    /// A client begins to put these. Only the largest values may be refused for lack of room.
    fn put(&mut self, story: &ClientStory, values: &[(&str, Vec<u8>)]) {
        let (story, values) = (
            Rc::clone(story),
            Vec::from_iter(values.iter().cloned().map(|(key, value)| (key.to_owned(), value))),
        );
        let works = self.notes.as_ref().map(|notes| Works::new(notes, story.id));
        self.sim.spawn(story.id, async move {
            let _works = works;
            for (key, value) in values {
                let put = story.client.put(key.as_bytes(), &value).await;
                let full = matches!(put, Err(Error::Full(_)));
                assert!(put.is_ok() || full && value.len() == MAX_VALUE, "{key}: {put:?}");
            }
        });
    }

    /// A client puts these.
    fn has_put(&mut self, story: &ClientStory, values: &[(&str, Vec<u8>)]) {
        self.put(story, values);
        assert!(self.sim.finish(story.id, &NODES), "the puts end");
    }
}

/// A client's value is too large for the pool. The record for its change of the chunk map is kept
/// for the next change.
fn keeps_a_record() -> (Play, ClientStory) {
    let mut play = Play::with_epochs(SMALL, 6);
    let client = play.patient(NEXT);
    // No other client has chunks that it could take over.
    play.has_put(&client, &LARGE.map(|(key, bytes)| (key, vec![1; bytes])));
    // From now on it has memory for all that it puts here, and for maps.
    play.has_put(&client, &[("long", as_large_as_a_map())]);
    play.settle(&[NEXT]);
    play.put(&client, &[("d", vec![1; MAX_VALUE])]);
    (play, client)
}

/// A value that takes a change of the map, and nothing else that does.
const OF_ANOTHER_SIZE: (&str, usize) = ("long", 5000);

/// While the client runs a cycle, `rounds` roundtrips after `epochs` epochs, it changes the map
/// with that record. Then the node dies that has the map in place, and another client needs the
/// map.
fn proposes_what_it_kept(epochs: u64, rounds: usize) {
    let (mut play, client) = keeps_a_record();
    let notes = play.notes.clone().expect("memory comes back");
    let until = notes.epoch() + epochs;
    while notes.epoch() < until {
        assert!(play.sim.tasks(NEXT) > 0, "it looks for garbage");
        play.sim.roundtrip(NEXT, &NODES);
    }
    (0..rounds).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    let (key, bytes) = OF_ANOTHER_SIZE;
    play.has_put(&client, &[(key, vec![2; bytes])]);
    play.get_back(&client);
    let home = small_pool().map_cell().home;
    play.sim.crash_node(home, false);
    let others = all_but(home);
    let reader = play.hasty(LAST);
    play.put(&reader, &[("e", vec![3; 100])]);
    assert!(play.sim.finish(LAST, &others), "the put ends");
}

#[test]
fn a_record_that_was_kept_and_is_used_is_no_garbage() {
    let _playing = Playing::each_point();
    for epochs in 2..6 {
        (0..16).filter(|&it| is_played(it)).for_each(|it| proposes_what_it_kept(epochs, it));
    }
}

/// A client deletes keys and reclaims the memory of their registers. After `rounds` roundtrips of
/// that, one connection breaks, and the chains in flight are lost: that node may show the registers
/// as they were, deleted. Keys that are inserted there later can still be read, whichever nodes
/// answer. Returns false if the memory was reclaimed before.
fn is_as_good_as_new(rounds: usize, away: NodeId) -> bool {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let client = play.patient(NEXT);
    // Registers are as large, and each node is the home of some.
    let keys = |from: u64| (from..from + 4).map(|n| 3 * n);
    let inserts =
        |from, value: u64| keys(from).map(move |key| (key, Call::Insert(value + 4 * key)));
    play.all(&client, inserts(0, 800).collect(), &NODES);
    play.all(&client, keys(0).map(|key| (key, Call::Delete)).collect(), &NODES);
    play.sim.drain();
    let mut left = rounds;
    for _ in 0..3 {
        play.begin_to_collect(&client);
        while left > 0 && play.sim.tasks(NEXT) > 0 {
            left -= usize::from(play.sim.on_their_way(NEXT, away) > 0);
            play.sim.roundtrip(NEXT, &NODES);
        }
        if play.sim.tasks(NEXT) > 0 {
            break;
        }
    }
    if play.sim.tasks(NEXT) == 0 {
        return false;
    }
    play.sim.disconnect(NEXT, away, false);
    assert!(play.sim.finish(NEXT, &NODES), "the collection ends");
    play.get_back(&client);
    play.all(&client, inserts(8, 900).collect(), &NODES);
    let reader = play.hasty(LAST);
    for away in NODES {
        play.all(&reader, keys(8).map(|key| (key, Call::Get)).collect(), &all_but(away));
    }
    play.is_linearizable();
    true
}

#[test]
fn what_is_used_again_is_as_good_as_new_at_every_node() {
    for away in NODES {
        let over = (0..ENOUGH).find(|&rounds| !is_as_good_as_new(rounds, away));
        assert!(over > Some(0), "it takes some roundtrips");
    }
}

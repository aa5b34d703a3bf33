//! Stories of chunks that change hands.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::fabric::NodeId;
use swarm_core::geometry::MIN_CAPACITY;
use swarm_core::sim::explore::LoneClock;
use swarm_kv::Error;

use crate::board::Works;
use crate::play::{ASTRAY, ENOUGH, LAST, NEXT, NODES, Play, all_but};
use crate::store_sim_common::Story;

type Teller = Rc<Story>;

/// A value that takes chunks of its own. Who took its words for a stamp would take it for a delete's.
const LONG: (&str, usize) = ("key", 300 << 10);
/// So many values that take a chunk each fill the pool but for what is kept for updates.
const SHORTER: usize = 45;
/// Its register's majority is the first two nodes. A reader reaches one of them, and the third.
const APART: [NodeId; 2] = [NODES[0], NODES[2]];
/// A register for such a key takes a chunk that nobody has.
const ANOTHER_SIZE: [u8; 200] = [b'k'; 200];

/// After so many roundtrips a reader has not come to the value yet.
const FIRST: usize = 9;
/// Nanoseconds that pass when a clock is looked at: so many that nobody waits for long.
const LOOK: u64 = 10_000;

impl Play {
    /// A client puts these values, whose bytes are all the same, as far as there is room for them.
    /// Yields how many those were.
    fn puts(&mut self, story: &Teller, values: Vec<(&[u8], usize, u8)>) -> usize {
        let done = Rc::<Cell<usize>>::default();
        let (story, told) = (Rc::clone(story), Rc::clone(&done));
        let values: Vec<_> =
            values.into_iter().map(|(key, len, byte)| (key.to_vec(), vec![byte; len])).collect();
        let (id, works) = (story.id, self.notes.as_ref().map(|notes| Works::new(notes, story.id)));
        self.sim.spawn(id, async move {
            let _works = works;
            for (key, value) in values {
                match story.client.put(&key, &value).await {
                    Ok(()) => told.set(told.get() + 1),
                    put => assert!(matches!(put, Err(Error::Full(_))), "{put:?}"),
                }
            }
        });
        assert!(self.sim.finish(id, &NODES), "the puts end");
        done.get()
    }

    /// A client begins to get a key, and demands this value.
    fn demand(&mut self, story: &Teller, key: &[u8], values: Vec<Vec<u8>>) {
        let (story, key, id) = (Rc::clone(story), key.to_vec(), story.id);
        let works = self.notes.as_ref().map(|notes| Works::new(notes, story.id));
        self.sim.spawn(id, async move {
            let _works = works;
            let got = story.client.get(&key).await.expect("a majority answers");
            let got = got.as_deref();
            assert!(values.iter().any(|value| got == Some(value)), "another value of {key:?}");
        });
        self.sim.poll_once(id);
    }
}

/// A client's long value is at a majority, and a reader is about to fetch it. After
/// `rounds` roundtrips of that the client writes a short value, which takes the place of the long one;
/// then it needs a chunk for something else, and the pool has none. The long value's chunks are the
/// only ones in which nothing is in use. False if the reader was done before.
fn is_left(rounds: usize) -> bool {
    let mut play = Play::recycling(MIN_CAPACITY, 6);
    let clock = Rc::new(LoneClock::new(10_000).with_look(LOOK));
    let client = play.client(NEXT, Rc::clone(&clock), 1 << 40);
    let reader = play.hasty(LAST);
    let (key, length) = (LONG.0.as_bytes(), LONG.1);
    assert_eq!(play.puts(&client, vec![(key, 8, 1), (b"a", 8, 1)]), 2);
    play.demand(&reader, key, vec![vec![1; 8]]);
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.sim.drain();
    assert_eq!(play.puts(&client, vec![(key, length, 0xff)]), 1);
    // Nobody looks for memory yet: all of this fits, and after it nothing else does.
    let names: Vec<String> = (0..SHORTER).map(|n| format!("{n}")).collect();
    let fits = play.puts(&client, names.iter().map(|n| (n.as_bytes(), 40 << 10, 2)).collect());
    assert_eq!(fits, SHORTER);
    let (long, short) = (vec![0xff; length], vec![3; 8]);
    play.demand(&reader, key, vec![long, short.clone()]);
    (0..rounds).for_each(|_| play.sim.roundtrip(LAST, &APART));
    if play.sim.tasks(LAST) == 0 {
        return false;
    }
    assert_eq!(play.puts(&client, vec![(key, 8, 3)]), 1);
    let fits = play.puts(&client, vec![(&ANOTHER_SIZE, 8, 4)]);
    assert_eq!(fits, 0, "the reader may still write there");
    assert!(play.sim.finish(LAST, &APART), "the get ends");
    // Later, when the reader is done, the chunks are to be had.
    play.sim.drain();
    clock.pass(1 << 30);
    assert_eq!(play.puts(&client, vec![(&ANOTHER_SIZE, 8, 4)]), 1);
    for away in NODES {
        let others = all_but(away);
        let last = play.hasty(ASTRAY);
        for (key, value) in [(&ANOTHER_SIZE[..], vec![4; 8]), (key, short.clone())] {
            play.demand(&last, key, vec![value]);
            assert!(play.sim.finish(ASTRAY, &others), "the get ends");
        }
    }
    true
}

#[test]
fn chunks_are_kept_while_somebody_may_write_what_lay_there() {
    // Before that it looks for the key.
    let over = (FIRST..ENOUGH).find(|&rounds| !is_left(rounds));
    assert!(over > Some(FIRST), "it takes some roundtrips");
}

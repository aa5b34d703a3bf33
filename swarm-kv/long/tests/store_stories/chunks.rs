//! Scenarios of chunks that change owners.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::layout::MIN_CAPACITY;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::seeds::until_over;
use swarm_kv::Error;

use crate::domain::Works;
use crate::play::{ASTRAY, ENOUGH, LAST, NEXT, NODES, Play, all_but};
use crate::store_sim_common::Story;

type ClientStory = Rc<Story>;

/// A value that takes chunks of its own. Read as a stamp, its words would be a delete's.
const LONG: (&str, usize) = ("key", 300 << 10);
/// How many values that take a chunk each fill the pool, except for what is reserved for updates.
const SHORTER: usize = 45;
/// Its register's majority is the first two nodes. A reader reaches one of them, and the third.
const APART: [NodeId; 2] = [NODES[0], NODES[2]];
/// A register for such a key takes a chunk that no client has.
const ANOTHER_SIZE: [u8; 200] = [b'k'; 200];

/// After this many roundtrips a reader has not reached the value yet.
const FIRST: usize = 9;
/// After this many, a client that needs a chunk has not begun to release any.
const SEARCHES: usize = 45;
/// Nanoseconds that pass at each reading of a clock: enough that no client waits for long.
const LOOK: u64 = 10_000;

impl Play {
    /// A client puts these values, whose bytes are all the same, as far as there is room for them.
    /// Returns how many those were.
    fn puts(&mut self, story: &ClientStory, values: Vec<(&[u8], usize, u8)>) -> usize {
        let done = self.begin_puts(story, values);
        assert!(self.sim.finish(story.id, &NODES), "the puts end");
        done.get()
    }

    /// The same, as far as it gets without an answer.
    fn begin_puts(
        &mut self,
        story: &ClientStory,
        values: Vec<(&[u8], usize, u8)>,
    ) -> Rc<Cell<usize>> {
        let done = Rc::<Cell<usize>>::default();
        let (story, outcome) = (Rc::clone(story), Rc::clone(&done));
        let values: Vec<_> =
            values.into_iter().map(|(key, len, byte)| (key.to_vec(), vec![byte; len])).collect();
        let (id, works) = (story.id, self.notes.as_ref().map(|notes| Works::new(notes, story.id)));
        self.sim.spawn(id, async move {
            let _works = works;
            for (key, value) in values {
                match story.client.put(&key, &value).await {
                    Ok(()) => outcome.set(outcome.get() + 1),
                    put => assert!(matches!(put, Err(Error::Full(_))), "{put:?}"),
                }
            }
        });
        self.sim.poll_once(id);
        done
    }

    /// A client's value takes chunks of its own, and others fill the pool, before any client
    /// searches for memory: all of this fits, and after it nothing else does.
    fn fills(&mut self, story: &ClientStory) {
        let (key, length) = LONG;
        assert_eq!(self.puts(story, vec![(key.as_bytes(), length, 0xff)]), 1);
        let names: Vec<String> = (0..SHORTER).map(|n| format!("{n}")).collect();
        let values = names.iter().map(|name| (name.as_bytes(), 40 << 10, 2)).collect();
        assert_eq!(self.puts(story, values), SHORTER);
    }

    /// A client begins to get a key, and expects one of these values.
    fn demand(&mut self, story: &ClientStory, key: &[u8], values: Vec<Vec<u8>>) {
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

/// A client's long value is at a majority, and a reader is about to fetch it. After `rounds`
/// roundtrips of that the client writes a short value, which supersedes the long one; then it needs
/// a chunk for something else, and the pool has none. Only in the long value's chunks is nothing in
/// use. Returns false if the reader was done before.
fn is_left(rounds: usize) -> bool {
    let mut play = Play::with_epochs(MIN_CAPACITY, 6);
    let clock = Rc::new(LoneClock::new(10_000).with_look(LOOK));
    let client = play.client(NEXT, Rc::clone(&clock), 1 << 40);
    let reader = play.hasty(LAST);
    let (key, length) = (LONG.0.as_bytes(), LONG.1);
    assert_eq!(play.puts(&client, vec![(key, 8, 1), (b"a", 8, 1)]), 2);
    play.demand(&reader, key, vec![vec![1; 8]]);
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.sim.drain();
    play.fills(&client);
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
    // Later, when the reader is done, the chunks can be released.
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
    // Before that it looks the key up.
    let over = (FIRST..ENOUGH).find(|&rounds| !is_left(rounds));
    assert!(over > Some(FIRST), "it takes some roundtrips");
}

/// A long value is superseded, and a client needs a chunk for something else. It is about to
/// release the value's chunks; after `rounds` roundtrips, one connection breaks, and the chains in
/// flight are lost. That node still has the long value's words, which look like a delete's stamp.
/// Objects created there later can still be read, whichever nodes answer. Returns false if the
/// client was done before.
fn is_cleared(rounds: usize, away: NodeId) -> bool {
    let mut play = Play::with_epochs(MIN_CAPACITY, 6);
    let clock = Rc::new(LoneClock::new(10_000).with_look(LOOK));
    let client = play.client(NEXT, Rc::clone(&clock), 1 << 40);
    play.fills(&client);
    let key = LONG.0.as_bytes();
    assert_eq!(play.puts(&client, vec![(key, 8, 3)]), 1);
    play.sim.drain();
    play.begin_puts(&client, vec![(&ANOTHER_SIZE, 8, 4)]);
    (0..rounds).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    if play.sim.tasks(NEXT) == 0 {
        return false;
    }
    play.sim.disconnect(NEXT, away, false);
    assert!(play.sim.finish(NEXT, &NODES), "the put ends");
    play.sim.drain();
    clock.pass(1 << 30);
    let others: Vec<[u8; 200]> = (0..4).map(|n| [b'l' + n; 200]).collect();
    let keys: Vec<&[u8]> = others.iter().chain([&ANOTHER_SIZE]).map(|key| &key[..]).collect();
    assert_eq!(play.puts(&client, keys.iter().map(|&key| (key, 8, 4)).collect()), keys.len());
    for away in NODES {
        let last = play.hasty(ASTRAY);
        for &key in &keys {
            play.demand(&last, key, vec![vec![4; 8]]);
            assert!(play.sim.finish(ASTRAY, &all_but(away)), "the get ends");
        }
    }
    true
}

#[test]
fn chunks_are_not_left_with_words_of_theirs_at_a_node() {
    let over = until_over(SEARCHES..ENOUGH, |rounds| !is_cleared(rounds, NODES[2]));
    assert!(over > Some(SEARCHES), "it takes some roundtrips");
}

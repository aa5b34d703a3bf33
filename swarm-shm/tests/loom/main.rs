//! The words under the memory model: loom runs the fabric's own chains in every order that the
//! model allows, reordered and stale loads included.
//!
//! These are the orders that the protocols rest on, each alone, with small versions of the loops of
//! In-n-Out and of the lock, so that few models need a bound. In [`register`], swarm-core's own
//! reads and writes run on such words.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p swarm-shm --profile prove --test loom
//! ```

#![cfg(loom)]

mod cell;
mod epochs;
mod events;
mod register;
mod waits;

use std::cell::Cell;

use loom::sync::Arc;
use loom::thread;
use swarm_core::fabric::Verb;
use swarm_core::node::Address;
use swarm_core::words::{LockMode, LockWord, WriteNumber};
use swarm_shm::{FIRST_WORD, Word, clear, load, run};

/// One node's words.
#[derive(Clone)]
struct Node(Arc<Vec<Word>>);

impl Node {
    fn new(words: usize) -> Self {
        Self(Arc::new((0..words).map(|_| Word::new(0)).collect()))
    }
}

/// One client's access to nodes.
#[derive(Default)]
struct Client {
    unfenced: Cell<bool>,
}

impl Client {
    fn post<const N: usize>(&self, node: &Node, chain: &[Verb<'_>]) -> [u64; N] {
        let mut reply = [0; N];
        run(&node.0, chain, &self.unfenced, &mut reply).expect("within the node");
        reply
    }

    /// Zeroes one word.
    fn clear(&self, node: &Node, word: u64) {
        clear::<1>(&node.0, &[at(word)], &self.unfenced).expect("within the node");
    }
}

fn at(word: u64) -> Address {
    Address(FIRST_WORD + word)
}

fn read(word: u64, words: usize) -> Verb<'static> {
    Verb::Read { at: at(word), words }
}

fn write(word: u64, head: &[u64]) -> Verb<'_> {
    Verb::Write { at: at(word), head, tail: &[] }
}

fn cas(word: u64, expect: u64, new: u64) -> Verb<'static> {
    Verb::Cas { at: at(word), expect, new }
}

/// Explores a model with at most `preemptions` preemptions, or without a bound.
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// Stands for the checksum of a value of one word.
fn checksum(stamp: u64, value: u64) -> u64 {
    (stamp * 1000 + value) ^ 0x5555
}

const SLOTS: u64 = 0;
const SLOT_COUNT: usize = 2;
const IN_PLACE: u64 = 2;
const BUFFERS: u64 = 5;
const BUFFER_WORDS: u64 = 2;
const WORDS: usize = (BUFFERS + 2 * BUFFER_WORDS) as usize;

/// Client `me` writes at one node: buffer, own slot, and a READ of all slots, in one chain.
fn in_n_out_write(client: &Client, node: &Node, me: u64, stamp: u64) -> u64 {
    let value = 10 * stamp;
    let buffer = [value, checksum(stamp, value)];
    let chain = [
        write(BUFFERS + me * BUFFER_WORDS, &buffer),
        cas(SLOTS + me, 0, stamp),
        read(SLOTS, SLOT_COUNT),
    ];
    let [found, first, second] = client.post(node, &chain);
    assert_eq!(found, 0, "nobody else writes this slot");
    let own = [first, second][me as usize];
    assert_eq!(own, stamp, "a READ behind a CAS sees it");
    first.max(second)
}

/// Reads the slots, then the buffer of the largest stamp. A stamp names its client.
fn in_n_out_read(client: &Client, node: &Node) -> u64 {
    let [first, second] = client.post(node, &[read(SLOTS, SLOT_COUNT)]);
    let stamp = first.max(second);
    if stamp != 0 {
        let writer = u64::from(second > first);
        let [value, sum] =
            client.post(node, &[read(BUFFERS + writer * BUFFER_WORDS, BUFFER_WORDS as usize)]);
        assert_eq!((value, sum), (10 * stamp, checksum(stamp, 10 * stamp)), "the buffer is there");
    }
    stamp
}

#[test]
fn a_client_that_sees_a_stamp_sees_the_buffer_behind_it() {
    explore(None, || {
        let node = Node::new(WORDS);
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            in_n_out_write(&Client::default(), &theirs, 0, 1);
        });
        let client = Client::default();
        let first = in_n_out_read(&client, &node);
        let second = in_n_out_read(&client, &node);
        assert!(second >= first, "stamps only grow");
        writer.join().expect("the writer");
        assert_eq!(in_n_out_read(&client, &node), 1);
    });
}

/// The same by the common chains of one READ.
#[test]
fn a_client_that_loads_a_stamp_sees_the_buffer_behind_it() {
    explore(None, || {
        let node = Node::new(WORDS);
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            let [_] = Client::default().post(&theirs, &[write(1, &[7]), cas(0, 0, 1)]);
        });
        let client = Client::default();
        let load = |word| load::<1>(&node.0, at(word), &client.unfenced).expect("within the node");
        let ([stamp], [buffer]) = (load(0), load(1));
        assert!(stamp == 0 || buffer == 7, "stamp {stamp}, buffer {buffer}");
        writer.join().expect("the writer");
    });
}

#[test]
fn two_writers_and_a_reader() {
    explore(None, || {
        let node = Node::new(WORDS);
        let writers: Vec<_> = (0..2)
            .map(|me| {
                let node = node.clone();
                thread::spawn(move || in_n_out_write(&Client::default(), &node, me, me + 1))
            })
            .collect();
        let client = Client::default();
        let first = in_n_out_read(&client, &node);
        assert!(in_n_out_read(&client, &node) >= first, "stamps only grow");
        let maxima: Vec<_> = writers.into_iter().map(|w| w.join().expect("a writer")).collect();
        assert_eq!(maxima[1], 2, "the larger stamp is its writer's maximum");
        assert_eq!(in_n_out_read(&client, &node), 2);
    });
}

/// Each CASes its slot and then READs both. If both could miss the other, both would take their
/// guess for the maximum.
#[test]
fn of_two_writers_one_sees_the_other() {
    explore(None, || {
        let node = Node::new(WORDS);
        let theirs = node.clone();
        let other = thread::spawn(move || in_n_out_write(&Client::default(), &theirs, 0, 1));
        let client = Client::default();
        let [_, first, second] =
            client.post(&node, &[cas(SLOTS + 1, 0, 2), read(SLOTS, SLOT_COUNT)]);
        let theirs = other.join().expect("the other writer");
        assert!(first == 1 || theirs == 2, "neither saw the other");
        assert_eq!(second, 2);
    });
}

/// The same with a plain WRITE and a READ, in one chain or in two.
#[test]
fn a_read_does_not_pass_a_write() {
    for chains in [1, 2] {
        explore(None, move || {
            let node = Node::new(2);
            let both = move |node: &Node, mine: u64| {
                let client = Client::default();
                let verbs = [write(mine, &[1]), read(1 - mine, 1)];
                if chains == 1 {
                    let [other] = client.post(node, &verbs);
                    return other;
                }
                client.post::<0>(node, &verbs[..1]);
                let [other] = client.post(node, &verbs[1..]);
                other
            };
            let theirs = node.clone();
            let other = thread::spawn(move || both(&theirs, 0));
            let mine = both(&node, 1);
            assert!(mine == 1 || other.join().expect("the other") == 1, "both READs came first");
        });
    }
}

/// WRITEs of one client are seen in order, even if no CAS comes in between.
#[test]
fn a_write_does_not_pass_a_write() {
    explore(None, || {
        let node = Node::new(2);
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            Client::default().post::<0>(&theirs, &[write(0, &[1]), write(1, &[1])]);
        });
        let [second, first] = Client::default().post(&node, &[read(1, 1), read(0, 1)]);
        assert!(second == 0 || first == 1, "the second WRITE came first");
        writer.join().expect("the writer");
    });
}

/// Zeros of the common chain are seen in order as well.
#[test]
fn zeros_do_not_pass_a_write() {
    explore(None, || {
        let node = Node::new(2);
        let client = Client::default();
        client.post::<0>(&node, &[write(1, &[1])]);
        let theirs = node.clone();
        let writer = thread::spawn(move || {
            let client = Client::default();
            client.post::<0>(&theirs, &[write(0, &[1])]);
            client.clear(&theirs, 1);
        });
        let [second, first] = client.post(&node, &[read(1, 1), read(0, 1)]);
        assert!(second == 1 || first == 1, "the zeros came first");
        writer.join().expect("the writer");
    });
}

#[test]
fn a_read_does_not_pass_zeros() {
    explore(None, || {
        let node = Node::new(2);
        Client::default().post::<0>(&node, &[write(0, &[1, 1])]);
        let both = |node: &Node, mine: u64| {
            let client = Client::default();
            client.clear(node, mine);
            let [other] = client.post(node, &[read(1 - mine, 1)]);
            other
        };
        let theirs = node.clone();
        let other = thread::spawn(move || both(&theirs, 0));
        let mine = both(&node, 1);
        assert!(mine == 0 || other.join().expect("the other") == 0, "both READs came first");
    });
}

/// A stamp that a second client writes back publishes the buffer, as the stamp itself does.
#[test]
fn publication_is_passed_on() {
    explore(None, || {
        let node = Node::new(4);
        let (first, second) = (node.clone(), node.clone());
        let writer = thread::spawn(move || {
            Client::default().post::<1>(&first, &[write(2, &[7]), cas(0, 0, 1)]);
        });
        let helper = thread::spawn(move || {
            let client = Client::default();
            let [seen] = client.post(&second, &[read(0, 1)]);
            if seen == 1 {
                client.post::<1>(&second, &[cas(1, 0, 1)]);
            }
        });
        let client = Client::default();
        let [outcome] = client.post(&node, &[read(1, 1)]);
        if outcome == 1 {
            let [stamp, _, value] = client.post(&node, &[read(0, 3)]);
            assert_eq!((stamp, value), (1, 7));
        }
        writer.join().expect("the writer");
        helper.join().expect("the helper");
    });
}

/// Several clients write the in-place copy without any order. Whatever a reader finds, a copy with
/// a matching checksum is one that some client wrote, for the stamp that it carries.
#[test]
fn a_torn_in_place_copy_is_noticed() {
    let torn = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let met = torn.clone();
    explore(Some(4), move || {
        let node = Node::new(WORDS);
        let writers: Vec<_> = (1..3)
            .map(|stamp| {
                let node = node.clone();
                thread::spawn(move || {
                    let copy = [stamp, checksum(stamp, 10 * stamp), 10 * stamp];
                    Client::default().post::<0>(&node, &[write(IN_PLACE, &copy)]);
                })
            })
            .collect();
        let [stamp, sum, value] = Client::default().post(&node, &[read(IN_PLACE, 3)]);
        if sum == checksum(stamp, value) {
            assert_eq!(value, 10 * stamp);
        } else if stamp != 0 {
            met.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        for writer in writers {
            writer.join().expect("a writer");
        }
    });
    assert!(torn.load(std::sync::atomic::Ordering::Relaxed), "tearing is in the model");
}

/// Takes the lock at one node, as the protocol does: by CAS until it holds a number at least as
/// large.
fn try_lock(node: &Node, number: u64, mode: LockMode) -> bool {
    let client = Client::default();
    let mine = LockWord::new(WriteNumber(number), mode);
    let mut expect = 0;
    loop {
        let [found] = client.post(node, &[cas(0, expect, mine.0)]);
        if found == expect {
            return true;
        }
        if LockWord(found).number() >= mine.number() {
            return found == mine.0;
        }
        expect = found;
    }
}

#[test]
fn a_lock_is_won_in_one_mode_at_most() {
    explore(None, || {
        let node = Node::new(1);
        let (first, second) = (node.clone(), node.clone());
        let reader = thread::spawn(move || try_lock(&first, 5, LockMode::Read));
        let helper = thread::spawn(move || try_lock(&second, 5, LockMode::Read));
        let writer = try_lock(&node, 5, LockMode::Write);
        let (reader, helper) = (reader.join().expect("joined"), helper.join().expect("joined"));
        assert_eq!(reader, helper, "readers win together");
        assert_ne!(reader, writer, "one mode wins");
    });
}

/// Three nodes; the lock is won at a majority.
#[test]
fn a_majority_locks_in_one_mode_at_most() {
    explore(None, || {
        let nodes: [Node; 3] = std::array::from_fn(|_| Node::new(1));
        let take = |nodes: &[Node; 3], order: [usize; 3], mode| {
            order.into_iter().filter(|&node| try_lock(&nodes[node], 5, mode)).count() >= 2
        };
        let theirs = nodes.clone();
        let reader = thread::spawn(move || take(&theirs, [0, 1, 2], LockMode::Read));
        let writer = take(&nodes, [2, 1, 0], LockMode::Write);
        assert!(writer ^ reader.join().expect("the reader"), "one mode wins");
    });
}

#[test]
fn a_newer_write_takes_the_lock_over_for_good() {
    explore(None, || {
        let node = Node::new(1);
        let theirs = node.clone();
        let newer = thread::spawn(move || try_lock(&theirs, 6, LockMode::Read));
        let older = try_lock(&node, 5, LockMode::Write);
        assert!(newer.join().expect("joined"), "nobody else wants the newer one");
        let [left] = Client::default().post(&node, &[read(0, 1)]);
        assert_eq!(LockWord(left), LockWord::new(WriteNumber(6), LockMode::Read), "{older}");
    });
}

/// Writers that share a slot: CAS until the slot holds one's stamp or a larger one.
#[test]
fn a_shared_slot_ends_at_its_largest_stamp() {
    explore(None, || {
        let node = Node::new(WORDS);
        let raise = |node: &Node, stamp: u64| {
            let client = Client::default();
            let mut expect = 0;
            loop {
                let [found, now] = client.post(node, &[cas(0, expect, stamp), read(0, 1)]);
                assert!(now >= found.max(expect), "a slot only grows");
                if found == expect || found >= stamp {
                    return;
                }
                expect = found;
            }
        };
        let threads: Vec<_> = (1..3)
            .map(|stamp| {
                let node = node.clone();
                thread::spawn(move || raise(&node, stamp))
            })
            .collect();
        raise(&node, 3);
        for thread in threads {
            thread.join().expect("a writer");
        }
        let [left] = Client::default().post(&node, &[read(0, 1)]);
        assert_eq!(left, 3);
    });
}

/// Two clients that count by CAS lose no increment.
#[test]
fn cas_against_cas_loses_nothing() {
    explore(None, || {
        let node = Node::new(1);
        let add = |node: &Node| {
            let client = Client::default();
            let [mut seen] = client.post(node, &[read(0, 1)]);
            loop {
                let [found] = client.post(node, &[cas(0, seen, seen + 1)]);
                if found == seen {
                    return;
                }
                seen = found;
            }
        };
        let theirs = node.clone();
        let other = thread::spawn(move || add(&theirs));
        add(&node);
        other.join().expect("the other");
        assert_eq!(Client::default().post(&node, &[read(0, 1)]), [2]);
    });
}

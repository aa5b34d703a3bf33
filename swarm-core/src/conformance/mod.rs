//! What every fabric must do: one suite, run on each.
//!
//! [`run`] checks what verbs return, that chains and verbs take effect in order, and that
//! completions may be dropped and replies kept, with two clients in one thread. [`race()`] has
//! clients in threads of their own.
//!
//! A fabric may bound its replies: the suite is given the number of words, and asks for no more
//! except to see that more is refused. It uses as many [words](words()) of each node from `base`
//! on, whatever they hold, and waits by polling. Between polls it calls `idle`, for fabrics whose
//! caller must drive them.

mod race;

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::vec;
use std::vec::Vec;

use crate::fabric::{Fabric, MAX_VERBS, Store, Swap, Verb};
use crate::node::{Address, NodeId};

use race::added;
pub use race::race;

/// The longest reply that the protocols ask for, in words: a value of a mebibyte and what precedes
/// it. The bound of a fabric that has none.
pub const LONGEST: usize = (1 << 17) + 8;

/// The smallest bound that a fabric may have: a reply to a full chain of CASes.
pub const SHORTEST: usize = MAX_VERBS;

/// Returns how many words of each node's memory the suite uses on a fabric whose replies have up to
/// `reply` words.
pub const fn words(reply: usize) -> usize {
    reply + 1024
}

/// Polls of one future before the suite gives up.
const POLLS: u64 = 1_000_000_000;

/// Runs the suite. `make` makes a fabric for client 0 and for client 1; all nodes are up. Replies
/// have up to `reply` words, from [`SHORTEST`] to [`LONGEST`].
///
/// # Panics
/// If the fabric does not do what it must, or cannot have that bound.
pub fn run<F: Fabric>(make: impl Fn(usize) -> F, base: Address, reply: usize, idle: impl Fn()) {
    assert!((SHORTEST..=LONGEST).contains(&reply), "a bound has {SHORTEST} to {LONGEST} words");
    let clients = [make(0), make(1)];
    for node in nodes(&clients[0]) {
        let suite = Suite { clients: &clients, node, base, reply, idle: &idle };
        suite.words_are_written_and_read();
        suite.tails_fill_the_last_word();
        suite.words_are_compared_and_swapped();
        suite.verbs_take_effect_in_order();
        suite.chains_take_effect_in_order();
        suite.what_is_posted_is_copied();
        suite.dropped_completions_still_run();
        suite.replies_are_kept_until_dropped();
        suite.many_are_in_flight();
        suite.verbs_may_be_empty();
        suite.longest_replies_are_whole();
        suite.longer_replies_are_whole_or_refused();
        suite.clients_share_the_words();
        suite.nodes_are_apart();
        if clients[0].is_near() {
            suite.common_chains_do_what_posts_do();
        }
    }
}

struct Suite<'s, F, I> {
    clients: &'s [F; 2],
    node: NodeId,
    base: Address,
    /// Words of the longest reply.
    reply: usize,
    idle: &'s I,
}

impl<F: Fabric, I: Fn()> Suite<'_, F, I> {
    fn at(&self, word: usize) -> Address {
        self.base.plus(word)
    }

    fn post(&self, chain: &[Verb<'_>]) -> F::Completion<'_> {
        self.clients[0].post(self.node, chain)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        wait(future, self.idle)
    }

    /// Returns what a chain returns.
    fn chain(&self, chain: &[Verb<'_>]) -> F::Reply<'_> {
        self.wait(self.post(chain)).expect("the node is up")
    }

    fn read(&self, word: usize, words: usize) -> Verb<'static> {
        Verb::Read { at: self.at(word), words }
    }

    fn write<'a>(&self, word: usize, head: &'a [u64], tail: &'a [u8]) -> Verb<'a> {
        Verb::Write { at: self.at(word), head, tail }
    }

    fn swap(&self, word: usize, expect: u64, new: u64) -> Verb<'static> {
        Verb::Cas { at: self.at(word), expect, new }
    }

    fn words_are_written_and_read(&self) {
        self.chain(&[self.write(0, &[1, u64::MAX, 3], &[])]);
        assert_eq!(*self.chain(&[self.read(0, 3)]), [1, u64::MAX, 3]);
        self.chain(&[self.write(1, &[9], &[])]);
        assert_eq!(*self.chain(&[self.read(0, 3)]), [1, 9, 3], "a WRITE stays within its words");
        assert_eq!(*self.chain(&[self.read(2, 1), self.read(0, 2)]), [3, 1, 9]);
    }

    fn tails_fill_the_last_word(&self) {
        for length in 0..=40 {
            self.chain(&[self.write(0, &[u64::MAX; 8], &[])]);
            let tail: Vec<u8> = (1..=length).collect();
            self.chain(&[self.write(1, &[7], &tail)]);
            let reply = self.chain(&[self.read(0, 8)]);
            let mut bytes = vec![0; usize::from(length).div_ceil(8) * 8];
            bytes[..tail.len()].copy_from_slice(&tail);
            assert_eq!(reply[..2], [u64::MAX, 7]);
            let words = bytes.chunks(8).map(|word| word.try_into().expect("8 bytes"));
            let mut expected: Vec<u64> = words.map(u64::from_le_bytes).collect();
            expected.resize(6, u64::MAX);
            assert_eq!(reply[2..], expected, "a tail of {length} bytes");
        }
    }

    fn words_are_compared_and_swapped(&self) {
        self.chain(&[self.write(0, &[5, 0], &[])]);
        assert_eq!(*self.chain(&[self.swap(0, 5, 6)]), [5]);
        assert_eq!(*self.chain(&[self.swap(0, 5, 7)]), [6], "yields what was there");
        assert_eq!(*self.chain(&[self.read(0, 2)]), [6, 0], "a CAS that fails changes nothing");
        assert_eq!(*self.chain(&[self.swap(0, 6, 6)]), [6]);
    }

    /// `load` and the like, on synchronous fabrics.
    fn common_chains_do_what_posts_do(&self) {
        let (fabric, node) = (&self.clients[0], self.node);
        let at = |word| self.at(word);
        self.chain(&[self.write(0, &[1, 2, 3, 4], &[])]);
        assert_eq!(fabric.load::<3>(node, at(1)), Some([2, 3, 4]));
        assert_eq!(fabric.fetch(node, at(0), 4).as_deref(), Some(&[1, 2, 3, 4][..]));
        // The CAS sees the WRITE, and the READ sees both.
        let store = Store { at: at(0), head: &[10, 20], tail: &[7; 9] };
        let swap = |expect, new| Swap { at: at(1), expect, new };
        let tail = u64::from_le_bytes([7; 8]);
        let done = fabric.write_cas_load::<4>(node, store, swap(20, 21), at(0));
        assert_eq!(done, Some((20, [10, 21, tail, 7])));
        let lost = fabric.write_cas_load::<2>(node, store, swap(5, 6), at(0));
        assert_eq!(lost, Some((20, [10, 20])));
        let both = |second| [swap(20, 21), Swap { at: at(0), expect: 10, new: second }];
        assert_eq!(fabric.write_cas_cas(node, store, both(11)), Some(10));
        let over = Store { at: at(2), head: &[tail, 7], tail: &[] };
        assert_eq!(fabric.write_cas_cas(node, over, both(12)), Some(11));
        assert_eq!(*self.chain(&[self.read(0, 4)]), [11, 21, tail, 7]);
        assert_eq!(*self.chain(&[self.swap(1, 21, 20)]), [21]);
        fabric.write_cas(node, Some(Store { at: at(2), head: &[30], tail: &[] }), swap(20, 22));
        fabric.write_cas(node, None, swap(22, 23));
        assert_eq!(*self.chain(&[self.read(0, 4)]), [11, 23, 30, 7]);
        assert_eq!(fabric.clear::<1>(node, &[at(2), at(3)]), Some(()));
        assert_eq!(*self.chain(&[self.read(0, 4)]), [11, 23, 0, 0]);
        // Words outside of the memory do not exist, and later verbs of such a chain have no effect.
        for outside in [u64::MAX, u64::MAX - 3, u64::MAX / 2] {
            let outside = Address(outside);
            assert_eq!(fabric.load::<8>(node, outside), None);
            assert!(fabric.fetch(node, outside, 8).is_none());
            let store = Store { at: outside, head: &[1; 8], tail: &[] };
            assert_eq!(fabric.write_cas_load::<2>(node, store, swap(23, 24), at(0)), None);
            assert_eq!(fabric.write_cas_cas(node, store, both(12)), None);
            fabric.write_cas(node, Some(store), swap(23, 24));
            fabric.write_cas(node, None, Swap { at: outside, expect: 0, new: 1 });
            assert_eq!(fabric.clear::<8>(node, &[outside, at(0)]), None);
        }
        assert_eq!(*self.chain(&[self.read(0, 2)]), [11, 23]);
    }

    fn verbs_take_effect_in_order(&self) {
        for round in 1..50 {
            self.chain(&[self.write(0, &[0; 4], &[])]);
            let reply = self.chain(&[
                self.read(0, 2),
                self.write(0, &[round, round], &[]),
                self.read(0, 2),
                self.swap(1, round, round + 1),
                self.swap(1, round, round + 2),
                self.read(0, 2),
                self.write(1, &[1], &[]),
                self.read(1, 1),
            ]);
            let r = round;
            assert_eq!(*reply, [0, 0, r, r, r, r + 1, r, r + 1, 1]);
        }
    }

    fn chains_take_effect_in_order(&self) {
        self.chain(&[self.write(0, &[0], &[])]);
        let posted: Vec<_> = (0..40).map(|n| self.post(&[self.swap(0, n, n + 1)])).collect();
        for (expected, completion) in posted.into_iter().enumerate() {
            let reply = self.wait(completion).expect("the node is up");
            assert_eq!(*reply, [expected as u64]);
        }
    }

    fn what_is_posted_is_copied(&self) {
        let mut head = [1, 2, 3];
        let mut tail = *b"before";
        let posted = self.post(&[self.write(0, &head, &tail)]);
        head.fill(9);
        tail.fill(b'x');
        self.wait(posted).expect("the node is up");
        let reply = self.chain(&[self.read(0, 4)]);
        assert_eq!(reply[..3], [1, 2, 3]);
        assert_eq!(&reply[3].to_le_bytes(), b"before\0\0");
        core::hint::black_box((head, tail));
    }

    fn dropped_completions_still_run(&self) {
        self.chain(&[self.write(0, &[0], &[])]);
        for n in 0..2000 {
            drop(self.post(&[self.swap(0, n, n + 1), self.read(0, 4)]));
        }
        assert_eq!(*self.chain(&[self.read(0, 1)]), [2000]);
    }

    fn replies_are_kept_until_dropped(&self) {
        let mut kept: Vec<(u64, F::Reply<'_>)> = Vec::new();
        let longest = self.reply.min(64);
        let length_of = |round: u64| 1 + round as usize * 7 % longest;
        for round in 0..500 {
            let words = [round; 64];
            let length = length_of(round);
            self.chain(&[self.write(0, &words[..length], &[])]);
            kept.push((round, self.chain(&[self.read(0, length)])));
            if round % 3 == 0 {
                // Frees a reply from the middle, so that reply slots are reused.
                kept.swap_remove(kept.len() / 2);
            }
        }
        for (round, reply) in &kept {
            assert_eq!(reply.len(), length_of(*round));
            assert!(reply.iter().all(|word| word == round), "the reply of round {round} changed");
        }
    }

    fn many_are_in_flight(&self) {
        const CHAINS: u64 = 1500;
        self.chain(&[self.write(0, &[0], &[])]);
        let posted: Vec<_> = (0..CHAINS).map(|n| self.post(&[self.swap(0, n, n + 1)])).collect();
        for (expected, completion) in posted.into_iter().enumerate().rev() {
            let reply = self.wait(completion).expect("the node is up");
            assert_eq!(*reply, [expected as u64]);
        }
    }

    fn verbs_may_be_empty(&self) {
        assert!(self.chain(&[]).is_empty());
        assert!(self.chain(&[self.read(0, 0), self.write(0, &[], &[])]).is_empty());
        self.chain(&[self.write(0, &[4, 5], &[])]);
        let full = [self.read(1, 1); MAX_VERBS];
        assert_eq!(*self.chain(&full), [5; MAX_VERBS]);
    }

    /// As long as the bound: by one READ, and by two.
    fn longest_replies_are_whole(&self) {
        let length = self.reply;
        let bytes: Vec<u8> = (0..(length - 3) * 8 - 5).map(|n| (n % 251) as u8).collect();
        self.chain(&[self.write(0, &[1, 2, 3], &bytes)]);
        let reply = self.chain(&[self.read(0, length)]);
        assert_eq!((reply.len(), &reply[..3]), (length, &[1, 2, 3][..]));
        let mut read: Vec<u8> = reply[3..].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(read.split_off(bytes.len()), [0; 5]);
        assert!(read == bytes, "a reply of {length} words came back different");
        let by_two = self.chain(&[self.read(1, length - 1), self.read(0, 1)]);
        let (last, before) = by_two.split_last().expect("it has words");
        assert!(before == &reply[1..] && *last == 1, "a reply of two READs came back different");
    }

    /// A reply past the bound is complete if there is one at all, and the next chain is as any
    /// other. The protocols ask for none past [`LONGEST`].
    fn longer_replies_are_whole_or_refused(&self) {
        if self.reply == LONGEST {
            return;
        }
        let length = self.reply + 1;
        let words: Vec<u64> = (0..length as u64).collect();
        self.chain(&[self.write(0, &words, &[])]);
        let half = length / 2;
        let by_two = [self.read(0, half), self.read(half, length - half)];
        for chain in [&[self.read(0, length)][..], &by_two] {
            if let Ok(reply) = self.wait(self.post(chain)) {
                assert!(*reply == words[..], "a reply past the bound is not whole");
            }
            assert_eq!(*self.chain(&[self.swap(0, 0, 0), self.read(half, 1)]), [0, half as u64]);
        }
        if self.clients[0].is_near()
            && let Some(reply) = self.clients[0].fetch(self.node, self.at(0), length)
        {
            assert!(*reply == words[..], "a fetch past the bound is not whole");
        }
    }

    /// Two clients add to one word by CAS, from what they saw last; no addition is lost.
    fn clients_share_the_words(&self) {
        const ADDITIONS: u64 = 200;
        self.chain(&[self.write(0, &[0], &[])]);
        let add = async |client: &F| {
            let mut seen = 0;
            for _ in 0..ADDITIONS {
                seen = added(client, self.node, self.at(0), seen).await;
            }
        };
        let mut both = (pin!(add(&self.clients[0])), pin!(add(&self.clients[1])));
        let mut done = (false, false);
        self.wait(core::future::poll_fn(|cx| {
            done.0 = done.0 || both.0.as_mut().poll(cx).is_ready();
            done.1 = done.1 || both.1.as_mut().poll(cx).is_ready();
            if done == (true, true) { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!(*self.chain(&[self.read(0, 1)]), [2 * ADDITIONS]);
    }

    fn nodes_are_apart(&self) {
        let client = &self.clients[1];
        for node in nodes(client) {
            let mark = [u64::from(node.0) + 100];
            let write = self.write(0, &mark, &[]);
            self.wait(client.post(node, &[write])).expect("the node is up");
        }
        assert_eq!(*self.chain(&[self.read(0, 1)]), [u64::from(self.node.0) + 100]);
    }
}

fn nodes<F: Fabric>(fabric: &F) -> impl Iterator<Item = NodeId> + use<F> {
    (0..fabric.nodes()).map(|node| NodeId(node as u8))
}

fn wait<T>(future: impl Future<Output = T>, idle: impl Fn()) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..POLLS {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        idle();
    }
    panic!("a chain did not complete");
}

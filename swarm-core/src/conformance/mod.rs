//! What every fabric must do: one suite, run on each.
//!
//! [`run`] checks what verbs yield, that chains and verbs take effect in order, that completions
//! may be dropped and replies kept, with two clients in one thread. [`race`] has clients in threads
//! of their own.
//!
//! The suite uses [`WORDS`] words of each node from `base` on, whatever they hold, and waits by
//! polling: `idle` is called in between, for fabrics that need someone to drive them.

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

/// How many words of each node's memory the suite uses.
pub const WORDS: usize = LARGE + 1024;

/// The largest READ that the protocols make: a value of a mebibyte and what is in front of it.
const LARGE: usize = (1 << 17) + 8;

/// Polls of one future before the suite gives up.
const POLLS: u64 = 1_000_000_000;

/// Runs the suite. `make` makes a fabric for client 0 and for client 1; all nodes are up.
///
/// # Panics
/// If the fabric does not do what it must.
pub fn run<F: Fabric>(make: impl Fn(usize) -> F, base: Address, idle: impl Fn()) {
    let clients = [make(0), make(1)];
    for node in nodes(&clients[0]) {
        let suite = Suite { clients: &clients, node, base, idle: &idle };
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
        suite.large_values_fit();
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

    /// What a chain yields.
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

    /// `load` and its like, where memory is near.
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
        fabric.write_cas(node, Some(Store { at: at(2), head: &[30], tail: &[] }), swap(20, 22));
        fabric.write_cas(node, None, swap(22, 23));
        assert_eq!(*self.chain(&[self.read(0, 4)]), [10, 23, 30, 7]);
        // What lies outside is not there, and what comes behind it in a chain has no effect.
        for outside in [u64::MAX, u64::MAX - 3, u64::MAX / 2] {
            let outside = Address(outside);
            assert_eq!(fabric.load::<8>(node, outside), None);
            assert!(fabric.fetch(node, outside, 8).is_none());
            let store = Store { at: outside, head: &[1; 8], tail: &[] };
            assert_eq!(fabric.write_cas_load::<2>(node, store, swap(23, 24), at(0)), None);
            fabric.write_cas(node, Some(store), swap(23, 24));
            fabric.write_cas(node, None, Swap { at: outside, expect: 0, new: 1 });
        }
        assert_eq!(*self.chain(&[self.read(0, 2)]), [10, 23]);
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
        for round in 0..500 {
            let words = [round; 64];
            let length = 1 + (round * 7 % 64) as usize;
            self.chain(&[self.write(0, &words[..length], &[])]);
            kept.push((round, self.chain(&[self.read(0, length)])));
            if round % 3 == 0 {
                // Frees a reply from the middle, so that slots are used again.
                kept.swap_remove(kept.len() / 2);
            }
        }
        for (round, reply) in &kept {
            assert_eq!(reply.len(), 1 + (round * 7 % 64) as usize);
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

    fn large_values_fit(&self) {
        let bytes: Vec<u8> = (0..(LARGE - 3) * 8 - 5).map(|n| (n % 251) as u8).collect();
        self.chain(&[self.write(0, &[1, 2, 3], &bytes)]);
        let reply = self.chain(&[self.read(0, LARGE), self.read(0, 1)]);
        assert_eq!((reply[..3].to_vec(), reply[LARGE]), (vec![1, 2, 3], 1));
        let mut read: Vec<u8> =
            reply[3..LARGE].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(read.split_off(bytes.len()), [0; 5]);
        assert!(read == bytes, "a large value came back different");
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

//! A chain's verbs, word by word.

use core::ops::Range;
use std::boxed::Box;
use std::vec::Vec;

use fastrand::Rng;

use super::trace::WordStep;
use crate::fabric::Verb;
use crate::fabric::loopback::image;
use crate::node::Address;

const PAGE: usize = 512;

type Page = Box<[u64; PAGE]>;

/// One node's memory: zero until written. Only pages that were written take memory.
#[derive(Debug)]
pub(super) struct Memory {
    pages: Vec<Option<Page>>,
    limit: u64,
    /// For each poisoned word, the client that may reuse it.
    forbidden: Vec<Option<u8>>,
    /// Sum of a hash for each word that is not zero.
    print: u64,
}

impl Memory {
    pub(super) fn new(limit: u64) -> Self {
        Self { pages: Vec::new(), limit, forbidden: Vec::new(), print: 0 }
    }

    /// Poisons words: only `next`'s WRITE may access them. `None` unpoisons them.
    pub(super) fn forbid(&mut self, words: Range<u64>, next: Option<usize>) {
        let words = words.start as usize..words.end as usize;
        if self.forbidden.len() < words.end {
            self.forbidden.resize(words.end, None);
        }
        let next = next.map(|client| u8::try_from(client).expect("few clients"));
        self.forbidden[words].fill(next);
    }

    /// Unpoisons words.
    pub(super) fn permit(&mut self, words: Range<u64>) {
        let end = self.forbidden.len();
        self.forbidden[(words.start as usize).min(end)..(words.end as usize).min(end)].fill(None);
    }

    /// Checks the access of a verb that begins at `at`. (A READ of a value of unknown length may
    /// extend into what follows, and ignores that.) The client that will reuse the memory may READ
    /// it.
    fn meet(&self, at: Address, reader: Option<usize>) {
        let next = self.forbidden.get(at.0 as usize).copied().flatten();
        let may = next.is_none_or(|next| reader == Some(next.into()));
        assert!(may, "a verb meets memory that is nobody's: {at:?}");
    }

    pub(super) fn get(&self, at: Address) -> u64 {
        assert!(at.0 < self.limit, "a verb outside of the node's memory: {at:?}");
        let index = at.0 as usize;
        let page = self.pages.get(index / PAGE).and_then(Option::as_ref);
        page.map_or(0, |page| page[index % PAGE])
    }

    pub(super) fn set(&mut self, at: Address, value: u64) {
        assert!(at.0 < self.limit, "a verb outside of the node's memory: {at:?}");
        let index = at.0 as usize;
        if index / PAGE >= self.pages.len() {
            self.pages.resize_with(index / PAGE + 1, || None);
        }
        let page = self.pages[index / PAGE].get_or_insert_with(|| Box::new([0; PAGE]));
        let old = std::mem::replace(&mut page[index % PAGE], value);
        self.print = self.print.wrapping_sub(mark(at, old)).wrapping_add(mark(at, value));
    }

    /// Returns a hash of the contents: equal for equal contents, and almost certainly not for
    /// others.
    pub(super) fn print(&self) -> u64 {
        self.print
    }
}

/// Returns what one word adds to the hash of its memory: nothing if it is zero.
fn mark(at: Address, value: u64) -> u64 {
    if value == 0 { 0 } else { mix(mix(at.0, value), value) }
}

/// Folds `value` into a hash.
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let both = u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(value ^ 0xd6e8_feb8_6659_fd93);
    (both as u64) ^ ((both >> 64) as u64).rotate_left(23) ^ hash.rotate_left(7)
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Read { at: Address, words: usize, reply: usize },
    Write { at: Address, words: usize, from: usize },
    Cas { at: Address, expect: u64, new: u64, reply: usize },
}

impl Op {
    fn words(self) -> usize {
        match self {
            Self::Read { words, .. } | Self::Write { words, .. } => words,
            Self::Cas { .. } => 1,
        }
    }
}

/// A copy of a posted chain, and its progress.
#[derive(Debug, Default)]
pub(super) struct Chain {
    client: usize,
    ops: Vec<Op>,
    payload: Vec<u64>,
    reply: Vec<u64>,
    /// The current verb.
    verb: usize,
    /// The words that it has not accessed yet; empty before it begins.
    left: Vec<u32>,
}

impl Chain {
    /// Resets it to a copy of `verbs` that `client` has posted.
    pub(super) fn load(&mut self, client: usize, verbs: &[Verb<'_>]) {
        self.client = client;
        self.ops.clear();
        self.payload.clear();
        self.left.clear();
        self.verb = 0;
        let mut yields = 0;
        for verb in verbs {
            let reply = yields;
            yields += verb.yields();
            self.ops.push(match *verb {
                Verb::Read { at, words } => Op::Read { at, words, reply },
                Verb::Write { at, head, tail } => {
                    let from = self.payload.len();
                    self.payload.extend(image(head, tail));
                    Op::Write { at, words: self.payload.len() - from, from }
                }
                Verb::Cas { at, expect, new } => Op::Cas { at, expect, new, reply },
            });
        }
        self.reply = std::vec![0; yields];
        self.skip_empty();
    }

    /// Returns whether every word was accessed.
    pub(super) fn is_over(&self) -> bool {
        self.verb == self.ops.len()
    }

    /// Returns the words that the chain returned.
    pub(super) fn take_reply(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.reply)
    }

    /// Folds the chain's progress into `hash`.
    pub(super) fn print(&self, hash: u64) -> u64 {
        let hash = mix(mix(hash, self.verb as u64), self.left.len() as u64);
        self.reply.iter().fold(hash, |hash, &word| mix(hash, word))
    }

    /// Accesses the first word that the current verb has not accessed yet.
    pub(super) fn next_word(&mut self, memory: &mut Memory, log: impl FnMut(WordStep)) {
        self.begin();
        let first = (0..self.left.len()).min_by_key(|&index| self.left[index]);
        self.touch_left(memory, first.expect("a verb under way has words left"), log);
    }

    /// Accesses one more word, a random one of the current verb. With probability 1 - `tear`, a
    /// verb that begins accesses all its words at once. Returns the word, or `None` for all.
    pub(super) fn step(
        &mut self,
        memory: &mut Memory,
        rng: &mut Rng,
        tear: f64,
        log: impl FnMut(WordStep),
    ) -> Option<u32> {
        if self.left.is_empty() {
            self.begin();
            if self.left.len() > 1 && tear < 1.0 && rng.f64() >= tear {
                self.whole(memory, log);
                return None;
            }
        }
        let pick = rng.usize(..self.left.len());
        let word = self.left[pick];
        self.touch_left(memory, pick, log);
        Some(word)
    }

    /// Returns whether the current verb has accessed all its words but one.
    pub(super) fn has_one_word_left(&self) -> bool {
        self.left.len() == 1
    }

    /// Returns whether the current verb has not accessed word number `word` yet.
    pub(super) fn has_left(&mut self, word: u32) -> bool {
        self.begin();
        self.left.contains(&word)
    }

    /// Accesses what the current verb has not accessed yet, in order.
    pub(super) fn whole(&mut self, memory: &mut Memory, mut log: impl FnMut(WordStep)) {
        let verb = self.verb;
        self.begin();
        self.left.sort_unstable_by(|one, two| two.cmp(one));
        while self.verb == verb
            && let Some(last) = self.left.len().checked_sub(1)
        {
            self.touch_left(memory, last, &mut log);
        }
    }

    /// Accesses word number `word` of the current verb, which has not accessed it yet.
    pub(super) fn touch(&mut self, memory: &mut Memory, word: usize, log: impl FnMut(WordStep)) {
        self.begin();
        let left = self.left.iter().position(|&left| left as usize == word);
        self.touch_left(memory, left.expect("each word is touched once"), log);
    }

    fn touch_left(&mut self, memory: &mut Memory, index: usize, mut log: impl FnMut(WordStep)) {
        let word = self.left.swap_remove(index) as usize;
        let (Op::Read { at, .. } | Op::Write { at, .. } | Op::Cas { at, .. }) = self.ops[self.verb];
        let reads = matches!(self.ops[self.verb], Op::Read { .. });
        memory.meet(at, reads.then_some(self.client));
        log(match self.ops[self.verb] {
            Op::Read { at, reply, .. } => {
                let at = at.plus(word);
                let value = memory.get(at);
                self.reply[reply + word] = value;
                WordStep::Read { at, value }
            }
            Op::Write { at, from, .. } => {
                let (at, value) = (at.plus(word), self.payload[from + word]);
                memory.set(at, value);
                WordStep::Write { at, value }
            }
            Op::Cas { at, expect, new, reply } => {
                let was = memory.get(at);
                if was == expect {
                    memory.set(at, new);
                }
                self.reply[reply] = was;
                WordStep::Cas { at, expect, new, was }
            }
        });
        if self.left.is_empty() {
            self.verb += 1;
            self.skip_empty();
        }
    }

    fn begin(&mut self) {
        if self.left.is_empty() {
            self.left.extend(0..self.ops[self.verb].words() as u32);
        }
    }

    fn skip_empty(&mut self) {
        while self.ops.get(self.verb).is_some_and(|op| op.words() == 0) {
            self.verb += 1;
        }
    }
}

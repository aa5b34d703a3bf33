//! A chain's verbs, word by word.

use std::vec::Vec;

use fastrand::Rng;

use super::trace::WordStep;
use crate::fabric::{Address, Verb};
use crate::loopback::image;

/// One node's memory: zero until written.
#[derive(Debug)]
pub(super) struct Memory {
    words: Vec<u64>,
    limit: u64,
}

impl Memory {
    pub(super) fn new(limit: u64) -> Self {
        Self { words: Vec::new(), limit }
    }

    pub(super) fn get(&self, at: Address) -> u64 {
        assert!(at.0 < self.limit, "a verb outside of the node's memory: {at:?}");
        self.words.get(at.0 as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, at: Address, value: u64) {
        assert!(at.0 < self.limit, "a verb outside of the node's memory: {at:?}");
        let index = at.0 as usize;
        if index >= self.words.len() {
            self.words.resize((index + 1).next_power_of_two().max(256), 0);
        }
        self.words[index] = value;
    }
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

/// A copy of a posted chain, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Chain {
    ops: Vec<Op>,
    payload: Vec<u64>,
    reply: Vec<u64>,
    /// The verb under way.
    verb: usize,
    /// The words that it has not touched yet; empty before it begins.
    left: Vec<u32>,
}

impl Chain {
    /// Begins anew as a copy of `verbs`.
    pub(super) fn load(&mut self, verbs: &[Verb<'_>]) {
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

    /// Whether every word was touched.
    pub(super) fn is_over(&self) -> bool {
        self.verb == self.ops.len()
    }

    /// The words that the chain yielded.
    pub(super) fn take_reply(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.reply)
    }

    /// Touches one more word, a random one of the verb under way. With probability 1 - `tear`, a
    /// verb that begins touches all its words at once.
    pub(super) fn step(
        &mut self,
        memory: &mut Memory,
        rng: &mut Rng,
        tear: f64,
        log: impl FnMut(WordStep),
    ) {
        if self.left.is_empty() {
            self.begin();
            if self.left.len() > 1 && tear < 1.0 && rng.f64() >= tear {
                return self.whole(memory, log);
            }
        }
        let pick = rng.usize(..self.left.len());
        self.touch_left(memory, pick, log);
    }

    /// Touches what the verb under way has not touched yet, in order.
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

    /// Touches word number `word` of the verb under way, which has not touched it yet.
    pub(super) fn touch(&mut self, memory: &mut Memory, word: usize, log: impl FnMut(WordStep)) {
        self.begin();
        let left = self.left.iter().position(|&left| left as usize == word);
        self.touch_left(memory, left.expect("each word is touched once"), log);
    }

    fn touch_left(&mut self, memory: &mut Memory, index: usize, mut log: impl FnMut(WordStep)) {
        let word = self.left.swap_remove(index) as usize;
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

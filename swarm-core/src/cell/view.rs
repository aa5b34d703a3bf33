//! What a client knows of a cell, to propose a change without asking first.

use crate::error::Error;
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::words::{Ballot, CellWord, Pointer, WordFormat};

use super::judge::{classic_after, committed, settled};

/// Of the ballots, one in so many, at the end, is for reads alone, so that a cell that takes no more changes
/// can be read.
const RESERVE: u64 = 8;

/// What a client knows of a cell: a record that is committed, and each node's word as last seen.
///
/// The words are guesses that CASes put to the test; the record is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    pub(super) record: Pointer,
    words: [CellWord; MAX_NODES],
    known: NodeSet,
}

impl View {
    /// The view of a cell in which no record can have been committed yet.
    pub const VACANT: Self =
        Self { record: Pointer::NULL, words: [CellWord(0); MAX_NODES], known: NodeSet::EMPTY };

    /// The view that the nodes' words give, if they tell what is committed. They must be words of
    /// one operation.
    pub fn of(format: WordFormat, n: usize, words: &[Option<CellWord>; MAX_NODES]) -> Option<Self> {
        let (record, word) = committed(format, n, words)?;
        let mut view = Self { record, ..Self::VACANT };
        for node in NodeSet::all(n) {
            if let Some(seen) = words[node.index()] {
                // A fast round's unsettled word is about to be settled. What a promise will be its proposer knows: the
                // view only guesses, and a guess that is wrong takes a round.
                let settling = seen.is_accepted() && settled(format, seen) == word;
                view.set(node, if settling { word } else { seen });
            }
        }
        Some(view)
    }

    /// Whether few ballots are left for changes, as many as only reads will have behind them: it is time for
    /// the last one, that sends on to other cells.
    #[inline]
    pub fn is_worn(&self, format: WordFormat) -> bool {
        let last = format.last_ballot().0;
        let few = last - 2 * (last / RESERVE);
        !self.known.holding(|node| format.ballot(self.words[node.index()]).0 > few).is_empty()
    }

    /// The committed record; null if the cell is vacant.
    pub fn record(&self) -> Pointer {
        self.record
    }

    /// The view of a cell whose word is, or is on its way to be, `word` at every node: one that was
    /// born with a committed record.
    pub fn born(format: WordFormat, n: usize, word: CellWord) -> Self {
        Self::everywhere(format.record(word), word, n)
    }

    pub(super) fn everywhere(record: Pointer, word: CellWord, n: usize) -> Self {
        Self { record, words: [word; MAX_NODES], known: NodeSet::all(n) }
    }

    pub(super) fn set(&mut self, node: NodeId, word: CellWord) {
        self.words[node.index()] = word;
        self.known.insert(node);
    }

    /// The word that a fast round can start from, if it is worth a try.
    pub(super) fn fast_base(
        &self,
        format: WordFormat,
        n: usize,
        suspects: NodeSet,
    ) -> Option<CellWord> {
        let common = self.common();
        let equal = |node: NodeId| self.words[node.index()] == common;
        (self.known.holding(equal) == self.known
            // Not from a word that is not solid, which is about to change.
            && common.is_solid()
            // Never from one that is promised: whoever finds the round's record not solid takes what
            // is below for accepted under this word's ballot.
            && common.is_accepted()
            // However views come about, that is so. Said again, as the change is built on the record.
            && format.record(common) == self.record
            // It takes every node, so one that is late would only cost time.
            && NodeSet::all(n).intersection(suspects).is_empty())
        .then_some(common)
    }

    /// The word of the lowest node that is known: what the others are taken to show as well.
    fn common(&self) -> CellWord {
        let mut known = self.known;
        known.next().map_or(CellWord(0), |node| self.words[node.index()])
    }
}

/// What an operation learns of a cell's words as it goes.
#[derive(Clone, Copy)]
pub(super) struct Words {
    format: WordFormat,
    n: usize,
    /// What each node's word probably is. CASes put it to the test.
    pub(super) guess: [CellWord; MAX_NODES],
    known: NodeSet,
    /// What each node's word was, at some moment within this operation.
    seen: [Option<CellWord>; MAX_NODES],
    /// No smaller than any ballot that this operation met.
    top: Ballot,
}

impl Words {
    /// Nothing but what `view` says.
    pub(super) fn new(format: WordFormat, n: usize, view: &View) -> Self {
        let mut words = Self {
            format,
            n,
            guess: [view.common(); MAX_NODES],
            known: view.known,
            seen: [None; MAX_NODES],
            top: format.ballot(view.common()),
        };
        for node in view.known {
            words.expect(node, view.words[node.index()]);
        }
        words
    }

    /// Node's word was `word` within this operation.
    pub(super) fn saw(&mut self, node: NodeId, word: CellWord) {
        self.seen[node.index()] = Some(word);
        self.expect(node, word);
    }

    /// Node's word probably is `word`.
    pub(super) fn expect(&mut self, node: NodeId, word: CellWord) {
        self.known.insert(node);
        self.guess[node.index()] = word;
        for unknown in NodeSet::all(self.n).minus(self.known) {
            self.guess[unknown.index()] = word;
        }
        self.top = self.top.max(self.format.ballot(word));
    }

    /// Which nodes' word named `record` within this operation.
    pub(super) fn naming(&self, record: Pointer) -> NodeSet {
        let names = |word: CellWord| self.format.record(word) == record;
        NodeSet::all(self.n).holding(|node| self.seen[node.index()].is_some_and(names))
    }

    /// Which nodes' word named another record than `record` within this operation.
    pub(super) fn lacking(&self, record: Pointer) -> NodeSet {
        let lacks = |word: CellWord| self.format.record(word) != record;
        NodeSet::all(self.n).holding(|node| self.seen[node.index()].is_some_and(lacks))
    }

    /// Node's word, if it was seen within this operation.
    pub(super) fn seen(&self, node: NodeId) -> Option<CellWord> {
        self.seen[node.index()]
    }

    /// How many nodes' words were seen.
    pub(super) fn answered(&self) -> usize {
        self.seen.iter().flatten().count()
    }

    /// What was committed within this operation, if that can be told.
    pub(super) fn committed(&self) -> Option<(Pointer, CellWord)> {
        committed(self.format, self.n, &self.seen)
    }

    /// No smaller than any ballot that this operation met.
    pub(super) fn top(&self) -> Ballot {
        self.top
    }

    /// The view with `record` committed.
    pub(super) fn view(&self, record: Pointer) -> View {
        View { record, words: self.guess, known: self.known }
    }

    /// The next classic ballot.
    pub(super) fn next_classic(&mut self) -> Result<Ballot, Error> {
        let ballot = classic_after(self.top);
        if ballot > self.format.last_ballot() {
            return Err(Error::Exhausted);
        }
        // A ballot is tried once: at a node that promised it, nobody is promised it again.
        self.top = ballot;
        Ok(ballot)
    }

    /// Whether there are ballots left for changes.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        let last = self.format.last_ballot().0;
        if self.top.0 > last - last / RESERVE {
            return Err(Error::Exhausted);
        }
        Ok(())
    }
}

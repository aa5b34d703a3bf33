//! What a client knows of a cell, to propose a change without reading it first.

use crate::error::Error;
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::words::{Ballot, CellWord, Pointer, WordFormat};

use crate::cell::decide::{classic_after, committed, confirmed_word};

/// One in this many ballots, at the end, is for reads alone, so that a cell that takes no more
/// changes can be read (S6).
const RESERVE: u64 = 8;

/// What a client knows of a cell: a record that is committed, and each node's word as last seen.
///
/// The words are guesses that CASes verify; the record is not a guess.
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

    /// Returns the view that the nodes' words give, if they prove what is committed. They must be
    /// words of one operation.
    pub fn of(format: WordFormat, n: usize, words: &[Option<CellWord>; MAX_NODES]) -> Option<Self> {
        let (record, word) = committed(format, n, words)?;
        let mut view = Self { record, ..Self::VACANT };
        for node in NodeSet::all(n) {
            if let Some(seen) = words[node.index()] {
                // A fast round's word is about to be made confirmed. Only its proposer knows what a
                // promise becomes: the view guesses, and a wrong guess costs a round.
                let settling = seen.is_accepted() && confirmed_word(format, seen) == word;
                view.set(node, if settling { word } else { seen });
            }
        }
        Some(view)
    }

    /// Returns whether the cell is nearly exhausted (S6): no more ballots are left for changes than
    /// are reserved for reads. Its last change must be made now, one that leads to other cells.
    #[inline]
    pub fn is_worn(&self, format: WordFormat) -> bool {
        let last = format.last_ballot().0;
        self.is_past(format, last - 2 * (last / RESERVE))
    }

    /// Returns whether the cell is exhausted: a change would be refused, as no ballots are left but
    /// those that are reserved for reads.
    #[inline]
    pub fn is_exhausted(&self, format: WordFormat) -> bool {
        self.is_past(format, last_for_changes(format))
    }

    #[inline]
    fn is_past(&self, format: WordFormat, ballot: u64) -> bool {
        let mut known = self.known;
        known.any(|node| format.ballot(self.words[node.index()]).0 > ballot)
    }

    /// Returns the committed record; null if the cell is vacant.
    pub fn record(&self) -> Pointer {
        self.record
    }

    /// Returns the highest ballot under which a node's word names the committed record. A record that
    /// is committed later has a higher one, whatever memory it lies in (C2).
    pub fn chosen_by(&self, format: WordFormat) -> Ballot {
        let names = |node: NodeId| format.record(self.words[node.index()]) == self.record;
        let ballots = self.known.holding(names).map(|it| format.ballot(self.words[it.index()]));
        ballots.max().unwrap_or_default()
    }

    /// Returns the view of a cell whose word is, or soon will be, `word` at every node: one that
    /// was created with a committed record.
    pub fn created(format: WordFormat, n: usize, word: CellWord) -> Self {
        Self::everywhere(format.record(word), word, n)
    }

    pub(super) fn everywhere(record: Pointer, word: CellWord, n: usize) -> Self {
        Self { record, words: [word; MAX_NODES], known: NodeSet::all(n) }
    }

    pub(super) fn set(&mut self, node: NodeId, word: CellWord) {
        self.words[node.index()] = word;
        self.known.insert(node);
    }

    /// Returns the word from which a fast round can start, if it is worth a try.
    #[inline]
    pub(super) fn fast_base(
        &self,
        format: WordFormat,
        n: usize,
        suspects: NodeSet,
    ) -> Option<CellWord> {
        let common = self.common();
        let mut known = self.known;
        (known.all(|node| self.words[node.index()] == common)
            // Not from a word that is not confirmed, which is about to change.
            && common.is_confirmed()
            // C1: never from a promised word: a client that finds the round's record not confirmed
            // takes what is below for accepted under this word's ballot.
            && common.is_accepted()
            // True of all views. Checked again, as the change is built on the record.
            && format.record(common) == self.record
            // A fast round needs every node, so a late one would only cost time.
            && NodeSet::all(n).intersection(suspects).is_empty())
        .then_some(common)
    }

    /// Returns the word of the lowest known node: the others are assumed to show it as well.
    #[inline]
    fn common(&self) -> CellWord {
        let mut known = self.known;
        known.next().map_or(CellWord(0), |node| self.words[node.index()])
    }
}

/// What an operation learns of a cell's words.
#[derive(Clone, Copy)]
pub(super) struct Words {
    format: WordFormat,
    n: usize,
    /// What each node's word probably is. CASes verify it.
    pub(super) guess: [CellWord; MAX_NODES],
    known: NodeSet,
    /// What each node's word was, at some moment within this operation.
    seen: [Option<CellWord>; MAX_NODES],
    /// At least as large as any ballot that this operation saw.
    top: Ballot,
}

impl Words {
    /// Starts with what `view` knows.
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

    /// Records that the node's word was `word` within this operation.
    pub(super) fn saw(&mut self, node: NodeId, word: CellWord) {
        self.seen[node.index()] = Some(word);
        self.expect(node, word);
    }

    /// Records that the node's word probably is `word`.
    pub(super) fn expect(&mut self, node: NodeId, word: CellWord) {
        self.known.insert(node);
        self.guess[node.index()] = word;
        for unknown in NodeSet::all(self.n).minus(self.known) {
            self.guess[unknown.index()] = word;
        }
        self.top = self.top.max(self.format.ballot(word));
    }

    /// Returns the nodes whose word named `record` within this operation.
    pub(super) fn naming(&self, record: Pointer) -> NodeSet {
        let names = |word: CellWord| self.format.record(word) == record;
        NodeSet::all(self.n).holding(|node| self.seen[node.index()].is_some_and(names))
    }

    /// Returns the nodes whose word named another record than `record` within this operation.
    pub(super) fn lacking(&self, record: Pointer) -> NodeSet {
        let lacks = |word: CellWord| self.format.record(word) != record;
        NodeSet::all(self.n).holding(|node| self.seen[node.index()].is_some_and(lacks))
    }

    /// Returns the node's word, if it was seen within this operation.
    pub(super) fn seen(&self, node: NodeId) -> Option<CellWord> {
        self.seen[node.index()]
    }

    /// Returns how many nodes' words were seen.
    pub(super) fn answered(&self) -> usize {
        self.seen.iter().flatten().count()
    }

    /// Returns what was committed within this operation, if the words prove it.
    pub(super) fn committed(&self) -> Option<(Pointer, CellWord)> {
        committed(self.format, self.n, &self.seen)
    }

    /// Returns a ballot that is at least as large as any that this operation saw.
    pub(super) fn top(&self) -> Ballot {
        self.top
    }

    /// Returns the view with `record` committed.
    pub(super) fn view(&self, record: Pointer) -> View {
        View { record, words: self.guess, known: self.known }
    }

    /// Returns the next classic ballot.
    pub(super) fn next_classic(&mut self) -> Result<Ballot, Error> {
        let ballot = classic_after(self.top);
        if ballot > self.format.last_ballot() {
            return Err(Error::Exhausted);
        }
        // C3: a ballot is tried once: a node that promised it does not promise it again.
        self.top = ballot;
        Ok(ballot)
    }

    /// Checks that ballots are left for changes.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if self.top.0 > last_for_changes(self.format) {
            return Err(Error::Exhausted);
        }
        Ok(())
    }
}

/// Returns the last ballot that is not reserved for reads (S6).
#[inline]
pub(super) fn last_for_changes(format: WordFormat) -> u64 {
    let last = format.last_ballot().0;
    last - last / RESERVE
}

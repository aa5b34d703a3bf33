//! The cell's decisions, as pure functions of its words.

use crate::node::MAX_NODES;
use crate::words::{Ballot, CellFlags, CellWord, Pointer, WordFormat};

/// Returns the record that is committed, given the word that each node showed, if they prove one
/// (C7); and the word that says so once it is confirmed and accepted.
///
/// The words may have been READ at different times. The record was committed by the time of the
/// last READ, and if all were READ within an operation, no later one was when it began.
pub fn committed(
    format: WordFormat,
    n: usize,
    words: &[Option<CellWord>; MAX_NODES],
) -> Option<(Pointer, CellWord)> {
    let seen = || words[..n].iter().flatten().copied();
    let same_round =
        |a, b| format.ballot(a) == format.ballot(b) && format.record(a) == format.record(b);
    seen().find_map(|word| {
        // A majority accepted it in one round. A word that a promise kept is not enough. A record
        // adopted at one node and merely promised at another looks the same but for that bit, and
        // can lose.
        let majority = word.is_confirmed()
            && word.is_accepted()
            && seen().filter(|&other| other == word).count() > n / 2;
        // All n hold it under one ballot, whatever the flags: a fast round succeeded, or the
        // proposer of that ballot can choose nothing else. Under different ballots it can still
        // lose.
        let all = seen().filter(|&other| same_round(word, other)).count() == n;
        (majority || all).then(|| (format.record(word), confirmed_word(format, word)))
    })
}

/// Returns the word's ballot and record, confirmed and accepted.
pub(super) fn confirmed_word(format: WordFormat, word: CellWord) -> CellWord {
    if format.ballot(word) == Ballot(0) {
        return CellWord(0);
    }
    format.cell(
        format.ballot(word),
        format.record(word),
        CellFlags::CONFIRMED | CellFlags::ACCEPTED,
    )
}

/// Returns what a promise of `ballot` makes of a word.
pub(super) fn promised(format: WordFormat, word: CellWord, ballot: Ballot) -> CellWord {
    // C2: the confirmed bit stays: a promise neither completes a fast round nor undoes one. C7: the
    // accepted bit does not: a promise is no vote for the record.
    let confirmed = if word.is_confirmed() { CellFlags::CONFIRMED } else { CellFlags::empty() };
    format.cell(ballot, format.record(word), confirmed)
}

/// Returns the classic ballot after `top`. C3: classic ballots are odd and fast ones even, so that
/// no ballot is of both kinds.
pub(super) fn classic_after(top: Ballot) -> Ballot {
    Ballot((top.0 + 1) | 1)
}

/// Returns the fast ballot after `top`.
pub(super) fn fast_after(top: Ballot) -> Ballot {
    Ballot((top.0 + 2) & !1)
}

/// What a node showed when it promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// Its word before.
    pub(super) word: CellWord,
    /// The accepted ballot there of the record that the word names.
    pub(super) accepted: Ballot,
    /// If the word is not confirmed: the word from which the fast round that brought the record began.
    pub(super) base: CellWord,
}

impl Promise {
    /// Returns the record that counts if not all nodes that promised hold the same one (C2).
    fn vote(&self, format: WordFormat) -> (Ballot, Pointer) {
        if self.word.is_confirmed() {
            (self.accepted, format.record(self.word))
        } else {
            // Some node does not hold this fast round's record, so it was not committed. It must
            // not count by its ballot: the committed record below it may have a smaller one. The
            // one below was accepted here under its word's ballot. E4a: its memory is not read, as
            // it may have been reused.
            (format.ballot(self.base), format.record(self.base))
        }
    }

    /// Returns the accepted ballot of `record` there, as far as is known, if the node has it and
    /// what was created with it in memory.
    pub(super) fn holds(&self, format: WordFormat, record: Pointer) -> Option<Ballot> {
        if format.record(self.word) == record {
            return Some(self.accepted);
        }
        let below = !self.word.is_confirmed() && format.record(self.base) == record;
        below.then_some(format.ballot(self.base))
    }
}

/// Returns the last record that may be committed, given what a majority showed when it promised
/// (C2). `None` if there are no promises.
pub(super) fn choose<'a>(
    format: WordFormat,
    promises: impl Iterator<Item = &'a Promise> + Clone,
) -> Option<Pointer> {
    let mut records = promises.clone().map(|promise| format.record(promise.word));
    let first = records.next()?;
    // The same record everywhere, by its pointer alone: one node may be confirmed already, or raised by
    // a re-proposal that was not completed.
    if records.all(|record| record == first) {
        return Some(first);
    }
    promises.map(|promise| promise.vote(format)).max().map(|(_, record)| record)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

    fn word(ballot: u64, record: u64, confirmed: bool, accepted: bool) -> CellWord {
        let mut flags = CellFlags::empty();
        flags.set(CellFlags::CONFIRMED, confirmed);
        flags.set(CellFlags::ACCEPTED, accepted);
        FORMAT.cell(Ballot(ballot), Pointer(record), flags)
    }

    fn decided(n: usize, words: &[CellWord]) -> Option<u64> {
        let mut all = [None; MAX_NODES];
        for (slot, &word) in all.iter_mut().zip(words) {
            *slot = Some(word);
        }
        committed(FORMAT, n, &all).map(|(record, _)| record.0)
    }

    #[test]
    fn a_majority_must_have_accepted_all_of_them_need_not() {
        assert_eq!(decided(3, &[CellWord(0), CellWord(0)]), Some(0));
        assert_eq!(decided(3, &[word(4, 9, true, true), word(4, 9, true, true)]), Some(9));
        assert_eq!(decided(3, &[word(4, 9, true, true), word(4, 9, true, false)]), None);
        assert_eq!(decided(3, &[word(4, 9, true, true), word(6, 9, true, true)]), None);
        assert_eq!(decided(3, &[word(4, 9, false, true); 2]), None);
        assert_eq!(decided(3, &[word(4, 9, false, true); 3]), Some(9));
        let mixed = [word(4, 9, false, true), word(4, 9, true, true), word(4, 9, false, false)];
        assert_eq!(decided(3, &mixed), Some(9));
        let raised = [word(4, 9, false, true), word(4, 9, true, true), word(5, 9, true, true)];
        assert_eq!(decided(3, &raised), None);
        assert_eq!(decided(5, &[word(4, 9, true, true); 2]), None);
        assert_eq!(decided(1, &[word(4, 9, false, false)]), Some(9));
    }

    #[test]
    fn a_fast_record_that_somebody_lacks_gives_way_to_the_one_below() {
        let below = |word, accepted, predecessor, of_predecessor| Promise {
            word,
            accepted: Ballot(accepted),
            base: self::word(of_predecessor, predecessor, true, true),
        };
        let fast = below(word(8, 5, false, true), 8, 4, 3);
        let lagging = below(word(2, 3, true, true), 2, 0, 0);
        let current = below(word(3, 4, true, true), 3, 0, 0);
        let choose = |promises: &[Promise]| choose(FORMAT, promises.iter()).map(|record| record.0);
        assert_eq!(choose(&[fast, fast]), Some(5));
        assert_eq!(choose(&[fast, lagging]), Some(4));
        assert_eq!(choose(&[fast, current]), Some(4));
        assert_eq!(choose(&[lagging, current]), Some(4));
        let raised = below(word(9, 5, true, false), 9, 4, 3);
        assert_eq!(choose(&[fast, raised]), Some(5));
        assert_eq!(choose(&[raised, current]), Some(5));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn ballots_keep_their_kind() {
        for top in 0..9 {
            let (classic, fast) = (classic_after(Ballot(top)).0, fast_after(Ballot(top)).0);
            assert!(classic > top && classic % 2 == 1 && fast > top && fast % 2 == 0);
        }
    }
}

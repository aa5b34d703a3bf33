//! Reading a cell.

use core::ops::Deref;

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{cell, cell_checksum};
use crate::node::NodeSet;
use crate::quorum::{Event, Group, Round};
use crate::words::CellWord;

use super::classic::classic;
use super::propose::confirm_record;
use super::record::{Body, WhenLate, fetch};
use super::view::{View, Words};
use super::{ATTEMPTS, CellRef, back_off, in_place, in_place_head};
use crate::cell::accept_request::CreatedParts;
use crate::cell::decide::confirmed_word;

/// A committed record's payload. Dereferences to its words, none if the cell is vacant. Holds the
/// fabric's reply.
pub struct Committed<'f, F: Fabric + 'f> {
    /// What the cell's words showed.
    pub view: View,
    reply: Option<F::Reply<'f>>,
    from: usize,
    words: usize,
}

impl<F: Fabric> Deref for Committed<'_, F> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        self.reply.as_ref().map_or(&[], |reply| &reply[self.from..self.from + self.words])
    }
}

impl<'f, F: Fabric> Committed<'f, F> {
    fn vacant(view: View) -> Self {
        Self { view, reply: None, from: 0, words: 0 }
    }

    /// Returns the fabric's reply, and the position and length of the payload in it; none if the
    /// cell is vacant.
    pub fn into_reply(self) -> Option<(F::Reply<'f>, usize, usize)> {
        Some((self.reply?, self.from, self.words))
    }

    /// Returns what a home node's `reply` has in place, if it belongs to `word` and is whole (C8).
    #[inline]
    pub(super) fn in_place(
        view: View,
        word: CellWord,
        at: &CellRef,
        reply: F::Reply<'f>,
    ) -> Option<Self> {
        let words = whole(word, at, &reply)?;
        Some(Self { view, reply: Some(reply), from: at.in_place + cell::IN_PLACE_WORDS, words })
    }

    fn of(view: View, body: Body<'f, F>) -> Self {
        let (reply, from, words) = body.into_reply();
        Self { view, reply: Some(reply), from, words }
    }
}

/// Reads the committed record.
///
/// One roundtrip if the words of a majority prove what is committed and the home node is among it.
/// Two if the record must be fetched. More if a change is in progress or was left half done: this
/// completes it.
///
/// # Cancel safety
/// Dropping the future changes nothing that was committed.
///
/// # Errors
/// [`Error::NoMajority`], [`Error::Contended`], [`Error::Exhausted`], [`Error::Damaged`].
pub async fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    created_parts: &dyn CreatedParts,
) -> Result<Committed<'f, F>, Error> {
    let mut words = Words::new(group.format(), group.nodes(), &View::VACANT);
    // Round 1: the words, and the in-place copy at the home node.
    let mut home = look(group, at, &mut words).await?;
    let mut wait = Wait::new(group.clock().now());
    for attempt in 0..ATTEMPTS {
        if let Some((_, word)) = words.committed() {
            return show(group, at, &words, word, home).await;
        }
        home = None;
        if attempt == 0 {
            group.count_slow();
        } else if wait.is_over(group.timeouts().deadline, group.clock().now()) {
            break;
        } else {
            back_off(group, attempt).await;
        }
        // C7: if the words prove nothing, a ballot decides.
        if let Some(decided) = classic(group, at, &mut words, None, created_parts).await? {
            return Ok(match decided.body {
                Some(body) => Committed::of(decided.view, body),
                None => Committed::vacant(decided.view),
            });
        }
    }
    Err(Error::Contended)
}

/// READs words until they prove what is committed or all that answer in time did. Returns what the
/// home node showed.
async fn look<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    words: &mut Words,
) -> Result<Option<F::Reply<'f>>, Error> {
    let (n, all) = (group.nodes(), NodeSet::all(group.nodes()));
    let mut round = Round::new(group);
    let mut home = None;
    let mut begun = NodeSet::EMPTY;
    let mut wanted = group.preferred(at.place.home);
    let mut late = false;
    loop {
        for node in wanted.minus(begun) {
            let from = at.place.at(node, n).plus(cell::WORD);
            let words = at.words_to_read(node == at.place.home);
            let chain = [Verb::Read { at: from, words }];
            round.add(node, group.fabric().post(node, &chain));
        }
        begun = begun.union(wanted);
        let enough = words.answered() >= group.majority();
        if enough && (words.committed().is_some() || late && begun == all) {
            return Ok(home);
        }
        if enough && begun != all {
            wanted = all;
            continue;
        }
        match round.next().await {
            Event::Reply(node, reply) => {
                words.saw(node, CellWord(reply[cell::WORD]));
                if node == at.place.home {
                    home = Some(reply);
                }
            }
            Event::Down(_) => wanted = all,
            Event::Late => (wanted, late) = (all, true),
            Event::Idle if begun != all => wanted = all,
            Event::Idle | Event::Expired if enough => return Ok(home),
            Event::Idle | Event::Expired => {
                let (answered, needed) = (words.answered(), group.majority());
                return Err(Error::NoMajority { answered, needed });
            }
        }
    }
}

/// Returns the committed record that `word` names: from the home node's in-place copy if that is
/// valid.
async fn show<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    words: &Words,
    word: CellWord,
    home: Option<F::Reply<'f>>,
) -> Result<Committed<'f, F>, Error> {
    let (n, format) = (group.nodes(), group.format());
    let pointer = format.record(word);
    let mut view = words.view(pointer);
    for node in NodeSet::all(n) {
        // A fast round succeeded, and has not made the word confirmed yet. (A promise is left to its
        // proposer. To call the record accepted there would be correct, as it is committed under
        // that ballot, but the proposer would lose its CAS.)
        if let Some(shown) = words.seen(node)
            && shown != word
            && shown.is_accepted()
            && confirmed_word(format, shown) == word
        {
            drop(group.fabric().post(node, &[confirm_record(at, node, n, shown, word)]));
            view.set(node, word);
        }
    }
    if pointer.is_null() {
        return Ok(Committed::vacant(view));
    }
    if let Some(length) = home.as_ref().and_then(|home| whole(word, at, home)) {
        let from = at.in_place + cell::IN_PLACE_WORDS;
        return Ok(Committed { view, reply: home, from, words: length });
    }
    // Round 2: the record.
    let body = fetch(group, at, pointer, (words.naming(pointer), WhenLate::Wait)).await?;
    if words.seen(at.place.home) == Some(word) {
        let head = in_place_head(word, body.payload());
        let repair = in_place(at, n, &head, body.payload());
        drop(group.fabric().post(at.place.home, &[repair]));
    }
    Ok(Committed::of(view, body))
}

/// Returns the length of the payload in place, if it belongs to `word` and is valid (C8).
fn whole(word: CellWord, at: &CellRef, home: &[u64]) -> Option<usize> {
    let &[of, checksum, length, ref payload @ ..] = home.get(at.in_place..)? else {
        return None;
    };
    let length = usize::try_from(length).ok().filter(|&length| length <= at.room)?;
    let payload = payload.get(..length)?;
    (of == word.0 && checksum == cell_checksum(word, payload)).then_some(length)
}

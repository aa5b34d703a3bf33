//! Whether a cell has converged: every node's word is the same.
//!
//! Records are reclaimed, so a client must know when a record is unreachable. **Invariant (E6):**
//! once every node shows the same word, confirmed and accepted, no earlier record returns. To put one
//! into a word takes a promise of a higher ballot, and the client that gets it finds this record
//! everywhere.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::cell;
use crate::quorum::Group;
use crate::words::CellWord;

use super::classic::classic;
use crate::cell::accept_request::CreatedParts;
use crate::cell::read::{Committed, read};
use crate::cell::view::{View, Words};
use crate::cell::{ATTEMPTS, CellRef, back_off};

/// Rounds in which lagging nodes are updated.
const ROUNDS: u32 = 16;
const _: () = assert!(ROUNDS < ATTEMPTS);

/// Reads the committed record once every node's word names it and nothing else, and updates nodes
/// that lag. Returns `None` if other clients keep changing the cell.
///
/// Two roundtrips if the cell has converged.
///
/// # Errors
/// [`Error::NoMajority`] if not all nodes answer; those of [`read`].
pub async fn converged<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    created_parts: &dyn CreatedParts,
) -> Result<Option<Committed<'f, F>>, Error> {
    for attempt in 0..ROUNDS {
        let committed = read(group, at, created_parts).await?;
        let mut words = Words::new(group.format(), group.nodes(), &View::VACANT);
        let same = same_word(group, at, &mut words).await?;
        if same.is_some_and(|word| group.format().record(word) == committed.view.record()) {
            return Ok(Some(committed));
        }
        drop(committed);
        if attempt > 0 {
            back_off(group, attempt).await;
            // A node lags. A ballot brings it what the others have.
            drop(classic(group, at, &mut words, None, created_parts).await?);
        }
    }
    Ok(None)
}

/// Returns the word that every node shows, if it is confirmed and accepted.
async fn same_word<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    words: &mut Words,
) -> Result<Option<CellWord>, Error> {
    let n = group.nodes();
    let (mut common, mut same) = (None, true);
    let read = |node| {
        let at = at.place.at(node, n).plus(cell::WORD);
        group.fabric().post(node, &[Verb::Read { at, words: 1 }])
    };
    let collect = |node, reply: F::Reply<'_>| {
        let word = CellWord(reply[0]);
        words.saw(node, word);
        // E6: all nodes must show one word; then all promises name this record from now on, or one
        // built on it, whatever the flags. Another word than confirmed and accepted is about to change.
        same &= *common.get_or_insert(word) == word && word.is_confirmed() && word.is_accepted();
    };
    group.everywhere(read, collect).await?;
    Ok(common.filter(|_| same))
}

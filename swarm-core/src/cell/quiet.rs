//! Whether a cell is quiet: every node's word says the same.
//!
//! Records are used again, so somebody has to know when nobody can come across one any more. Once
//! every node shows the same word, solid and accepted, no earlier record returns: to put one into a
//! word takes a promise of a higher ballot, and whoever gets that meets this record everywhere.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::cell;
use crate::quorum::Group;
use crate::words::CellWord;

use super::classic::classic;
use super::offer::Births;
use super::read::{Committed, read};
use super::view::{View, Words};
use super::{ATTEMPTS, CellRef, back_off};

/// Rounds in which nodes that lag are brought up.
const ROUNDS: u32 = 16;
const _: () = assert!(ROUNDS < ATTEMPTS);

/// Reads the committed record once every node's word names it and nothing else, and brings up those
/// that do not yet. `None` if others go on changing the cell.
///
/// Two roundtrips where the cell is quiet.
///
/// # Errors
/// [`Error::NoMajority`] if not all nodes answer; those of [`read`].
pub async fn quiet<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    at: &CellRef,
    births: &impl Births,
) -> Result<Option<Committed<'f, F>>, Error> {
    for attempt in 0..ROUNDS {
        let committed = read(group, at, births).await?;
        let mut words = Words::new(group.format(), group.nodes(), &View::VACANT);
        let same = same_word(group, at, &mut words).await?;
        if same.is_some_and(|word| group.format().record(word) == committed.view.record()) {
            return Ok(Some(committed));
        }
        drop(committed);
        if attempt > 0 {
            back_off(group, attempt).await;
            // A node lags. A ballot brings it what the others have.
            drop(classic(group, at, &mut words, None, births).await?);
        }
    }
    Ok(None)
}

/// The word that every node shows, if it is settled.
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
    let hear = |node, reply: F::Reply<'_>| {
        let word = CellWord(reply[0]);
        words.saw(node, word);
        // Solid and accepted only because somebody is about to change it otherwise. Whatever its flags, all promises name
        // this record from now on, or one that was built on it.
        same &= *common.get_or_insert(word) == word && word.is_solid() && word.is_accepted();
    };
    group.everywhere(read, hear).await?;
    Ok(common.filter(|_| same))
}

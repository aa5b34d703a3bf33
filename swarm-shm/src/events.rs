//! Event counts: whether a node's file is the current one, or an older copy that was put back.
//!
//! Such a copy is complete and the pool's own, and lacks what was acknowledged since. It is not a
//! node that lags, as its votes since then are gone: a write that it took part in may be at no
//! majority any more. So each node has an *event count*, like the disks of a RAID: one in its own
//! header and one in the control file. Each client raises the counts of its nodes when it attaches,
//! twice a second while it works, and when it leaves. A node that is away keeps both counts, and
//! returns as before: it lags, as any node may.
//!
//! **Invariant (S10):** the count of a node's current file is that of its word in the control file,
//! or one less while that word is *pending*.
//!
//! A raise announces the next count as pending, then stores it in the header, then clears the
//! pending bit. There are no locks: a client that finds a pending count finishes it, and stores a
//! header's count only if that grows. So a client may be killed or stopped after each step, and the
//! next client finds the invariant intact.
//!
//! # What is known without a control file
//!
//! The process that raised the counts stores them in the headers of all its nodes, so that each node says how
//! far the others are. A current file has at least the count that any other node says (S16). A node
//! has no more than was stored in a header before, but may lack the last raises, of clients that
//! were killed in between.
//!
//! # Why the orderings suffice
//!
//! Both words only grow. A header gets a count after its announcement, and an acquire load that
//! reads that count also sees the announcement or a later word in the control file: no current file
//! is taken for *newer*. Every client that clears the pending bit does so after the header's count,
//! and an acquire load that reads the word without that bit also sees that count or a later one in
//! the header: no current file is taken for *older*.

use crate::words::sync::{Ordering, Word};

/// The bit of the control file's word that says that the header may not have the count yet. The
/// count is in the bits above.
const PENDING: u64 = 1;
/// How often a raise is tried. An attempt fails only if another client raised the count meanwhile.
const TRIES: usize = 64;

/// Returns the control file's word for a node's file with this count.
#[cfg(not(loom))]
pub(crate) fn known(count: u64) -> u64 {
    count << 1
}

/// Returns the control file's word for a node whose file is away, if its count was this one when it
/// was last seen: a raise may have been in progress.
#[cfg(not(loom))]
pub(crate) fn last_known(count: u64) -> u64 {
    known(count.saturating_add(1)) | PENDING
}

/// Returns the least count that a node's current file has, by the control file's word.
pub(crate) fn least(word: u64) -> u64 {
    (word >> 1).saturating_sub(word & PENDING)
}

/// How a node's file relates to the control file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The node's current file.
    Current,
    /// A copy that was made before the node was last used.
    Older {
        /// The file's count.
        found: u64,
        /// The least count of the current file.
        known: u64,
    },
    /// The file was used after this control file was copied.
    Newer {
        /// The file's count.
        found: u64,
        /// The greatest count of the current file.
        known: u64,
    },
}

/// Compares a header's count with the control file's word as read before and after it.
fn compare(before: u64, found: u64, behind: u64) -> Standing {
    let least = least(before);
    let most = behind >> 1;
    if found < least {
        Standing::Older { found, known: least }
    } else if found > most {
        Standing::Newer { found, known: most }
    } else {
        Standing::Current
    }
}

/// Compares a node's header with its word in the control file. Changes nothing, and may run while
/// other clients raise the count.
pub fn standing(control: &Word, header: &Word) -> Standing {
    // Acquire: pairs with the release in `settle`.
    let before = control.load(Ordering::Acquire);
    // Acquire: pairs with the release of the header's count, which follows its announcement.
    let found = header.load(Ordering::Acquire);
    compare(before, found, control.load(Ordering::Acquire))
}

/// Raises a node's count, if its file is the current one. Returns how the file relates. For tests.
#[cfg(any(test, loom))]
pub fn raise(control: &Word, header: &Word) -> Standing {
    raise_unless(control, header, || false)
}

/// The same of a header that may be in memory [that gets lost](crate::sigbus): what is stored there then is not in the
/// file, and the count stays pending.
pub fn raise_unless(control: &Word, header: &Word, is_lost: impl Fn() -> bool) -> Standing {
    for _ in 0..TRIES {
        // Acquire: as in `standing`.
        let known = control.load(Ordering::Acquire);
        let standing = compare(known, header.load(Ordering::Acquire), known);
        if standing != Standing::Current {
            if control.load(Ordering::Acquire) == known {
                return standing;
            }
        } else if known & PENDING != 0 {
            // S10: another raise was cut short, or is still in progress. The next count must not be
            // announced before the header has this one.
            settle(control, header, known, &is_lost);
        } else if let Some(next) = announce(control, known) {
            settle(control, header, next, &is_lost);
            return Standing::Current;
        }
    }
    standing(control, header)
}

/// Announces the count after `known`. `None` if another client was first.
fn announce(control: &Word, known: u64) -> Option<u64> {
    let next = known.wrapping_add(2) | PENDING;
    // Release: pairs with the acquire of clients that finish this raise, so that the header's count
    // always follows the announcement.
    control
        .compare_exchange(known, next, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
        .then_some(next)
}

/// Stores a pending count in the header, and clears the pending bit.
fn settle(control: &Word, header: &Word, pending: u64, is_lost: &impl Fn() -> bool) {
    // S10: never lowers it: a client that was delayed here may find a later count. Release: pairs
    // with the acquire of the comparing load. Acquire: keeps the question whether it is lost behind it.
    header.fetch_max(pending >> 1, Ordering::AcqRel);
    // S11: what was stored in place of lost memory is not in the file.
    if is_lost() {
        return;
    }
    // Fails if another client was first. Release: orders it after the header's count.
    let _ =
        control.compare_exchange(pending, pending & !PENDING, Ordering::Release, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(control: u64, header: u64) -> (Word, Word) {
        (Word::new(control), Word::new(header))
    }

    /// The words for a completed count and for a pending one.
    fn settled(count: u64) -> u64 {
        count << 1
    }

    fn pending(count: u64) -> u64 {
        count << 1 | PENDING
    }

    #[test]
    fn a_raise_that_was_cut_short_is_finished_by_the_next() {
        // Not begun; announced; in the header; completed.
        for (control, header) in
            [(settled(7), 7), (pending(8), 7), (pending(8), 8), (settled(8), 8)]
        {
            let (control, header) = words(control, header);
            let copied = header.load(Ordering::Relaxed);
            assert_eq!(standing(&control, &header), Standing::Current);
            assert_eq!(raise(&control, &header), Standing::Current);
            let count = header.load(Ordering::Relaxed);
            assert!(count > copied, "a copy of before is older now");
            assert_eq!(control.load(Ordering::Relaxed), settled(count));
            assert_eq!(standing(&control, &header), Standing::Current);
        }
    }

    #[test]
    fn a_word_that_is_made_anew_accepts_the_file_it_was_made_for() {
        let standing = |control, header| {
            let (control, header) = words(control, header);
            standing(&control, &header)
        };
        assert_eq!(standing(known(7), 7), Standing::Current);
        assert_eq!(standing(known(7), 6), Standing::Older { found: 6, known: 7 });
        for count in [7, 8] {
            assert_eq!(standing(last_known(7), count), Standing::Current);
        }
        assert_eq!(standing(last_known(7), 6), Standing::Older { found: 6, known: 7 });
        assert_eq!((least(known(7)), least(last_known(7)), least(1)), (7, 7, 0));
    }

    /// Each step of a raise is delayed, while another raise completes.
    #[test]
    fn a_step_that_comes_late_changes_nothing() {
        let (control, header) = words(settled(7), 7);
        let next = announce(&control, settled(7)).expect("nobody else");
        assert_eq!(standing(&control, &header), Standing::Current);
        assert_eq!(raise(&control, &header), Standing::Current);
        assert_eq!(
            (control.load(Ordering::Relaxed), header.load(Ordering::Relaxed)),
            (settled(9), 9)
        );
        settle(&control, &header, next, &|| false);
        assert_eq!(
            (control.load(Ordering::Relaxed), header.load(Ordering::Relaxed)),
            (settled(9), 9)
        );
        assert_eq!(announce(&control, settled(7)), None);
    }

    #[test]
    fn another_file_is_reported_and_left_alone() {
        for (control, header, expected) in [
            (settled(7), 6, Standing::Older { found: 6, known: 7 }),
            (pending(7), 5, Standing::Older { found: 5, known: 6 }),
            (settled(7), 8, Standing::Newer { found: 8, known: 7 }),
            (pending(7), 8, Standing::Newer { found: 8, known: 7 }),
            (settled(1), 0, Standing::Older { found: 0, known: 1 }),
            (0, u64::MAX, Standing::Newer { found: u64::MAX, known: 0 }),
            (u64::MAX, 0, Standing::Older { found: 0, known: u64::MAX / 2 - 1 }),
        ] {
            let (word, count) = words(control, header);
            assert_eq!(standing(&word, &count), expected);
            assert_eq!(raise(&word, &count), expected);
            assert_eq!(
                (word.load(Ordering::Relaxed), count.load(Ordering::Relaxed)),
                (control, header)
            );
        }
    }

    /// A damaged word may have any value.
    #[test]
    fn counts_at_their_end_do_no_harm() {
        let (control, header) = words(!PENDING, u64::MAX >> 1);
        for _ in 0..3 {
            raise(&control, &header);
        }
    }
}

//! The timestamp lock (§3, appendix A): decides once whether a guess is returned or replaced.
//!
//! **Invariant (L1):** for one write number, the READ lock and the WRITE lock are never both won. A
//! word that holds a number never holds it in the other mode. A READ lock takes f + 1 words; a
//! WRITE lock takes enough to share one with any f + 1. With three nodes, two of which hold a
//! buffer, that is one word: a writer can always take back what it cannot complete. The lock word
//! lies in the write's buffer, at the nodes that hold it, and only grows.
//!
//! One roundtrip; two where the buffer served an earlier write.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{ReplicaSet, buffer};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next, VoteCollector};
use crate::words::{LockMode, LockWord, WriteNumber};

/// CASes of one lock word at one node (L2). The word is empty, or holds the number of an earlier
/// write of the buffer. All locking of that number ended before the buffer was reused. The first
/// CAS finds the number; after that the word changes once at most, by the other client that locks
/// this number.
const TRIES: u32 = 2;

/// Takes the READ lock of write `number`, whose buffer is at `site`, for a client that has read it.
///
/// # Errors
/// As [`try_lock`], and [`Error::Moved`] if nodes that hold the lock are silent: other nodes cannot
/// take their place.
pub(crate) async fn try_lock_to_read<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    home: NodeId,
    site: &ReplicaSet,
    number: WriteNumber,
) -> Result<bool, Error> {
    match try_lock(group, home, site, number, LockMode::Read).await {
        Err(_) if site.holders != NodeSet::all(group.nodes()) => Err(Error::Moved),
        locked => locked,
    }
}

/// Locks write `number`, whose buffer is at `site`, in `mode`. Returns false if it is, or may be,
/// locked in the other mode, or if the buffer serves a later write.
pub(crate) async fn try_lock<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    home: NodeId,
    site: &ReplicaSet,
    number: WriteNumber,
    mode: LockMode,
) -> Result<bool, Error> {
    let mine = LockWord::new(number, mode);
    let mut settled = [LockWord::default(); MAX_NODES];
    let mut expect = [0; MAX_NODES];
    let mut tries = [0; MAX_NODES];
    let post = |node, expect| {
        let at = site.place.at(node, group.nodes()).plus(buffer::LOCK);
        group.fabric().post(node, &[Verb::Cas { at, expect, new: mine.0 }])
    };
    // L1: any WRITE lock shares a word with any READ lock.
    let (to_read, among) = (group.majority(), site.holders);
    let gathering = match mode {
        LockMode::Read => {
            let another_way = among != NodeSet::all(group.nodes());
            VoteCollector::new(group, among, to_read).or_else(another_way)
        }
        // If these do not answer, no majority does.
        LockMode::Write => VoteCollector::new(group, among, among.len() + 1 - to_read),
    };
    let votes = gathering
        .collect_votes(group.preferred(home), &mut |node, reply: Option<F::Reply<'_>>| {
            let Some(reply) = reply else { return Next::Post(post(node, 0)) };
            let Some(&held) = reply.first() else { return Next::NoVote };
            let i = node.index();
            if held == expect[i] {
                settled[i] = mine;
            } else if LockWord(held).number() >= number {
                // L1: a word only grows. It never holds a later write's number here: a buffer is
                // reused only after every client that locks for this write is done.
                settled[i] = LockWord(held);
            } else {
                expect[i] = held;
                tries[i] += 1;
                if tries[i] == TRIES {
                    return Next::NoVote;
                }
                return Next::Post(post(node, held));
            }
            Next::Vote
        })
        .await?;
    Ok(votes.into_iter().all(|node| settled[node.index()] == mine))
}

//! The timestamp lock (§3, appendix A): decides once whether a guess is returned or replaced.
//!
//! For one write number, READ and WRITE locks exclude each other: a word that holds a number never holds
//! it in another mode, and a READ lock takes as many words as a write takes nodes, a majority of all, a
//! WRITE lock as many as share one with those. (Of three nodes of which two hold a buffer, that is one: a
//! writer can always take back what it cannot complete.) The lock word lies in the write's buffer, at the
//! nodes that hold it, and only grows.
//!
//! One roundtrip; two where the buffer served an earlier write.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Site, buffer};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Gathering, Group, Next};
use crate::words::{LockMode, LockWord, WriteNumber};

/// CASes of one lock word at one node. The word is empty, or holds the number of an earlier write of
/// the buffer, whose locks were over before the buffer was handed out again: it is found out by one
/// CAS, and changes once until the next one, by the other who locks this number.
const TRIES: u32 = 2;

/// Locks write `number`, whose buffer is at `site`, for one who has read it.
///
/// # Errors
/// As [`try_lock`], and [`Error::Moved`] where nodes that have the lock are silent, and others would not
/// do.
pub(crate) async fn try_lock_to_read<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    home: NodeId,
    site: &Site,
    number: WriteNumber,
) -> Result<bool, Error> {
    match try_lock(group, home, site, number, LockMode::Read).await {
        Err(_) if site.holders != NodeSet::all(group.nodes()) => Err(Error::Moved),
        locked => locked,
    }
}

/// Locks write `number`, whose buffer is at `site`, in `mode`. False if it is, or may be, locked
/// in the other mode, or the buffer serves a later write.
pub(crate) async fn try_lock<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    home: NodeId,
    site: &Site,
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
    let (to_read, among) = (group.majority(), site.holders);
    let gathering = match mode {
        LockMode::Read => {
            let another_way = among != NodeSet::all(group.nodes());
            Gathering::new(group, among, to_read).or_else(another_way)
        }
        // Where those do not answer, no majority does.
        LockMode::Write => Gathering::new(group, among, among.len() + 1 - to_read),
    };
    let votes = gathering
        .settle(group.preferred(home), &mut |node, reply: Option<F::Reply<'_>>| {
            let Some(reply) = reply else { return Next::Post(post(node, 0)) };
            let Some(&held) = reply.first() else { return Next::NoVote };
            let i = node.index();
            if held == expect[i] {
                settled[i] = mine;
            } else if LockWord(held).number() >= number {
                // A later one's is never met, as a buffer is handed out again when whoever locks for this write is
                // done. But a lock only grows, whatever is there.
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

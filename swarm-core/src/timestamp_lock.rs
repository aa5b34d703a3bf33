//! The timestamp lock (§3, appendix A): decides once whether a guess is returned or replaced.
//!
//! For one write number, READ and WRITE locks exclude each other: each needs a majority of lock
//! words, a word that holds a number never holds it in another mode, and two majorities share a
//! node. The lock word lies in the write's buffer and only grows.
//!
//! One roundtrip; two where the buffer served an earlier write.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, MAX_NODES, NodeId, Verb};
use crate::gather::Next;
use crate::group::Group;
use crate::in_n_out::buffer_at;
use crate::layout::buffer;
use crate::words::{LockMode, LockWord, Pointer, WriteNumber};

/// CASes of one lock word at one node. The word is empty, or holds the number of an earlier write of
/// the buffer, whose locks were over before the buffer was handed out again: it is found out by one
/// CAS, and changes once until the next one, by the other who locks this number.
const TRIES: u32 = 2;

/// Locks write `number`, whose buffer is `pointer`, in `mode`. False if it is, or may be, locked
/// in the other mode, or the buffer serves a later write.
pub(crate) async fn try_lock<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    home: NodeId,
    pointer: Pointer,
    number: WriteNumber,
    mode: LockMode,
) -> Result<bool, Error> {
    let mine = LockWord::new(number, mode);
    let mut settled = [LockWord::default(); MAX_NODES];
    let mut expect = [0; MAX_NODES];
    let mut tries = [0; MAX_NODES];
    let at = buffer_at(pointer, buffer::LOCK);
    let post = |node, expect| group.fabric().post(node, &[Verb::Cas { at, expect, new: mine.0 }]);
    let votes = group
        .settle(group.preferred(home), group.majority(), |node, reply| {
            let Some(reply) = reply else { return Next::Post(post(node, 0)) };
            let Some(&held) = reply.first() else { return Next::NoVote };
            let i = node.index();
            if held == expect[i] {
                settled[i] = mine;
            } else if LockWord(held).number() >= number {
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

//! Settling a cell: what clients that are fenced at a majority of the nodes proposed is committed by now, or
//! never will be.
//!
//! A read may go by the words of some majority. A record that is at another node by then may still come to one
//! more, if its proposer is not fenced there, and a later ballot commits it. So a ballot decides, above all
//! that any node that answers has promised.
//!
//! **Invariant (C9):** let F be a majority that has fenced a proposer before this begins, all nodes of which
//! answer. No record of that proposer is committed after this, unless it was committed before.
//!
//! - A fast round of it needs every node to go on from one word (C1), and a majority has this ballot's word
//!   instead. Where its record still lands, it is at a minority and not confirmed, so no ballot chooses it (C2).
//! - A ballot of it that a majority promises is promised by a node of F, before the fence. That node's word
//!   showed it here, so this ballot is larger. Whatever that round still has accepted counts less than what a
//!   majority accepted here (C2).

use crate::clock::{Clock, Wait};
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::cell;
use crate::node::NodeSet;
use crate::quorum::{Event, Group, Round};
use crate::words::CellWord;

use super::accept_request::CreatedParts;
use super::classic::classic;
use super::view::{View, Words};
use super::{ATTEMPTS, CellRef, back_off};

/// Settles the cell (C9). Changes nothing that is committed.
///
/// Three roundtrips, and more while other clients change the cell. A node that is silent and not known to be down
/// costs the operation's deadline.
///
/// # Cancel safety
/// Dropping the future changes nothing that was committed.
///
/// # Errors
/// [`Error::NoMajority`], [`Error::Contended`], [`Error::Exhausted`], [`Error::Damaged`].
pub async fn settle<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    created_parts: &dyn CreatedParts,
) -> Result<(), Error> {
    let mut words = Words::new(group.format(), group.nodes(), &View::VACANT);
    look_everywhere(group, at, &mut words).await?;
    let mut wait = Wait::new(group.clock().now());
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            if wait.is_over(group.timeouts().deadline, group.clock().now()) {
                break;
            }
            back_off(group, attempt).await;
        }
        if classic(group, at, &mut words, None, created_parts).await?.is_some() {
            return Ok(());
        }
    }
    Err(Error::Contended)
}

/// READs the words of all nodes that answer within the deadline, however late.
async fn look_everywhere<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    words: &mut Words,
) -> Result<(), Error> {
    let n = group.nodes();
    let mut round = Round::new(group);
    for node in NodeSet::all(n) {
        let at = at.place.at(node, n).plus(cell::WORD);
        round.add(node, group.fabric().post(node, &[Verb::Read { at, words: 1 }]));
    }
    loop {
        match round.next().await {
            Event::Reply(node, reply) => words.saw(node, CellWord(reply[0])),
            Event::Down(_) | Event::Late => {}
            Event::Idle | Event::Expired => break,
        }
    }
    let (answered, needed) = (words.answered(), group.majority());
    if answered < needed {
        return Err(Error::NoMajority { answered, needed });
    }
    Ok(())
}

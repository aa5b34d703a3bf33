//! Filling: a register is brought to the node that takes a lost one's place.
//!
//! A lost node is *replaced* in steps that a pool's clients agree on: the old node is gone, every
//! operation that began before that is over, the new node is filled, the new node votes. Until it
//! votes, clients treat it as down; only a client that fills posts to it.
//!
//! **Invariant (H1):** every majority with the new node shows what completed before the lost node was
//! gone for all clients, or something later. The new node shows the largest stamp that a majority of
//! the others showed, f + 1 of them, once all operations were over that could still count on the
//! lost node. A change that completed before is at f of the 2f others at least, so that stamp is
//! this change's or a later one. What completes afterwards is at f + 1 of the others, and a majority
//! with the new node has f of them: they share one.
//!
//! A stamp is not shown where its buffer leaves the new node out (M3). It is made stable among the
//! others then, before the new node votes: it may be at one node only, which has the change, too,
//! and a majority of the new node and the others would show neither.
//!
//! Locks are not filled. A writer wins the WRITE lock only after a larger stamp is stable, and by
//! H1 every majority shows that one or a later one: no reader returns the guess that was locked.

use super::handle::{Check, Register};
use super::in_n_out::{Fetched, in_place, in_place_head};
use super::max_register::{self, Maximum, READ_TRIES, Want};
use super::replicas::read_header;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::register;
use crate::node::{NodeId, NodeSet};
use crate::quorum::Group;
use heapless::Vec;

/// Brings the register to `node`, which takes a lost node's place and does not vote yet.
///
/// `group` sees the other nodes alone: its fabric answers for `node` that it is down. `joining`
/// posts to the new node. Call this once every operation has ended that began before the lost node
/// was gone for its client, and let the node vote only when all chains of all clients that fill it
/// are over.
///
/// Four roundtrips, and up to three more if the buffer leaves the new node out. A second fill of the same register,
/// by whichever client, changes nothing or adds a later stamp.
///
/// # Cancel safety
/// Dropping the future leaves the register at the new node half filled; another fill completes it.
///
/// # Errors
/// [`Error::Moved`] if the register is frozen: the key has to be relocated, and its new register
/// filled. [`Error::Gone`] if a majority of the others does not have it: it was replaced
/// since it was looked up. [`Error::Contended`]
/// if other clients' writes came in between too often. [`Error::NoMajority`] if too few of the others answer, or if the new node
/// does not.
pub async fn fill<F: Fabric, N: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    (joining, node): (&N, NodeId),
) -> Result<(), Error> {
    let (format, n) = (group.format(), group.nodes());
    let m = largest(group, register, node).await?;
    let others = NodeSet::all(n).minus(core::iter::once(node).collect());
    let header = read_header(group, register, others).await?;
    let fetched = m.value.map(|value| Fetched { reply: value.reply, header: m.header });
    let site = group.site(register, m.stamp);
    let holds = site.holders.contains(node);
    let copy = fetched.as_ref().map(|fetched| fetched.copy(format, site, m.stamp));
    let in_place_words = in_place_head(m.stamp, &m.header);
    let is_in_place = node == register.home() && m.stamp.is_verified();
    let identity = register.identity.encode();
    let (header_at, at) =
        (register.shape().header_place(&register.place).at(node, n), register.place.at(node, n));
    let mut chain = Vec::<Verb<'_>, 5>::new();
    let mut add = |verb| chain.push(verb).expect("a register takes five verbs");
    add(Verb::Write { at: header_at, head: &header, tail: &[] });
    if let Some(copy) = copy.as_ref().filter(|_| holds) {
        add(copy.write(node, n));
    }
    if let Some(fetched) = fetched.as_ref().filter(|_| is_in_place) {
        add(in_place(group, register, &in_place_words, fetched.value()));
    }
    // I6: the identity comes behind the header that it vouches for.
    add(Verb::Write { at: at.plus(register::IDENTITY), head: &identity, tail: &[] });
    // I1, M3: the slot comes behind the buffer, and only a node that holds the buffer shows the
    // stamp. I4: a slot is not written. One that another fill has set stays: that fill read its
    // stamp as late as it must, too.
    if holds {
        let slot = at.plus(register::SLOTS_AT + group.slot());
        add(Verb::Cas { at: slot, expect: 0, new: m.stamp.0 });
    }
    let posted = joining.post(node, &chain).await;
    posted.map(drop).map_err(|_| Error::NO_ANSWER)
}

/// Returns what the new node is to show: the largest stamp of a majority of the others as it is, or
/// stable if its buffer leaves the new node out (H1).
async fn largest<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    node: NodeId,
) -> Result<Maximum<'f, F>, Error> {
    for _ in 0..READ_TRIES {
        let m = max_register::read(group, register, Check::Identity, Want::AsItIs).await?;
        if group.site(register, m.stamp).holders.contains(node) {
            return Ok(m);
        }
        match max_register::read(group, register, Check::Identity, Want::OutOfPlace).await {
            Ok(stable) if stable.stamp.same_write(m.stamp) => return Ok(stable),
            // A later write came in between: one that the new node is to hold, perhaps.
            Ok(_) | Err(Error::Moved) => group.count_retry(),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Contended)
}

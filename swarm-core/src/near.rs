//! The common case where memory is near, in straight lines.
//!
//! On memory that this processor loads and stores itself, a roundtrip takes a few dozen
//! nanoseconds, and what it takes to be ready for everything else would cost more. These two do
//! what the general paths do when a majority answers at once and agrees; on anything else they
//! give up, and the general path begins anew. A read has changed nothing by then. A write has
//! perhaps put its stamp into slots: the general path goes on with the same stamp and buffer, and
//! finds it there.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::clock::Clock;
use crate::fabric::Fabric;
use crate::group::Group;
use crate::in_n_out::{largest_of_others, post_read, post_write, state};
use crate::layout::register;
use crate::look::Look;
use crate::max_register::{Writes, in_place};
use crate::node_set::NodeSet;
use crate::register::{Begun, Check, Register, Value};
use crate::replicas::Votes;
use crate::words::Stamp;

/// The reply of a chain that is done.
#[inline(always)]
fn now<'f, F: Fabric + 'f>(mut chain: F::Completion<'f>) -> Option<F::Reply<'f>> {
    match Pin::new(&mut chain).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(reply)) => Some(reply),
        _ => None,
    }
}

/// Has the nodes' slots on their way together, not one node's after another's.
#[inline(always)]
fn expect<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register, nodes: NodeSet) {
    for node in nodes {
        let at = register.place.at(node, group.nodes());
        group.fabric().expect(node, at, register::STATE_WORDS);
    }
}

/// One look at a majority: the value, or what the rest of the read goes on from.
#[inline(always)]
pub(crate) fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Begun<Value<'f, F>, Option<Look<F::Reply<'f>>>> {
    match look(group, register).map(|look| in_place(group, register, look)) {
        Some(Ok(value)) => Begun::Done(value),
        Some(Err(look)) => Begun::Rest(Some(look)),
        None => Begun::Rest(None),
    }
}

#[inline(always)]
fn look<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Option<Look<F::Reply<'f>>> {
    if !group.fabric().is_near() {
        return None;
    }
    let home = register.home();
    let voters = group.preferred(home);
    if !voters.contains(home) {
        return None;
    }
    let mut others = voters;
    others.remove(home);
    expect(group, register, others);
    let read = |node| now::<F>(post_read(group, node, register, Check::Identity));
    let mut votes = Votes::new();
    let reply = group.fabric().together(|| {
        let reply = read(home)?;
        votes.count(home, state(&reply, register.identity)?);
        for node in others {
            votes.count(node, state(&read(node)?, register.identity)?);
        }
        Some(reply)
    })?;
    let (max, holders, missing) = (votes.largest().ok()?, votes.holders, NodeSet::EMPTY);
    Some(Look { max, holders, voters, missing, home: Some(reply), other_key: false })
}

/// Writes a guess. The voters, if a majority took it and shows nothing larger.
#[inline(always)]
pub(crate) fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    writes: Writes<'_>,
) -> Option<NodeSet> {
    if !group.fabric().is_near() {
        return None;
    }
    let copy = writes.copy.as_ref()?;
    let voters = group.preferred(register.home()).intersection(copy.site.holders);
    if voters.len() < group.majority() {
        return None;
    }
    expect(group, register, voters);
    let (before, mut fresh, mut followed) = (register.own, true, Stamp::EMPTY);
    group.fabric().together(|| {
        for node in voters {
            let expected = before.at(node);
            let reply = now::<F>(post_write(group, node, register, writes.stamp, expected, copy))?;
            let (&old, slots) = reply.split_first()?;
            let max = state(slots, register.identity)?;
            register.own.saw(node, Stamp(*slots.get(group.slot())?));
            fresh &= old == expected.0 && max.0 == writes.stamp.0;
            // What is at one node alone is told by who completes it.
            if node == register.home() {
                followed = largest_of_others(slots, group.slot());
            }
        }
        Some(())
    })?;
    register.followed = followed;
    fresh.then_some(voters)
}

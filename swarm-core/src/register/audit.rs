//! Whether a register is whole: what each node has of it, READ by itself, and nothing done about it.
//!
//! A protocol that meets a replica that is missing, or behind, brings it up, and settles a guess. This only
//! finds out, for callers that report what is not whole. It rests on nothing but READs, of different moments: what is under way looks half done, so
//! a caller that takes something for a fault looks again, and compares the [digests](Audit::digest).

use heapless::Vec;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::handle::Register;
use super::in_n_out::{InPlace, Validated, largest, state, validate, validate_in_place};
use crate::clock::Clock;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Header, MAX_KEY, SLOTS, buffer, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::Group;
use crate::words::{Stamp, StampFlags};

/// What the nodes have of a register.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Nodes that do not answer. Nothing else is reported of them.
    pub down: NodeSet,
    /// Nodes that have no replica of it.
    pub missing: NodeSet,
    /// Nodes whose header or key is not whole.
    pub bad_headers: NodeSet,
    /// Nodes whose slots name the latest complete write, and whose copy of its value is not whole.
    pub bad_values: NodeSet,
    /// Whether the copy in place says that it is that write's, and is not whole. Writers that put theirs there at the same time
    /// may leave it so; readers go by the buffer then, and mend it.
    pub is_torn_in_place: bool,
    /// Whether the latest write is not known to be complete at any node, or the register is being moved.
    pub is_unsettled: bool,
    /// Nodes that are to have the latest complete write and do not, where fewer than a majority do.
    pub lagging: NodeSet,
    /// Nodes whose slots do not show it: as a rule, a write leaves some out.
    pub behind: NodeSet,
    /// Its key, if a node has that whole.
    key: Vec<u8, MAX_KEY>,
    /// Whether the latest write deleted it.
    pub is_deleted: bool,
    /// A checksum of what all nodes showed: another one means that somebody was at work.
    pub digest: u64,
}

impl Audit {
    /// Returns the key that the register's header holds; empty if no node has the header whole.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether nothing is wrong, at the nodes that answer. Of a register whose delete is complete nothing else is of use.
    pub fn is_sound(&self) -> bool {
        let bad = self.missing.union(self.bad_headers).union(self.bad_values);
        !self.is_unsettled && self.lagging.is_empty() && (self.is_deleted || bad.is_empty())
    }
}

/// What the nodes have of `register`. Two roundtrips for each node, one more for a value that is longer than its place.
pub async fn audit<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register) -> Audit {
    let (n, format) = (group.nodes(), group.format());
    let mut audit = Audit::default();
    let mut slots = [[Stamp::EMPTY; SLOTS]; MAX_NODES];
    let mut in_place = None;
    for node in NodeSet::all(n) {
        let Some(shown) = weak(group, register, node).await else {
            audit.down.insert(node);
            continue;
        };
        let (replica, header) = shown.split_at(register.shape().header_at(node == register.home()));
        audit.digest = xxh3_64_with_seed(replica.as_bytes(), audit.digest);
        if state(replica, register.identity).is_none() {
            audit.missing.insert(node);
            continue;
        }
        for (slot, &word) in slots[node.index()].iter_mut().zip(replica) {
            *slot = Stamp(word);
        }
        match Header::decode(register.identity.number, header) {
            Some(header) => audit.key = Vec::from_slice(header.key).unwrap_or_default(),
            None => audit.bad_headers.insert(node),
        }
        if node == register.home() {
            in_place = Some(shown);
        }
    }
    let there = NodeSet::all(n).minus(audit.down).minus(audit.missing);
    let max = |node: NodeId| {
        let words = slots[node.index()].map(|stamp| stamp.0);
        Stamp(largest(&words).0 & !StampFlags::FROZEN.bits())
    };
    let all = || there.flat_map(|node| slots[node.index()]);
    let latest = all().max().unwrap_or(Stamp::EMPTY);
    let complete = all().filter(|stamp| stamp.is_verified()).max().unwrap_or(Stamp::EMPTY);
    let complete = Stamp(complete.0 & !StampFlags::FROZEN.bits());
    audit.is_deleted = format.is_deleted(latest);
    audit.is_unsettled = !latest.is_verified() || all().any(Stamp::is_frozen);
    let reaches = |node| max(node).same_write(complete) || max(node) > complete;
    audit.behind = there.holding(|node| !reaches(node));
    if complete == Stamp::EMPTY {
        return audit;
    }
    let holders = group.site(register, complete).holders;
    let reached = holders.intersection(there).holding(reaches);
    if reached.len() < group.majority() {
        audit.lagging = holders.intersection(there).minus(reached);
    }
    // What is below a guess may have served its time.
    if audit.is_deleted || !latest.same_write(complete) {
        return audit;
    }
    for node in reached.holding(|node| max(node).same_write(complete)) {
        if !has_value(group, register, complete, node).await {
            audit.bad_values.insert(node);
        }
    }
    if let Some(shown) = in_place {
        let is_its = shown.get(register::IN_PLACE) == Some(&complete.0);
        let validated = validate_in_place(format, register, complete, &shown);
        audit.is_torn_in_place = is_its && matches!(validated, InPlace::Bad);
    }
    audit
}

/// All of the replica at `node`. `None` if that does not answer.
async fn weak<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    node: NodeId,
) -> Option<F::Reply<'f>> {
    let shape = register.shape();
    let words = shape.header_at(node == register.home()) + shape.header_words();
    let at = register.place.at(node, group.nodes());
    group.fabric().post(node, &[Verb::Read { at, words }]).await.ok()
}

/// Whether the buffer that `stamp` names is whole at `node`, or that does not answer any more.
async fn has_value<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    stamp: Stamp,
    node: NodeId,
) -> bool {
    let at = group.site(register, stamp).place.at(node, group.nodes()).plus(buffer::REWRITE);
    let mut words = buffer::HEADER_WORDS - 1;
    for _ in 0..2 {
        if !group.placement().has_room_at(at, words) {
            return false;
        }
        let Ok(reply) = group.fabric().post(node, &[Verb::Read { at, words }]).await else {
            return true;
        };
        match validate(group.format(), register, stamp, reply) {
            Validated::Good(_) => return true,
            Validated::Longer(more) => words = more,
            Validated::Bad => return false,
        }
    }
    false
}

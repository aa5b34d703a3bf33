//! The common case on synchronous fabrics, as straight-line code.
//!
//! A processor that loads and stores the memory itself needs a few dozen nanoseconds for a
//! roundtrip. Preparing for all other cases would cost more than that. These two functions do what
//! the general paths do when no node is suspected and a majority answers at once and agrees. In any
//! other case they hand on what they saw, or give up, and the general path starts over. By then a
//! read has changed nothing. A write may have put its stamp into slots: the general path continues
//! with the same stamp and buffer, and finds it there.
//!
//! They use the fabric's [common chains](crate::fabric::Fabric::load): home first, then the nodes
//! that follow it in the ring.

use super::replicas::Votes;
use crate::clock::Clock;
use crate::fabric::{Fabric, Store, Swap};
use crate::layout::{Location, ReplicaSet, buffer, register};
use crate::node::{Address, MAX_NODES, NodeId, NodeSet};
use crate::quorum::Group;
use crate::register::handle::{Own, Register, Value};
use crate::register::in_n_out::{
    Copy, InPlace, in_place_words, is_of, largest, state, validate_in_place,
};
use crate::register::weak_read::WeakRead;
use crate::words::Stamp;

/// The largest majority.
const MAJORITY: usize = MAX_NODES / 2 + 1;

/// Returns the node `step` places after home in a ring of `n`, and the object's address there.
#[inline(always)]
fn replica(place: &Location, step: usize, n: usize) -> (NodeId, Address) {
    if step == 0 {
        return (place.home, Address(place.at_home));
    }
    let past = place.home.index() + step;
    let node = NodeId(if past < n { past } else { past - n } as u8);
    // The node before home is the first elsewhere, the one before that the second.
    (node, Address(place.elsewhere + (n - 1 - step) as u64 * u64::from(place.stride)))
}

/// The nodes that a synchronous operation uses.
#[derive(Clone, Copy)]
struct Ring {
    nodes: NodeSet,
    /// Number of nodes after home that are skipped.
    gap: usize,
}

impl Ring {
    /// Returns how many places after home the node number `step` of those used is.
    #[inline(always)]
    fn past_home(self, step: usize) -> usize {
        if step == 0 { 0 } else { step + self.gap }
    }
}

/// Returns home and the nodes that follow it, if the fabric is synchronous and no node is suspected:
/// then their addresses take no decision.
#[inline(always)]
fn ring<F: Fabric, C: Clock>(group: &Group<F, C>, home: NodeId, n: usize) -> Option<Ring> {
    let is_whole = group.fabric().is_near() && group.suspects().is_empty();
    is_whole.then(|| Ring { nodes: NodeSet::ring(home, n / 2 + 1, n), gap: 0 })
}

/// Returns the same if none of these nodes is suspected. With three nodes, skips one that is.
///
/// Returns `None` when it is time to check whether the suspect is back: the general paths do that.
fn past_suspects<F: Fabric, C: Clock>(group: &Group<F, C>, home: NodeId, n: usize) -> Option<Ring> {
    if !group.fabric().is_near() {
        return None;
    }
    let nodes = NodeSet::ring(home, n / 2 + 1, n);
    if group.suspects().intersection(nodes).is_empty() {
        return Some(Ring { nodes, gap: 0 });
    }
    let others = [home, NodeId(((home.index() + 2) % n) as u8)];
    let nodes = others.into_iter().collect::<NodeSet>();
    (n == 3 && group.preferred(home) == nodes).then_some(Ring { nodes, gap: 1 })
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Prefetches what a synchronous read of the object at `place` uses, which has `words` words at
    /// home. A hint: it reads nothing.
    #[inline(always)]
    pub fn expect(&self, place: &Location, words: usize) {
        let expect = |(node, at), words| self.fabric().expect(node, at, words);
        each_replica(place, self.nodes(), words, expect);
    }

    /// Prefetches the same for a synchronous write.
    #[inline(always)]
    pub fn expect_change(&self, place: &Location, words: usize) {
        let expect = |(node, at), words| self.fabric().expect_change(node, at, words);
        each_replica(place, self.nodes(), words, expect);
    }

    /// Prefetches the first `words` words of a buffer that leaves out at most one node, for a write
    /// to all others. A hint: it reads nothing.
    #[inline(always)]
    pub fn expect_buffer(&self, site: &ReplicaSet, words: usize) {
        let (n, place) = (self.nodes(), &site.place);
        let expect = |step| {
            let (node, at) = replica(place, step, n);
            self.fabric().expect_change(node, at, words);
        };
        if site.holders.contains(place.home) {
            expect(0);
        }
        // Most pools have three nodes, which takes no loop.
        if n == 3 {
            expect(1);
            return expect(2);
        }
        (1..n).for_each(expect);
    }
}

/// Calls `each` with the replicas of a majority, home first, and how many words are used of each.
#[inline(always)]
fn each_replica(place: &Location, n: usize, words: usize, each: impl Fn((NodeId, Address), usize)) {
    each(replica(place, 0, n), words);
    // As above.
    if n == 3 {
        return each(replica(place, 1, 3), 1);
    }
    (1..n / 2 + 1).for_each(|step| each(replica(place, step, n), 1));
}

/// Does one weak read of a majority. Returns the value, or leaves in `seen` what the general path
/// continues from.
#[inline(always)]
pub(crate) fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    seen: &mut Option<WeakRead<F::Reply<'f>>>,
) -> Option<Value<'f, F>> {
    // Most pools have these node counts. The general case takes a copy, as taking the address of
    // `register` would force it out of processor registers here.
    let home = register.place.home;
    if group.nodes() == 3
        && let Some(ring) = ring(group, home, 3)
    {
        return read_of(group, register, seen, ring, 3);
    }
    if group.nodes() == 1
        && let Some(ring) = ring(group, home, 1)
    {
        return read_of(group, register, seen, ring, 1);
    }
    // Taken apart, so that the value of the paths above may stay in processor registers as well.
    let Value { reply, start, length } = read_of_any(group, *register, seen)?;
    Some(Value { reply, start, length })
}

#[inline(never)]
fn read_of_any<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: Register,
    seen: &mut Option<WeakRead<F::Reply<'f>>>,
) -> Option<Value<'f, F>> {
    let ring = past_suspects(group, register.place.home, group.nodes())?;
    read_of(group, &register, seen, ring, group.nodes())
}

#[inline(always)]
fn read_of<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    seen: &mut Option<WeakRead<F::Reply<'f>>>,
    ring: Ring,
    n: usize,
) -> Option<Value<'f, F>> {
    let (fabric, place, identity) = (group.fabric(), &register.place, register.identity);
    let words = register.shape().value_words();
    let reply = fabric.fetch(place.home, Address(place.at_home), words);
    let (mut shown, mut all_have_it) = ([Stamp::EMPTY; MAJORITY], true);
    for (step, shown) in (1..n / 2 + 1).zip(&mut shown[1..]) {
        let (node, at) = replica(place, ring.past_home(step), n);
        let read = fabric.load::<{ register::STATE_WORDS }>(node, at);
        match read.and_then(|read| state(&read, identity)) {
            Some(stamp) => *shown = stamp,
            None => all_have_it = false,
        }
    }
    let others = n / 2;
    fabric.charge(1 + others, 8 * (words + others * register::STATE_WORDS));
    let reply = reply.filter(|_| all_have_it)?;
    shown[0] = state(&reply, identity)?;
    let (mut max, mut any) = (shown[0], shown[0].0);
    for &stamp in &shown[1..n / 2 + 1] {
        max = max.max(stamp);
        any |= stamp.0;
    }
    // M1: a majority holds a verified stamp. V3: nothing of a frozen register is returned.
    if max.is_verified()
        && !Stamp(any).is_frozen()
        && let InPlace::Value(length) = validate_in_place(group.format(), register, max, &reply)
    {
        return Some(Value { reply, start: register::VALUE, length });
    }
    *seen = weak(register.place, ring, &shown[..=n / 2], reply);
    None
}

/// Returns a weak read that was not enough; `None` if the register must be relocated, of which it
/// shows nothing.
#[cold]
fn weak<R>(place: Location, ring: Ring, shown: &[Stamp], reply: R) -> Option<WeakRead<R>> {
    let (mut votes, n) = (Votes::new(), 2 * shown.len() - 1);
    for (step, stamp) in shown.iter().enumerate() {
        votes.count(replica(&place, ring.past_home(step), n).0, *stamp);
    }
    let (max, holders, missing) = (votes.largest().ok()?, votes.holders, NodeSet::EMPTY);
    Some(WeakRead {
        max,
        holders,
        voters: ring.nodes,
        missing,
        home: Some(reply),
        other_key: false,
    })
}

/// Writes a guess and, if it proves fresh, what a complete write puts into the slots and in place.
/// Returns whether it did. Its buffer is at `site`, and has these header words.
#[inline(always)]
pub(crate) fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    (w, site): (Stamp, &ReplicaSet),
    header: &[u64; buffer::HEADER_WORDS - 1],
    value: &[u8],
) -> bool {
    let (n, home) = (group.nodes(), register.place.home);
    let guess = (w, Copy::of_guess(*site, header, value));
    if n == 3
        && let Some(ring) = ring(group, home, 3)
    {
        return write_of(group, register, guess, header, value, ring, 3);
    }
    if n == 1
        && let Some(ring) = ring(group, home, 1)
    {
        return write_of(group, register, guess, header, value, ring, 1);
    }
    // A copy, as above.
    let mut copy = *register;
    let is_fresh = write_of_any(group, &mut copy, w, header, value);
    *register = copy;
    is_fresh
}

#[inline(never)]
fn write_of_any<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    w: Stamp,
    header: &[u64; buffer::HEADER_WORDS - 1],
    value: &[u8],
) -> bool {
    let n = group.nodes();
    let Some(ring) = past_suspects(group, register.place.home, n) else { return false };
    let site = group.placement().site(group.format().pointer(w));
    let guess = (w, Copy::of_guess(site, header, value));
    write_of(group, register, guess, header, value, ring, n)
}

#[inline(always)]
fn write_of<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    (w, copy): (Stamp, Copy<'_>),
    header: &[u64; buffer::HEADER_WORDS - 1],
    value: &[u8],
    ring: Ring,
    n: usize,
) -> bool {
    let (fabric, place, slot) = (group.fabric(), register.place, group.slot());
    // M3: every node that is used must hold the buffer.
    if !ring.nodes.minus(copy.site.holders).is_empty() {
        return false;
    }
    let cost = 8 * (copy.head.len() + 1 + register::STATE_WORDS) + copy.tail.len();
    // Home is outside the loop: with three nodes the loop then has one iteration and is unrolled.
    let followed = match raise(group, register, (w, copy), (ring, 0), n) {
        Ok(others) => others,
        Err(own) => {
            let before = (register.place, register.own);
            register.own = gave_up(group, before, w, (ring, 0, own), cost);
            return false;
        }
    };
    for step in 1..n / 2 + 1 {
        if let Err(own) = raise(group, register, (w, copy), (ring, step), n) {
            let before = (register.place, register.own);
            register.own = gave_up(group, before, w, (ring, step, own), cost);
            return false;
        }
    }
    // Taken from home alone: a stamp at one other node alone is reported by the client that
    // completes it.
    register.followed = followed;
    let stamp = w.verified();
    let head = in_place_words(stamp, header);
    let tail = if value.len() <= register.capacity() { value } else { &[] };
    let verify = |at: Address| Swap { at: at.plus(slot), expect: w.0, new: stamp.0 };
    let at = Address(place.at_home);
    let store = Store { at: at.plus(register::IN_PLACE), head: &head, tail };
    fabric.write_cas(place.home, Some(store), verify(at));
    for step in 1..n / 2 + 1 {
        let (node, at) = replica(&place, ring.past_home(step), n);
        fabric.write_cas(node, None, verify(at));
    }
    register.own.is_at(stamp, ring.nodes);
    register.observe(stamp);
    let nodes = n / 2 + 1;
    fabric.charge(4 * nodes + 1, nodes * (cost + 8) + 8 * head.len() + tail.len());
    true
}

/// Returns where a buffer lies at `node`, which is number `step` of those used and holds it.
#[inline(always)]
fn copy_at(site: &ReplicaSet, node: NodeId, (ring, step): (Ring, usize), n: usize) -> Address {
    let place = &site.place;
    if n == 3 && ring.gap == 0 {
        // M3: if a node has no copy it is the one before home.
        return Address(place.elsewhere + (1 - step) as u64 * u64::from(place.stride));
    }
    place.at(node, n)
}

/// Does WRITE, CAS and READ at node number `step` of those used. Returns the largest stamp in other
/// clients' slots if the guess proved fresh there.
///
/// # Errors
/// It did not: what this client's own slot holds, if the register is there.
#[inline(always)]
fn raise<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    (w, copy): (Stamp, Copy<'_>),
    (ring, step): (Ring, usize),
    n: usize,
) -> Result<Stamp, Option<Stamp>> {
    let (node, at) = replica(&register.place, ring.past_home(step), n);
    let (slot, expected) = (group.slot(), register.own.at(node));
    let from = copy_at(&copy.site, node, (ring, step), n).plus(copy.from);
    let store = Store { at: from, head: copy.head, tail: copy.tail };
    let swap = Swap { at: at.plus(slot), expect: expected.0, new: expected.max(w).0 };
    let done = group.fabric().write_cas_load::<{ register::STATE_WORDS }>(node, store, swap, at);
    let (old, [slots @ .., created_at, number]) = done.ok_or(None)?;
    // Taken out, so that one pass finds the largest of the others.
    let mut others = slots;
    let own = Stamp(others.get_mut(slot).map_or(0, core::mem::take));
    let others = largest(&others);
    if !is_of(register.identity, created_at, number) {
        return Err(None);
    }
    let took = old == expected.0 && own.0 == w.0;
    // G2: a fresh guess is larger than all that its own chains saw. V3: none of that is frozen.
    if took && others < w && !others.is_frozen() { Ok(others) } else { Err(Some(own)) }
}

/// Returns what this client's slots hold after a guess did not prove fresh at node number `step`,
/// whose slot holds `own`.
#[cold]
fn gave_up<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    (place, mut before): (Location, Own),
    w: Stamp,
    (ring, step, own): (Ring, usize, Option<Stamp>),
    cost: usize,
) -> Own {
    let n = group.nodes();
    let node = |step| replica(&place, ring.past_home(step), n).0;
    for earlier in 0..step {
        before.saw(node(earlier), w);
    }
    if let Some(own) = own {
        before.saw(node(step), own);
    }
    group.fabric().charge(3 * (step + 1), cost * (step + 1));
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Pointer;

    #[test]
    fn replicas_lie_where_their_place_says() {
        for n in [1, 3, 5, 7] {
            for home in 0..n as u8 {
                let place = Location {
                    pointer: Pointer(1),
                    home: NodeId(home),
                    at_home: 5000,
                    elsewhere: 700,
                    stride: 16,
                };
                let ring = (0..=n / 2).map(|step| replica(&place, step, n));
                let nodes = ring.clone().map(|(node, _)| node).collect::<NodeSet>();
                assert_eq!(nodes, NodeSet::ring(place.home, n / 2 + 1, n));
                for (node, at) in (0..n).map(|step| replica(&place, step, n)) {
                    assert_eq!(at, place.at(node, n), "{node} of {n}, home {home}");
                }
            }
        }
    }
}

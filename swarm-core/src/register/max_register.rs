//! The reliable max register M (§3.2): a register's stamps over a majority of its replicas.
//!
//! `write(x)` ends when f + 1 of the nodes that [hold](crate::layout) its buffer hold a stamp of at
//! least x. `read` returns the largest stamp of a majority, after making sure that f + 1 nodes hold
//! it. **Invariant (M1):** any two majorities share a node, so a read that follows a write or a
//! read sees at least as large a stamp. A *verified* stamp was written before, as a guess or as a
//! rewrite, and f + 1 nodes hold it. If nodes that hold a buffer fall silent, others do not take
//! their place: the register is [relocated](Error::Moved).

use super::handle::{Check, Register, Value};
use super::in_n_out::{
    Copy, Fetched, InPlace, Validated, cas_proves_max, in_place_head, largest_of_others,
    post_again, post_write, post_write_alone, put_in_place, validate, validate_in_place,
};
use super::replicas::{COMPLETIONS, Failed, Votes};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{BufferHeader, Location, MAX_CLIENTS, ReplicaSet, buffer, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Event, Group, Next, Round, VoteCollector};
use crate::register::weak_read::{self, WeakRead};
use crate::words::{Stamp, WordFormat};

/// Failed CASes, over all nodes, after which a write gives way. A CAS fails only when the slot
/// grew, and only a client that shares the slot makes it grow. Each such client can do so twice at
/// a node (guess, verified) with stamps below this write's, before its clock is past them. A write
/// that fails more often does not end here: the register must be relocated.
fn slot_tries(slots: usize) -> usize {
    2 * MAX_CLIENTS.div_ceil(slots) + 2
}

/// READs of all replicas in one read. Each retry means that the maximum belonged to an incomplete
/// write, and that all its holders fell silent between two rounds. Nodes that do so repeatedly keep
/// a read from ending.
pub(crate) const READ_TRIES: usize = 2 * MAX_NODES;

/// The nodes that answered without the buffer that a stamp names.
#[derive(Clone, Copy)]
pub(crate) struct Without {
    stamp: Stamp,
    nodes: NodeSet,
}

impl Without {
    /// No node has.
    pub(crate) const NOBODY: Self = Self { stamp: Stamp::EMPTY, nodes: NodeSet::EMPTY };

    /// Returns whether memory is damaged: nodes lacked the buffer, but show `stamp` as a majority's
    /// largest both before and after that answer. A slot names a buffer only after the buffer was
    /// written at its node, and the buffer is not reused before a majority shows a later stamp.
    pub(crate) fn proves_damage(self, stamp: Stamp, holders: NodeSet) -> bool {
        stamp.same_write(self.stamp) && !self.nodes.intersection(holders).is_empty()
    }
}

/// READs the buffer of `stamp`: first from one of `holders`, then from all nodes that may hold it.
/// The read must begin again if too many of those answered without it and the others are late or
/// down, or if all are. Then this returns which of `holders` answered without it.
///
/// Lateness alone proves nothing: any majority that answers, however slowly, includes a node that
/// has what a majority holds. So only a stamp of an incomplete write is given up (G5).
///
/// One roundtrip if the value has at most `hint` bytes and the first holder answers.
pub(crate) async fn fetch<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    stamp: Stamp,
    holders: NodeSet,
    hint: usize,
) -> Result<Result<Fetched<F::Reply<'f>>, Without>, Error> {
    let format = group.format();
    let ReplicaSet { place, holders: everyone } = group.site(register, stamp);
    let holders = holders.intersection(everyone);
    let first = buffer::HEADER_WORDS - 1 + hint.div_ceil(8);
    let at = |node| place.at(node, group.nodes()).plus(buffer::REWRITE);
    let post = |node, words| group.fabric().post(node, &[Verb::Read { at: at(node), words }]);
    let can_be = |node, words| {
        is_in_place(register, &place, node)
            || !place.pointer.is_null() && group.placement().has_room_at(at(node), words)
    };
    let mut round = Round::new(group);
    let mut asked = NodeSet::EMPTY;
    let mut bad = NodeSet::EMPTY;
    let mut late = NodeSet::EMPTY;
    let mut refused = NodeSet::EMPTY;
    let source = if holders.contains(register.home()) {
        Some(register.home())
    } else {
        holders.into_iter().next()
    };
    let mut wanted = source.into_iter().collect::<NodeSet>();
    loop {
        let more = wanted.minus(asked);
        for node in more {
            asked.insert(node);
            if can_be(node, buffer::HEADER_WORDS - 1) {
                round.add(node, post(node, first));
            } else {
                bad.insert(node);
                wanted = everyone;
            }
        }
        if !more.is_empty() {
            // The round reports lateness once; the nodes asked just now have not been covered yet.
            round.watch_again();
        }
        let pending = round.pending();
        let refuted = everyone.len() - bad.len() < group.majority();
        let refuted = refuted && pending.minus(late).is_empty();
        if asked == everyone && (pending.is_empty() || refuted) {
            return Ok(Err(Without { stamp, nodes: bad.intersection(holders) }));
        }
        match round.next().await {
            Event::Reply(node, reply) => match validate(format, register, stamp, reply) {
                Validated::Good(fetched) => {
                    let site = ReplicaSet { place, holders: bad.intersection(holders) };
                    repair(group, stamp, &fetched, site);
                    return Ok(Ok(fetched));
                }
                Validated::Longer(words)
                    if !is_in_place(register, &place, node) && can_be(node, words) =>
                {
                    round.add(node, post(node, words));
                }
                Validated::Longer(_) | Validated::Bad => {
                    bad.insert(node);
                    wanted = everyone;
                }
            },
            // The READ covers more words than the value may have, so perhaps more than there is
            // memory.
            Event::Down(node) if hint > 0 && !refused.contains(node) => {
                refused.insert(node);
                round.add(node, post(node, buffer::HEADER_WORDS - 1));
                wanted = everyone;
            }
            Event::Down(_) | Event::Idle => wanted = everyone,
            Event::Late => {
                late = round.pending();
                wanted = everyone;
            }
            Event::Expired => {
                return Err(Error::NoMajority { answered: bad.len(), needed: group.majority() });
            }
        }
    }
}

/// Returns whether a buffer at `place` is the register's in-place copy at this node. A value that
/// is too long for it has a buffer elsewhere.
fn is_in_place(register: &Register, place: &Location, node: NodeId) -> bool {
    node == register.home()
        && place.home == node
        && place.at_home == register.place.at_home + register::IN_PLACE as u64
}

/// Writes a buffer back to those holders of its stamp whose copy is damaged.
fn repair<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    stamp: Stamp,
    fetched: &Fetched<F::Reply<'_>>,
    bad: ReplicaSet,
) {
    let copy = fetched.copy(group.format(), bad, stamp);
    for node in bad.holders {
        drop(group.fabric().post(node, &[copy.write(node, group.nodes())]));
    }
}

/// What a write assumes about this client's own slots, and what it saw.
struct Slots {
    expect: [Stamp; MAX_NODES],
    /// Nodes whose chains have no READ: the CAS alone proves the maximum.
    alone: NodeSet,
    tries: usize,
    /// The largest stamp in other clients' slots.
    followed: Stamp,
}

impl Slots {
    /// Retries at `node`, whose slot holds `old` instead of the expected word, with a READ.
    fn again<'f, F: Fabric, C: Clock>(
        &mut self,
        group: &'f Group<F, C>,
        node: NodeId,
        register: &Register,
        stamp: Stamp,
        old: Stamp,
    ) -> Next<F::Completion<'f>> {
        self.tries += 1;
        group.count_retry();
        self.expect[node.index()] = old;
        Next::Post(post_again(group, node, register, stamp, old))
    }

    #[inline(always)]
    fn new() -> Self {
        let (alone, followed) = (NodeSet::EMPTY, Stamp::EMPTY);
        Self { expect: [Stamp::EMPTY; MAX_NODES], alone, tries: 0, followed }
    }
}

/// The outcome of a write to M: the voters, and the largest stamp that a majority of its own
/// chains' READs showed; [`Failed`] if replicas lack the register.
pub(crate) type Wrote = Result<(NodeSet, Stamp), Failed>;

/// One write to M: a stamp, the part of its buffer that is stored with it, and the nodes that are
/// known to have it already.
#[derive(Clone, Copy)]
pub(crate) struct Writes<'a> {
    pub(crate) stamp: Stamp,
    /// `None` for a delete, which has no buffer.
    pub(crate) copy: Option<Copy<'a>>,
    pub(crate) held: NodeSet,
}

impl Writes<'_> {
    /// Returns the nodes, of `n`, that may show the stamp (M3).
    #[inline(always)]
    fn among(&self, n: usize) -> NodeSet {
        self.copy.as_ref().map_or(NodeSet::all(n), |copy| copy.site.holders)
    }
}

impl Votes {
    /// Does one step of a write at one node: WRITE, CAS, READ, repeated until the slot is at or
    /// past the stamp.
    #[inline(always)]
    fn step<'f, F: Fabric, C: Clock>(
        &mut self,
        slots: &mut Slots,
        group: &'f Group<F, C>,
        register: &mut Register,
        Writes { stamp, copy, held }: Writes<'_>,
        (node, reply): (NodeId, Option<F::Reply<'f>>),
    ) -> Next<F::Completion<'f>> {
        let Some(reply) = reply else {
            if held.contains(node) {
                self.count(node, stamp);
                return Next::Vote;
            }
            let own = register.own.at(node);
            slots.expect[node.index()] = own;
            let Some(copy) = &copy else {
                return Next::Post(post_again(group, node, register, stamp, own));
            };
            if cas_proves_max(group, own) {
                slots.alone.insert(node);
                return Next::Post(post_write_alone(group, node, register, stamp, own, copy));
            }
            return Next::Post(post_write(group, node, register, stamp, own, copy));
        };
        let Some((&old, read)) = reply.split_first() else { return Next::NoVote };
        let expected = slots.expect[node.index()];
        if slots.alone.contains(node) {
            if old == expected.0 {
                // The CAS succeeded: the slot holds what the CAS put there.
                let max = expected.max(stamp);
                register.own.saw(node, max);
                self.count(node, max);
                return Next::Vote;
            }
            slots.alone.remove(node);
            return slots.again(group, node, register, stamp, Stamp(old));
        }
        let Some(max) = self.read(register, group.slot(), node, read) else {
            return Next::Missing;
        };
        slots.followed = slots.followed.max(largest_of_others(read, group.slot()));
        if old == expected.0 || Stamp(old) >= stamp || Stamp(old).is_frozen() {
            self.count(node, max);
            return Next::Vote;
        }
        if slots.tries > slot_tries(group.slots()) {
            self.give_way();
            return Next::Vote;
        }
        slots.again(group, node, register, stamp, Stamp(old))
    }

    #[inline(always)]
    fn conclude<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        register: &mut Register,
        slots: &Slots,
        voters: NodeSet,
    ) -> Wrote {
        let max = self.largest().map_err(Failed::from)?;
        register.followed = slots.followed;
        if !group.format().is_deleted(max) {
            register.observe(max);
        }
        Ok((voters, max))
    }
}

/// Does one round of a write to M.
async fn write_once<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    writes: Writes<'_>,
) -> Wrote {
    let (among, everyone) = (writes.among(group.nodes()), NodeSet::all(group.nodes()));
    // M3: only holders of the buffer vote. M1: f + 1 of them must.
    let gathering = VoteCollector::new(group, among, group.majority()).or_else(among != everyone);
    let (mut votes, mut slots) = (Votes::new(), Slots::new());
    let first = group.preferred(register.home());
    let mut step = |node, reply| votes.step(&mut slots, group, register, writes, (node, reply));
    match gathering.collect_votes(first, &mut step).await {
        Ok(voters) => votes.conclude(group, register, &slots, voters),
        // Other nodes may answer, but do not hold the buffer.
        Err(_) if votes.missing.is_empty() && among != everyone => Err(Failed::from(Error::Moved)),
        Err(error) => Err(Failed { error, missing: votes.missing }),
    }
}

/// Writes a stamp at nodes until the maxima of a majority are at least that: the part of `write`
/// that M adds to In-n-Out.
///
/// Returns the voters, and the largest stamp that a majority of the chains' own READs showed. One
/// roundtrip, and one more for each lost CAS and each backfill of missing replicas.
pub(crate) async fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    writes: Writes<'_>,
) -> Result<(NodeSet, Stamp), Error> {
    for _ in 0..COMPLETIONS {
        match write_once(group, register, writes).await {
            Ok(wrote) => return Ok(wrote),
            Err(failed) => failed.complete(group, register).await?,
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

/// The result of a read of M.
pub(crate) struct Maximum<'f, F: Fabric + 'f> {
    pub(crate) stamp: Stamp,
    /// `None` for a delete, and if it was not wanted.
    pub(crate) value: Option<Value<'f, F>>,
    /// The buffer's header, if it was fetched.
    pub(crate) header: BufferHeader,
    /// Nodes whose maximum it was in the last weak read.
    pub(crate) holders: NodeSet,
    /// The register belongs to another key.
    pub(crate) other_key: bool,
}

impl<F: Fabric> Maximum<'_, F> {
    /// Returns whether its writer can no longer take it back: it is verified, or a rewrite.
    pub(crate) fn is_settled(&self, format: WordFormat) -> bool {
        self.stamp.is_verified() || self.header.is_rewrite(format.timestamp(self.stamp))
    }
}

/// What [`read`] must return.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The stamp and its value.
    Value,
    /// The stamp, and its value unless it belongs to this write, which the caller has.
    Unless(Stamp),
    /// The stamp and its value, from the buffer even where the in-place copy is good.
    OutOfPlace,
    /// The same, but not written back: f + 1 nodes may not hold the stamp.
    AsItIs,
    /// The stamp only.
    Stamp,
}

impl Want {
    fn value_of(self, stamp: Stamp) -> bool {
        match self {
            Self::Value | Self::OutOfPlace | Self::AsItIs => true,
            Self::Unless(known) => !known.same_write(stamp),
            Self::Stamp => false,
        }
    }
}

/// Reads M: the largest stamp of a majority, held by a majority when this returns.
///
/// One roundtrip if a majority holds it already and the in-place copy is its value; one more to
/// fetch the buffer, one more to write it back. Linearizes at the READ or the write-back.
pub(crate) async fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
    want: Want,
) -> Result<Maximum<'f, F>, Error> {
    let weak = weak_read::read_once(group, register, check).await?;
    let (stamp, holders) = (weak.max, weak.holders);
    let weak = if matches!(want, Want::Value | Want::Unless(_)) && want.value_of(stamp) {
        match in_place(group, register, weak) {
            Ok(value) => {
                let (value, header) = (Some(value), BufferHeader::default());
                return Ok(Maximum { stamp, value, header, holders, other_key: false });
            }
            Err(weak) => weak,
        }
    } else {
        weak
    };
    read_on(group, register, check, want, weak).await
}

/// Returns the value if the weak read shows it: it is in place, and its stamp is verified, so a
/// majority holds it (M1).
#[inline(always)]
pub(crate) fn in_place<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    weak: WeakRead<F::Reply<'f>>,
) -> Result<Value<'f, F>, WeakRead<F::Reply<'f>>> {
    let shows = weak.max.is_verified() && weak.missing.is_empty() && !weak.other_key;
    if !shows {
        return Err(weak);
    }
    let validated = weak
        .home
        .as_deref()
        .map(|reply| validate_in_place(group.format(), register, weak.max, reply));
    match (validated, weak.home) {
        (Some(InPlace::Value(length)), Some(reply)) => {
            Ok(Value { reply, start: register::VALUE, length })
        }
        (_, home) => Err(WeakRead { home, ..weak }),
    }
}

/// Continues [`read`] where the value is not in place or a majority does not hold the stamp yet.
pub(crate) async fn read_on<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
    want: Want,
    mut weak: WeakRead<F::Reply<'f>>,
) -> Result<Maximum<'f, F>, Error> {
    let mut without = Without::NOBODY;
    for _ in 0..READ_TRIES {
        let WeakRead { max: stamp, holders, other_key, .. } = weak;
        if without.proves_damage(stamp, holders) {
            return Err(Error::Damaged);
        }
        let mut maximum =
            Maximum { stamp, value: None, header: BufferHeader::default(), holders, other_key };
        if other_key {
            return Ok(maximum);
        }
        if stamp == Stamp::EMPTY {
            return Err(Error::Gone);
        }
        // M1: a verified stamp is at a majority. A delete's stamp, and all of DM-ABD's, are
        // verified from the beginning and prove nothing.
        let deleted = group.format().is_deleted(stamp);
        let in_place = stamp.is_verified() && !deleted && want != Want::OutOfPlace;
        let stable = in_place || holders.len() >= group.majority() || want == Want::AsItIs;
        let wanted = want.value_of(stamp) && !deleted;
        if stable && !wanted {
            return Ok(maximum);
        }
        // M2: a delete is written back too, before it is returned.
        if deleted {
            if want == Want::AsItIs {
                return Ok(maximum);
            }
            write(group, register, Writes { stamp, copy: None, held: holders }).await?;
            return Ok(maximum);
        }
        let hint = length_hint(group, register, &weak);
        let fetched = match fetch(group, register, stamp, holders, hint).await? {
            Ok(fetched) => fetched,
            Err(by) => {
                without = by;
                group.count_retry();
                weak = weak_read::read_once(group, register, check).await?;
                continue;
            }
        };
        // M1, M2: what a majority does not hold is written back before it is returned.
        if !stable {
            write_back(group, register, stamp, holders, &fetched).await?;
        } else if stamp.is_verified() && weak.voters.contains(register.home()) {
            repair_in_place(group, register, &weak, &fetched);
        }
        maximum.header = fetched.header;
        maximum.value = wanted.then(|| fetched.into_value());
        return Ok(maximum);
    }
    Err(Error::Contended)
}

/// Estimates the value's length: what the in-place copy says, or else what fits there.
fn length_hint<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    weak: &WeakRead<F::Reply<'_>>,
) -> usize {
    let validated = weak
        .home
        .as_ref()
        .map(|reply| validate_in_place(group.format(), register, weak.max, reply));
    match validated {
        Some(InPlace::Value(length) | InPlace::Length(length)) => length,
        _ => register.capacity(),
    }
}

/// Makes sure that a majority holds `stamp`: a read must not return what a later read may miss.
async fn write_back<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    stamp: Stamp,
    holders: NodeSet,
    fetched: &Fetched<F::Reply<'_>>,
) -> Result<(), Error> {
    let copy = fetched.copy(group.format(), group.site(register, stamp), stamp);
    write(group, register, Writes { stamp, copy: Some(copy), held: holders }).await?;
    Ok(())
}

/// Rewrites the in-place copy of a verified stamp that was found torn or outdated.
fn repair_in_place<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    weak: &WeakRead<F::Reply<'_>>,
    fetched: &Fetched<F::Reply<'_>>,
) {
    let format = group.format();
    let Some(reply) = weak.home.as_ref() else { return };
    if !matches!(validate_in_place(format, register, weak.max, reply), InPlace::Bad) {
        return;
    }
    let value = fetched.value();
    let head = in_place_head(weak.max, &fetched.header);
    put_in_place(group, register, &head, value, None);
}

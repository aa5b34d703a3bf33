//! The reliable max register M (§3.2): a register's stamps over a majority of its replicas.
//!
//! `write(x)` ends when a majority holds a stamp of at least x; `read` returns the largest stamp of
//! a majority after making sure that a majority holds it. Any two majorities share a node, so a
//! read that follows a write or a read sees at least as large a stamp.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, MAX_NODES, NodeId, Verb};
use crate::geometry::MAX_CLIENTS;
use crate::group::{Event, Group, Next};
use crate::in_n_out::{
    Copy, Fetched, InPlace, Judged, buffer_at, in_place_head, judge, judge_in_place, post_again,
    post_in_place, post_read, post_write, state,
};
use crate::layout::{MAX_KEY, SLOTS, buffer, bytes, checksum, register};
use crate::node_set::NodeSet;
use crate::register::{Check, Register, Value};
use crate::words::{Stamp, WriteNumber};

/// CASes of a slot at one node in one write. A CAS fails only when the slot grew, and only a client
/// that shares the slot makes it grow: each of those can do so twice (guess, verified) with stamps
/// below this write's before its clock is past them.
const SLOT_TRIES: usize = 2 * (MAX_CLIENTS / SLOTS) + 2;

/// READs of all replicas in one read. Each retry means that every holder of the maximum fell silent
/// between two rounds.
const READ_TRIES: usize = 2 * MAX_NODES;

/// Rounds in which replicas are completed that the register has not reached. Each brings it to one
/// more node, or that node falls silent.
const COMPLETIONS: usize = MAX_NODES;

/// What one READ of a majority showed.
pub struct Look<R> {
    /// The largest stamp.
    pub(crate) max: Stamp,
    /// The nodes that hold it, verified or not.
    pub(crate) holders: NodeSet,
    /// The nodes that voted.
    pub(crate) voters: NodeSet,
    /// The nodes that the register has not reached.
    pub(crate) missing: NodeSet,
    /// The home node's READ, if it voted.
    pub(crate) home: Option<R>,
    /// The key in the registers is another.
    pub(crate) other_key: bool,
}

/// Votes of a round over the replicas: each node's maximum.
struct Votes {
    max: [Stamp; MAX_NODES],
    missing: NodeSet,
}

impl Votes {
    fn new() -> Self {
        Self { max: [Stamp::EMPTY; MAX_NODES], missing: NodeSet::EMPTY }
    }

    /// Takes in a READ. A replica without the register's identity is a missing vote: the register
    /// has not arrived there yet, or another life of the memory shines through.
    #[inline]
    fn take(&mut self, register: &mut Register, slot: usize, node: NodeId, read: &[u64]) -> bool {
        let Some(max) = state(read, register.identity) else {
            self.missing.insert(node);
            return false;
        };
        self.max[node.index()] = max;
        register.own[node.index()] = Stamp(read[slot]);
        true
    }

    #[inline]
    fn largest(&self, voters: NodeSet) -> Result<Stamp, Error> {
        let max = voters.map(|node| self.max[node.index()]).max().unwrap_or_default();
        let frozen = voters.into_iter().any(|node| self.max[node.index()].is_frozen());
        if frozen { Err(Error::Frozen) } else { Ok(max) }
    }
}

/// A round over the replicas that did not end.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Nodes that answered but do not have the register.
    pub(crate) missing: NodeSet,
}

impl Failed {
    /// Brings the register to the nodes that lack it, so that the round can be tried again: with
    /// its home nodes dying, a minority that it never reached has to serve it. Fails if a majority
    /// holds another register, which means that this one is gone, or if no node lacks it.
    #[cold]
    pub(crate) async fn complete<F: Fabric, C: Clock>(
        self,
        group: &Group<F, C>,
        register: &Register,
    ) -> Result<(), Error> {
        if self.missing.len() > group.nodes() / 2 {
            return Err(Error::Gone);
        }
        if self.missing.is_empty() {
            return Err(self.error);
        }
        let from = NodeSet::all(group.nodes()).minus(self.missing);
        complete(group, register, from, self.missing).await;
        Ok(())
    }
}

/// READs a majority of replicas, once. One roundtrip. This is the appendix's *weak* read: what it
/// returns may sit on a minority.
///
/// Fails with the votes where replicas are missing that the register has not reached.
#[inline]
pub(crate) async fn look_once<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
) -> Result<Look<F::Reply<'f>>, Failed> {
    let mut votes = Votes::new();
    let mut home = None;
    // A header that is just being written may show the identity before the key. It is whole at a
    // majority (its birth was committed), so one voter shows the key if it is this one.
    let mut same_key = matches!(check, Check::Identity);
    let (first, need) = (group.preferred(register.home()), group.majority());
    let result = group
        .settle(first, need, |node, reply| {
            let Some(reply) = reply else {
                return Next::Post(post_read(group, node, register, check));
            };
            if !votes.take(register, group.slot(), node, &reply) {
                return Next::Missing;
            }
            if let Check::Key(key) = check {
                same_key |= has_key(&reply, key);
            }
            if node == register.home() {
                home = Some(reply);
            }
            Next::Vote
        })
        .await;
    let missing = votes.missing;
    let voters = result.map_err(|error| Failed { error, missing })?;
    let max = votes.largest(voters).map_err(|error| Failed { error, missing: NodeSet::EMPTY })?;
    let holders = voters.holding(|node| votes.max[node.index()].same_write(max));
    if !group.format().is_deleted(max) {
        register.met(max);
    }
    Ok(Look { max, holders, voters, missing, home, other_key: !same_key })
}

/// [`look_once`], with replicas completed that the register has not reached.
pub(crate) async fn look<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
) -> Result<Look<F::Reply<'f>>, Error> {
    for _ in 0..COMPLETIONS {
        match look_once(group, register, check).await {
            Ok(look) => {
                if !look.missing.is_empty() {
                    complete(group, register, look.voters, look.missing).await;
                }
                return Ok(look);
            }
            Err(failed) => failed.complete(group, register).await?,
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

fn has_key(read: &[u64], key: &[u8]) -> bool {
    debug_assert!(key.len() <= MAX_KEY);
    let shape = crate::layout::Shape::decode(read[register::HEADER + 2]);
    shape.key_length == key.len()
        && read.get(register::KEY..).and_then(|words| bytes(words, key.len())) == Some(key)
}

/// Brings the register's header to replicas that lack it, in the background. One roundtrip.
///
/// Their slots need nothing: an empty slot is below every stamp, and the stamps that a majority
/// must hold were put there by whoever bore the register and by its writers.
#[cold]
async fn complete<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    from: NodeSet,
    missing: NodeSet,
) {
    let words = register::HEADER_WORDS + register.shape.key_words();
    let header = |node| register.place.at(node, group.nodes()).plus(register::HEADER);
    let identity = [register.identity.birth, register.identity.number.0];
    let mut found = None;
    let read = |node, reply: Option<F::Reply<'f>>| match reply {
        None => Next::Post(group.fabric().post(node, &[Verb::Read { at: header(node), words }])),
        Some(reply) if reply.starts_with(&identity) => {
            found = Some(reply);
            Next::Vote
        }
        Some(_) => Next::NoVote,
    };
    // Best effort: where this fails, whoever comes next finds the same replicas missing.
    if group.settle(from, 1, read).await.is_ok()
        && let Some(image) = found
    {
        for node in missing {
            let write = Verb::Write { at: header(node), head: &image, tail: &[] };
            drop(group.fabric().post(node, &[write]));
        }
    }
}

/// Makes sure, for a register that was found by its key's hash, that it is this key's, and learns
/// what its slots hold. One roundtrip.
///
/// # Errors
/// [`Error::Gone`] if a majority holds another register there; [`Error::NoMajority`].
pub async fn confirm<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    key: &[u8],
) -> Result<bool, Error> {
    let look = look(group, register, Check::Key(key)).await?;
    Ok(!look.other_key)
}

/// READs the buffer of `stamp`, first where `holders` have it, then anywhere. `None` if no node
/// that answers has it whole: the read must begin again.
///
/// One roundtrip where `hint` bytes are the value's length or more and the first holder is well.
pub(crate) async fn fetch<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    stamp: Stamp,
    holders: NodeSet,
    hint: usize,
) -> Result<Option<Fetched<F::Reply<'f>>>, Error> {
    let format = group.format();
    let at = buffer_at(format.pointer(stamp), buffer::REWRITE);
    let first = buffer::HEADER_WORDS - 1 + hint.div_ceil(8);
    let post = |node, words| group.fabric().post(node, &[Verb::Read { at, words }]);
    let mut round = group.round();
    let mut asked = NodeSet::EMPTY;
    let mut bad = NodeSet::EMPTY;
    let mut given_up = NodeSet::EMPTY;
    let source = if holders.contains(register.home()) {
        Some(register.home())
    } else {
        holders.into_iter().next()
    };
    let mut wanted = source.into_iter().collect::<NodeSet>();
    loop {
        for node in wanted.minus(asked) {
            round.add(node, post(node, first));
            asked.insert(node);
        }
        let everyone = NodeSet::all(group.nodes());
        if asked == everyone && round.pending().minus(given_up).is_empty() {
            return Ok(None);
        }
        match round.next().await {
            Event::Reply(node, reply) => {
                match judge(format, register.place.pointer, stamp, reply) {
                    Judged::Good(fetched) => {
                        repair(group, stamp, &fetched, bad.intersection(holders));
                        return Ok(Some(fetched));
                    }
                    Judged::Longer(words) => round.add(node, post(node, words)),
                    Judged::Bad => {
                        bad.insert(node);
                        wanted = everyone;
                    }
                }
            }
            Event::Down(_) | Event::Idle => wanted = everyone,
            Event::Late => {
                given_up = round.pending();
                wanted = everyone;
            }
            Event::Expired => {
                return Err(Error::NoMajority { answered: bad.len(), needed: 1 });
            }
        }
    }
}

/// Writes a buffer back to holders of its stamp whose copy was found damaged.
fn repair<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    stamp: Stamp,
    fetched: &Fetched<F::Reply<'_>>,
    bad: NodeSet,
) {
    for node in bad {
        let copy = fetched.copy(group.format(), stamp);
        let at = buffer_at(group.format().pointer(stamp), copy.from);
        drop(group.fabric().post(node, &[Verb::Write { at, head: copy.head, tail: copy.tail }]));
    }
}

/// The part of `write` that M adds to In-n-Out: writes `stamp` at nodes until a majority's maximum
/// is at least that. Nodes in `held` are known to be there already.
///
/// Yields the voters, and the largest stamp that a majority of the chains' own READs showed. One
/// roundtrip, one more for each lost CAS.
#[inline]
pub(crate) async fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    stamp: Stamp,
    held: NodeSet,
    copy: Copy<'_>,
) -> Result<(NodeSet, Stamp), Error> {
    for _ in 0..COMPLETIONS {
        match write_once(group, register, stamp, held, copy).await {
            Ok(written) => return Ok(written),
            Err(failed) => failed.complete(group, register).await?,
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

/// [`write`], failing with the votes where replicas are missing that the register has not reached.
#[inline]
pub(crate) async fn write_once<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    stamp: Stamp,
    held: NodeSet,
    copy: Copy<'_>,
) -> Result<(NodeSet, Stamp), Failed> {
    let mut votes = Votes::new();
    let mut tries = 0;
    let (first, need) = (group.preferred(register.home()), group.majority());
    let result = group
        .settle(first, need, |node, reply| {
            let Some(reply) = reply else {
                if held.contains(node) {
                    votes.max[node.index()] = stamp;
                    return Next::Vote;
                }
                return Next::Post(post_write(group, node, register, stamp, copy));
            };
            let Some((&old, read)) = reply.split_first() else { return Next::NoVote };
            let expected = register.own[node.index()];
            if !votes.take(register, group.slot(), node, read) {
                return Next::Missing;
            }
            if old == expected.0 || Stamp(old) >= stamp || Stamp(old).is_frozen() {
                return Next::Vote;
            }
            tries += 1;
            group.count_retry();
            if tries > SLOT_TRIES {
                return Next::NoVote;
            }
            Next::Post(post_again(group, node, register, stamp))
        })
        .await;
    let missing = votes.missing;
    let voters = result.map_err(|error| Failed { error, missing })?;
    let max = votes.largest(voters).map_err(|error| Failed { error, missing: NodeSet::EMPTY })?;
    if !group.format().is_deleted(max) {
        register.met(max);
    }
    Ok((voters, max))
}

/// What a read of M returns.
pub(crate) struct Maximum<'f, F: Fabric + 'f> {
    pub(crate) stamp: Stamp,
    /// `None` for a delete, and where it was not wanted.
    pub(crate) value: Option<Value<'f, F>>,
    /// Number of the write, where the value was fetched from the buffer.
    pub(crate) number: WriteNumber,
    /// Nodes whose maximum it was at the last look.
    pub(crate) holders: NodeSet,
    /// The key in the register is another.
    pub(crate) other_key: bool,
}

/// What [`read`] is to bring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The stamp and its value.
    Value,
    /// The stamp, and its value unless it is of this write, which is at hand.
    Unless(Stamp),
    /// The stamp and its value, from the buffer even where the in-place copy is good.
    OutOfPlace,
    /// The stamp only.
    Stamp,
}

impl Want {
    fn value_of(self, stamp: Stamp) -> bool {
        match self {
            Self::Value | Self::OutOfPlace => true,
            Self::Unless(known) => !known.same_write(stamp),
            Self::Stamp => false,
        }
    }
}

/// Reads M: the largest stamp of a majority, held by a majority when this returns.
///
/// One roundtrip when a majority holds it already and the in-place copy is its value; one more to
/// fetch the buffer, one more to write it back. Linearizes at the READ or the write-back.
pub(crate) async fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
    want: Want,
) -> Result<Maximum<'f, F>, Error> {
    let look = look(group, register, check).await?;
    let (stamp, holders) = (look.max, look.holders);
    let look = if matches!(want, Want::Value | Want::Unless(_)) && want.value_of(stamp) {
        match in_place(group, register, look) {
            Ok(value) => {
                let number = WriteNumber::default();
                let value = Some(value);
                return Ok(Maximum { stamp, value, number, holders, other_key: false });
            }
            Err(look) => look,
        }
    } else {
        look
    };
    read_on(group, register, check, want, look).await
}

/// The value, if the look shows it: it is in place, and a majority holds its verified stamp.
#[inline]
pub(crate) fn in_place<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    look: Look<F::Reply<'f>>,
) -> Result<Value<'f, F>, Look<F::Reply<'f>>> {
    let shows = look.max.is_verified()
        && look.holders.len() >= group.majority()
        && look.missing.is_empty()
        && !look.other_key;
    if !shows {
        return Err(look);
    }
    let judged =
        look.home.as_deref().map(|reply| judge_in_place(group.format(), register, look.max, reply));
    match (judged, look.home) {
        (Some(InPlace::Value(length)), Some(reply)) => {
            let start = register.in_place() + register::IN_PLACE_WORDS;
            Ok(Value { reply, start, length })
        }
        (_, home) => Err(Look { home, ..look }),
    }
}

/// The rest of [`read`]: when the value is not in place or a majority does not hold the stamp yet.
pub(crate) async fn read_on<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
    want: Want,
    mut look: Look<F::Reply<'f>>,
) -> Result<Maximum<'f, F>, Error> {
    for _ in 0..READ_TRIES {
        let Look { max: stamp, holders, other_key, .. } = look;
        let mut maximum =
            Maximum { stamp, value: None, number: WriteNumber::default(), holders, other_key };
        if other_key {
            return Ok(maximum);
        }
        if stamp == Stamp::EMPTY {
            return Err(Error::Gone);
        }
        let stable = holders.len() >= group.majority();
        let wanted = want.value_of(stamp) && !group.format().is_deleted(stamp);
        if stable && !wanted {
            return Ok(maximum);
        }
        let hint = length_hint(group, register, &look);
        if let Some(fetched) = fetch(group, register, stamp, holders, hint).await? {
            if !stable {
                write_back(group, register, stamp, holders, &fetched).await?;
            } else if stamp.is_verified() && look.voters.contains(register.home()) {
                repair_in_place(group, register, &look, &fetched);
            }
            maximum.number = fetched.header.number;
            maximum.value = wanted.then(|| fetched.into_value());
            return Ok(maximum);
        }
        group.count_retry();
        look = self::look(group, register, check).await?;
    }
    Err(Error::Damaged)
}

/// How long the value probably is: what the in-place copy says, or what fits there.
fn length_hint<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    look: &Look<F::Reply<'_>>,
) -> usize {
    let judged =
        look.home.as_ref().map(|reply| judge_in_place(group.format(), register, look.max, reply));
    match judged {
        Some(InPlace::Value(length) | InPlace::Length(length)) => length,
        _ => register.capacity(),
    }
}

/// Makes sure that a majority holds `stamp`: a read must not return what a later one may miss.
async fn write_back<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    stamp: Stamp,
    holders: NodeSet,
    fetched: &Fetched<F::Reply<'_>>,
) -> Result<(), Error> {
    let copy = fetched.copy(group.format(), stamp);
    write(group, register, stamp, holders, copy).await?;
    Ok(())
}

/// Writes the in-place copy of a verified stamp again that was found torn or out of date.
fn repair_in_place<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    look: &Look<F::Reply<'_>>,
    fetched: &Fetched<F::Reply<'_>>,
) {
    let format = group.format();
    let Some(reply) = look.home.as_ref() else { return };
    if !matches!(judge_in_place(format, register, look.max, reply), InPlace::Bad) {
        return;
    }
    let value = fetched.value();
    let sum = checksum(format, format.timestamp(look.max), format.pointer(look.max), value);
    let head = in_place_head(look.max, sum, fetched.header.number, value.len());
    drop(post_in_place(group, register, &head, value, None));
}

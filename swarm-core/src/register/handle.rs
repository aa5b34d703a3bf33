//! The register as its users see it, for all protocols.

use core::future::Future;
use core::ops::Deref;

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Header, Identity, Location, MAX_KEY, ReplicaSet, Shape, bytes, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::words::{Pointer, Stamp, WriteNumber};

/// What a client knows of a register: where it is, which one it is, and what it last saw there.
///
/// Only place, identity and shape matter for safety; the rest saves roundtrips.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Where it lies.
    pub place: Location,
    /// Which one it is.
    pub identity: Identity,
    /// Bytes of its key.
    key_length: u8,
    /// Capacity of its in-place copy, in words.
    room: u16,
    pub(crate) own: Own,
    /// The largest stamp seen, other than a delete's.
    pub(crate) last: Stamp,
    /// The largest stamp of other clients that the last write superseded.
    pub(crate) followed: Stamp,
}

impl Register {
    /// Returns a register of which nothing more is known.
    pub fn new(place: Location, identity: Identity, shape: Shape) -> Self {
        let Shape { key_length, capacity } = shape;
        debug_assert!(key_length <= MAX_KEY && capacity <= usize::from(u16::MAX));
        Self {
            place,
            identity,
            key_length: key_length as u8,
            room: capacity as u16,
            own: Own::default(),
            last: Stamp::EMPTY,
            followed: Stamp::EMPTY,
        }
    }

    /// Returns a register that was just created with `stamp` in its first slot, as seen by the
    /// client with stamp slot `slot`.
    pub fn just_created(
        place: Location,
        identity: Identity,
        shape: Shape,
        stamp: Stamp,
        slot: usize,
    ) -> Self {
        let stamp_at = if slot == 0 { NodeSet::all(MAX_NODES) } else { NodeSet::EMPTY };
        let own = Own { stamp, at: stamp_at };
        Self { own, last: stamp, ..Self::new(place, identity, shape) }
    }

    /// Returns the same register with what was seen of it.
    #[inline(always)]
    #[must_use]
    pub fn with_seen(self, Seen { own, own_at, last }: Seen) -> Self {
        Self { own: Own { stamp: own, at: own_at }, last, ..self }
    }

    /// Returns what was seen of it.
    #[inline(always)]
    pub fn seen(&self) -> Seen {
        Seen { own: self.own.stamp, own_at: self.own.at, last: self.last }
    }

    /// Returns the node that holds the in-place copy.
    pub fn home(&self) -> NodeId {
        self.place.home
    }

    /// Returns the length of its key and the capacity of its in-place copy.
    #[inline(always)]
    pub fn shape(&self) -> Shape {
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        Shape { key_length, capacity }
    }

    /// Returns what the register's buffers name as their owner.
    #[inline(always)]
    pub(crate) fn name(&self) -> (Pointer, Identity) {
        (self.place.pointer, self.identity)
    }

    /// Returns the longest value that fits in place, in bytes.
    pub fn capacity(&self) -> usize {
        usize::from(self.room) * 8
    }

    /// Returns the READ of header and key at `node`, of `n`.
    pub(crate) fn read_header(&self, node: NodeId, n: usize) -> Verb<'static> {
        let shape = self.shape();
        Verb::Read { at: shape.header_place(&self.place).at(node, n), words: shape.header_words() }
    }

    /// Returns whether a [READ of the header](Self::read_header) is complete.
    pub(crate) fn is_whole(&self, read: &[u64]) -> bool {
        Header::decode(self.identity.number, read).is_some()
    }

    /// Returns the latest stamp that this client's own slot was seen to hold.
    #[inline(always)]
    pub fn own_stamp(&self) -> Stamp {
        self.own.stamp
    }

    /// Returns the largest stamp seen, other than a delete's.
    #[inline(always)]
    pub fn last_stamp(&self) -> Stamp {
        self.last
    }

    /// Returns the largest stamp of other clients that this client's last write superseded, or an
    /// empty one.
    #[inline(always)]
    pub fn followed(&self) -> Stamp {
        self.followed
    }

    /// Records a stamp that was observed.
    pub(crate) fn observe(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp);
    }
}

/// What a client saw of a register that saves roundtrips later. The stamp that its last write
/// superseded is not part of it: each write determines that anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The latest stamp that its own slot was seen to hold.
    pub own: Stamp,
    /// The nodes at which it was seen.
    pub own_at: NodeSet,
    /// The largest stamp, other than a delete's.
    pub last: Stamp,
}

/// What a client's own slot probably holds at each node: one stamp at some nodes, as nodes mostly
/// agree, and nothing at the others. A hint: the outcome of a deferred CAS is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    stamp: Stamp,
    at: NodeSet,
}

impl Own {
    /// Returns what the slot at `node` probably holds.
    #[inline(always)]
    pub(crate) fn at(self, node: NodeId) -> Stamp {
        if self.at.contains(node) { self.stamp } else { Stamp::EMPTY }
    }

    /// Records that exactly `nodes` hold `stamp` in this client's slot.
    #[inline(always)]
    pub(crate) fn is_at(&mut self, stamp: Stamp, nodes: NodeSet) {
        *self = Self { stamp, at: nodes };
    }

    /// Records what the slot at `node` holds. Keeps the latest stamp.
    #[inline(always)]
    pub(crate) fn saw(&mut self, node: NodeId, stamp: Stamp) {
        if self.stamp.0 != stamp.0 {
            // V1: a frozen word is not recorded, as a CAS that expects it would thaw the slot.
            if stamp < self.stamp || stamp.is_frozen() {
                self.at.remove(node);
                return;
            }
            *self = Self { stamp, at: NodeSet::EMPTY };
        }
        self.at.insert(node);
    }
}

/// READs a register's key that is not known. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`] if no node that answers has a complete header of the register.
pub async fn read_key<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<Value<'f, F>, Error> {
    let mut found = None;
    group
        .collect_votes(group.preferred(register.home()), 1, |node, reply| match reply {
            None => {
                let read = register.read_header(node, group.nodes());
                Next::Post(group.fabric().post(node, &[read]))
            }
            Some(reply) if register.is_whole(&reply) => {
                found = Some(reply);
                Next::Vote
            }
            Some(_) => Next::NoVote,
        })
        .await?;
    let reply = found.ok_or(Error::Gone)?;
    Ok(Value { reply, start: register::HEADER_WORDS, length: register.shape().key_length })
}

/// Reads a register's key without waiting, where memory is near and its home has the header whole; else it is for
/// [`read_key`]. It is never another register's: the header is recognized by the write that created its register.
#[inline]
pub fn try_read_key<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Option<Value<'f, F>> {
    let (fabric, home, shape) = (group.fabric(), register.home(), register.shape());
    if !fabric.is_near() {
        return None;
    }
    let at = shape.header_place(&register.place).at(home, group.nodes());
    let reply = fabric.fetch(home, at, shape.header_words())?;
    let (start, length) = (register::HEADER_WORDS, shape.key_length);
    register.is_whole(&reply).then_some(Value { reply, start, length })
}

/// How a READ checks that it reached the right register.
#[derive(Clone, Copy, Debug)]
pub enum Check<'k> {
    /// By its identity: the register is known to be this key's.
    Identity,
    /// By its identity and its key: the register was found by a hash.
    Key(&'k [u8]),
}

impl Check<'_> {
    /// Returns the length of a READ, in words, at home or elsewhere.
    #[inline(always)]
    pub(crate) fn words(self, shape: Shape, is_home: bool) -> usize {
        match self {
            Self::Identity if is_home => shape.value_words(),
            Self::Identity => register::STATE_WORDS,
            Self::Key(_) => shape.header_at(is_home) + shape.header_words(),
        }
    }
}

/// A value, in memory that the fabric owns. Dereferences to its bytes; dropping it frees the
/// memory.
pub struct Value<'f, F: Fabric + 'f> {
    pub(crate) reply: F::Reply<'f>,
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl<'f, F: Fabric + 'f> Value<'f, F> {
    /// Returns the `length` bytes that a reply of the fabric has from word `start` on.
    pub fn of(reply: F::Reply<'f>, start: usize, length: usize) -> Self {
        Self { reply, start, length }
    }
}

impl<'f, F: Fabric + 'f> Deref for Value<'f, F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let words = self.reply.get(self.start..).unwrap_or_default();
        bytes(words, self.length).unwrap_or_default()
    }
}

impl<'f, F: Fabric + 'f> core::fmt::Debug for Value<'f, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        (**self).fmt(f)
    }
}

/// The result of a read.
pub enum Found<'f, F: Fabric + 'f> {
    /// The register's value.
    Value(Value<'f, F>),
    /// The register was deleted, for good.
    Deleted,
    /// The register is another key's, whose hash is the same.
    OtherKey,
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The value was written.
    Done,
    /// The register is deleted, for good; the write had no effect.
    Deleted,
    /// The register is being relocated, or must be. Only the relocation determines whether the
    /// write took effect: see [`took_effect`](crate::register::freeze::took_effect). Contains the stamp under
    /// which it was last posted, [`Stamp::EMPTY`] if under none.
    Moved(Stamp),
}

/// One write: its number, its buffer and its value.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Unique in the pool.
    pub number: WriteNumber,
    /// Newly allocated memory for [`HEADER_WORDS`](crate::layout::buffer::HEADER_WORDS) and the
    /// value, which this write alone uses. It may serve again when no operation can reach it any
    /// more: see [`epoch`](crate::epoch).
    pub buffer: Pointer,
    /// What to write.
    pub value: &'a [u8],
}

/// A protocol for a register: Safe-Guess, or one of the baselines that it is measured against.
///
/// Reads and writes have two parts. The first is an attempt that does not wait: on synchronous
/// fabrics it is the whole operation in the common case. It is a plain function, to save the cost
/// of a future. The second is the rest, or all of it on asynchronous fabrics, in a large future.
///
/// **Invariant (G3):** a client has at most one write or delete of a register in progress at a
/// time. Dropping a future, or what an attempt leaves, before it ends equals a crash of the client
/// at that point: a write that was posted may or may not take effect.
pub trait Protocol {
    /// The name on command lines and in reports.
    const NAME: &'static str;
    /// What an unfinished attempt to read saw.
    type Seen<'f, F: Fabric + 'f>;
    /// What an unfinished attempt to write posted.
    type Posted<'f>;

    /// Tries to read the register without waiting, by its identity, and without recording what it
    /// learns. If that is not enough, leaves what it saw, if anything, for
    /// [`read_on`](Self::read_on).
    #[inline(always)]
    fn try_read<'f, F: Fabric, C: Clock>(
        _group: &'f Group<F, C>,
        _register: &Register,
        _seen: &mut Option<Self::Seen<'f, F>>,
    ) -> Option<Value<'f, F>> {
        None
    }

    /// Reads the register, perhaps from what an attempt saw just before.
    ///
    /// # Errors
    /// See [`Error`].
    fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        seen: Option<Self::Seen<'f, F>>,
    ) -> impl Future<Output = Result<Found<'f, F>, Error>>;

    /// Tries to write the register without waiting; the write's buffer lies at `site`. If that is
    /// not enough, leaves what it posted, if anything, for [`write_on`](Self::write_on).
    #[inline(always)]
    fn try_write<'f, F: Fabric, C: Clock>(
        _group: &'f Group<F, C>,
        _register: &mut Register,
        _write: Write<'_>,
        _site: &ReplicaSet,
        _posted: &mut Option<Self::Posted<'f>>,
    ) -> Option<Written> {
        None
    }

    /// Writes the register, perhaps from what an attempt posted: `write` must be the same then.
    ///
    /// # Errors
    /// See [`Error`].
    fn write_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        posted: Option<Self::Posted<'f>>,
    ) -> impl Future<Output = Result<Written, Error>>;

    /// Deletes the register, for good. Takes no memory.
    ///
    /// # Errors
    /// See [`Error`].
    fn delete<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Reads the register without an attempt, and records what it learns.
    ///
    /// # Errors
    /// See [`Error`].
    fn read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
    ) -> impl Future<Output = Result<Found<'f, F>, Error>> {
        Self::read_on(group, register, check, None)
    }

    /// Writes the register.
    ///
    /// # Errors
    /// See [`Error`].
    fn write<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
    ) -> impl Future<Output = Result<Written, Error>> {
        async move {
            let (site, mut posted) = (group.placement().site(write.buffer), None);
            match Self::try_write(group, register, write, &site, &mut posted) {
                Some(written) => Ok(written),
                None => Self::write_on(group, register, write, posted).await,
            }
        }
    }
}

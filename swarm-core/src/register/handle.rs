//! The register as its users see it, whatever protocol is behind it.

use core::future::Future;
use core::ops::Deref;

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Header, Identity, MAX_KEY, Place, Shape, Site, bytes, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::words::{Pointer, Stamp, WriteNumber};

/// What a client knows of a register: where it is, which one it is, and what it last saw there.
///
/// Only place, identity and shape matter for safety; the rest saves roundtrips.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Where it lies.
    pub place: Place,
    /// Which one it is.
    pub identity: Identity,
    /// Length of its key.
    key_length: u8,
    /// Words of room in its in-place copy.
    room: u16,
    pub(crate) own: Own,
    /// The largest stamp seen, other than a delete's.
    pub(crate) last: Stamp,
    /// The largest stamp of others that the last write was seen to follow.
    pub(crate) followed: Stamp,
}

impl Register {
    /// A register that nothing more is known of.
    pub fn new(place: Place, identity: Identity, shape: Shape) -> Self {
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

    /// A register that was just born with `stamp` in its first slot, as the client with stamp slot
    /// `slot` sees it.
    pub fn newborn(
        place: Place,
        identity: Identity,
        shape: Shape,
        stamp: Stamp,
        slot: usize,
    ) -> Self {
        let stamp_at = if slot == 0 { NodeSet::all(MAX_NODES) } else { NodeSet::EMPTY };
        let own = Own { stamp, at: stamp_at };
        Self { own, last: stamp, ..Self::new(place, identity, shape) }
    }

    /// The same, of which this was seen.
    #[inline(always)]
    #[must_use]
    pub fn with_seen(self, Seen { own, own_at, last }: Seen) -> Self {
        Self { own: Own { stamp: own, at: own_at }, last, ..self }
    }

    /// What was seen of it.
    #[inline(always)]
    pub fn seen(&self) -> Seen {
        Seen { own: self.own.stamp, own_at: self.own.at, last: self.last }
    }

    /// The node that holds the in-place copy.
    pub fn home(&self) -> NodeId {
        self.place.home
    }

    /// Length of its key and room of its in-place copy.
    #[inline(always)]
    pub fn shape(&self) -> Shape {
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        Shape { key_length, capacity }
    }

    /// By what its buffers tell that they are its own.
    #[inline(always)]
    pub(crate) fn name(&self) -> (Pointer, Identity) {
        (self.place.pointer, self.identity)
    }

    /// Bytes of the longest value that fits in place.
    pub fn capacity(&self) -> usize {
        usize::from(self.room) * 8
    }

    /// The READ of header and key at `node`, of `n`.
    pub(crate) fn read_header(&self, node: NodeId, n: usize) -> Verb<'static> {
        let shape = self.shape();
        Verb::Read { at: shape.header_place(&self.place).at(node, n), words: shape.header_words() }
    }

    /// Whether a [READ of the header](Self::read_header) is whole.
    pub(crate) fn is_whole(&self, read: &[u64]) -> bool {
        Header::decode(self.identity.number, read).is_some()
    }

    /// The latest stamp that this client's own slot was seen to hold.
    #[inline(always)]
    pub fn own_stamp(&self) -> Stamp {
        self.own.stamp
    }

    /// The largest stamp seen, other than a delete's.
    #[inline(always)]
    pub fn last_stamp(&self) -> Stamp {
        self.last
    }

    /// The largest stamp of others that this client's last write was seen to follow, or an empty one.
    #[inline(always)]
    pub fn followed(&self) -> Stamp {
        self.followed
    }

    /// Takes in a stamp that was met.
    pub(crate) fn met(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp);
    }
}

/// What a client saw of a register that saves roundtrips later. What its last write followed is no part of that: each
/// write finds it out anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The latest stamp that its own slot was seen to hold.
    pub own: Stamp,
    /// At which nodes.
    pub own_at: NodeSet,
    /// The largest stamp, other than a delete's.
    pub last: Stamp,
}

/// What a client thinks that its own slot holds at each node: one stamp at some nodes, as nodes
/// mostly agree, and at others nothing. A hint: what a detached CAS did is not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    stamp: Stamp,
    at: NodeSet,
}

impl Own {
    /// What the slot at `node` is thought to hold.
    #[inline(always)]
    pub(crate) fn at(self, node: NodeId) -> Stamp {
        if self.at.contains(node) { self.stamp } else { Stamp::EMPTY }
    }

    /// All of these hold this stamp now, and no other node one of this client's that it thinks of.
    #[inline(always)]
    pub(crate) fn is_at(&mut self, stamp: Stamp, nodes: NodeSet) {
        *self = Self { stamp, at: nodes };
    }

    /// Takes in what the slot at `node` holds. Keeps the latest in mind.
    #[inline(always)]
    pub(crate) fn saw(&mut self, node: NodeId, stamp: Stamp) {
        if self.stamp.0 != stamp.0 {
            // A frozen word is not kept in mind: a CAS that expects it would thaw the slot.
            if stamp < self.stamp || stamp.is_frozen() {
                self.at.remove(node);
                return;
            }
            *self = Self { stamp, at: NodeSet::EMPTY };
        }
        self.at.insert(node);
    }
}

/// READs a register's key where it is not known. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`] if no node that answers has the register's header whole.
pub async fn read_key<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<Value<'f, F>, Error> {
    let mut found = None;
    group
        .settle(group.preferred(register.home()), 1, |node, reply| match reply {
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

/// How a READ makes sure that it met the right register.
#[derive(Clone, Copy, Debug)]
pub enum Check<'k> {
    /// By its identity: the register is known to be this key's.
    Identity,
    /// By its identity and its key: the register was found by a hash.
    Key(&'k [u8]),
}

impl Check<'_> {
    /// How many words a READ takes at home, or elsewhere.
    #[inline(always)]
    pub(crate) fn words(self, shape: Shape, is_home: bool) -> usize {
        match self {
            Self::Identity if is_home => shape.value_words(),
            Self::Identity => register::STATE_WORDS,
            Self::Key(_) => shape.header_at(is_home) + shape.header_words(),
        }
    }
}

/// A value, in memory that the fabric owns. Dereferences to its bytes; dropping it gives the
/// memory back.
pub struct Value<'f, F: Fabric + 'f> {
    pub(crate) reply: F::Reply<'f>,
    pub(crate) start: usize,
    pub(crate) length: usize,
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

/// What a read found.
pub enum Found<'f, F: Fabric + 'f> {
    /// The register's value.
    Value(Value<'f, F>),
    /// The register was deleted, for good.
    Deleted,
    /// The register is another key's, whose hash is the same.
    OtherKey,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The value was written.
    Done,
    /// The register is deleted, for good; the write had no effect.
    Deleted,
    /// The register is being moved, or has to be. Whether the write took effect is for the move to
    /// tell: see [`stands`](crate::register::freeze::stands). This is the stamp that it was posted under last,
    /// [`Stamp::EMPTY`] if under none.
    Moved(Stamp),
}

/// One write: its number, its buffer and its value.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Unique in the pool.
    pub number: WriteNumber,
    /// Fresh memory for header and value; the write's for ever.
    pub buffer: Pointer,
    /// What to write.
    pub value: &'a [u8],
}

/// A way to keep a register: Safe-Guess, or one of the baselines it is measured against.
///
/// Reads and writes come in two parts. The first is an attempt that does not wait, which is all there is to do in the
/// common case where memory is near: a plain function, so that it costs what it does and not what a future costs. The
/// second is the rest, or where memory is far all of it, in a future that is large.
///
/// One client has at most one write (or delete) of a register under way at a time. Dropping a
/// future, or what an attempt leaves, before it ends equals a crash of the client at that point: a write
/// that was posted may or may not take effect.
pub trait Protocol {
    /// The name on command lines and in reports.
    const NAME: &'static str;
    /// What an attempt to read saw, where that was not enough.
    type Seen<'f, F: Fabric + 'f>;
    /// What an attempt to write posted, where that was not enough.
    type Posted<'f>;

    /// Tries to read the register without waiting, by its identity, and without taking in what is learnt of it. Where
    /// that is not enough, what it saw, if anything, is for [`read_on`](Self::read_on).
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

    /// Tries to write the register without waiting; the write's buffer lies at `site`. Where that is not enough, what
    /// it posted, if anything, is for [`write_on`](Self::write_on).
    #[inline(always)]
    fn try_write<'f, F: Fabric, C: Clock>(
        _group: &'f Group<F, C>,
        _register: &mut Register,
        _write: Write<'_>,
        _site: &Site,
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

    /// Reads the register, and takes in what is learnt of it: without an attempt.
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
            let (site, mut posted) = (group.buffers().site(write.buffer), None);
            match Self::try_write(group, register, write, &site, &mut posted) {
                Some(written) => Ok(written),
                None => Self::write_on(group, register, write, posted).await,
            }
        }
    }
}

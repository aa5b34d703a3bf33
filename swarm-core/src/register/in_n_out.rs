//! In-n-Out (§4): a max register at one node, by chains that never wait for one another.
//!
//! A write is one chain: WRITE the buffer (all but its lock), CAS the client's own slot, READ the
//! slots. A read is one READ of the slots and, at the home node, of the in-place copy.
//! **Invariant (I1):** a slot names a buffer only after the buffer was written at that node. It
//! holds because a chain's verbs take effect in order, and because a slot only grows (I2).
//!
//! Where the pool's writers use one slot only, a write's own CAS can replace its READ. The other
//! slots are empty, so a CAS that succeeds proves the node's maximum: it was the expected stamp and
//! is now the new one. If a stamp was expected, the CAS also proves which register it reached: that
//! stamp was in this register's slot, and in no other's. See [`cas_proves_max`].
//!
//! **Invariant (I4):** a WRITE never touches a slot or a lock. Otherwise a reader that writes a
//! buffer back could erase a lock, and a late image of a new register could erase an acknowledged
//! stamp.

use super::handle::{Check, Register, Value};
use crate::clock::Clock;
use crate::fabric::{Fabric, Verb};
use crate::layout::{BufferHeader, Identity, ReplicaSet, SLOTS, buffer, register};
use crate::node::NodeId;
use crate::quorum::Group;
use crate::words::{Stamp, StampFlags, WordFormat};

/// Returns the largest of a replica's slots.
#[inline(always)]
pub(crate) fn largest(slots: &[u64]) -> Stamp {
    let (mut max, mut any) = (0, 0);
    for &slot in slots {
        max = max.max(slot);
        any |= slot;
    }
    // The frozen bit is the lowest: it orders only stamps that are otherwise equal.
    Stamp(max | any & StampFlags::FROZEN.bits())
}

/// Returns the largest of a replica's slots but one.
#[inline(always)]
pub(crate) fn largest_of_others(slots: &[u64], own: usize) -> Stamp {
    let Some(slots) = slots.first_chunk::<SLOTS>() else { return Stamp::EMPTY };
    let mut others = *slots;
    others[own % SLOTS] = 0;
    Stamp(largest(&others).0 & !1)
}

/// Returns the largest slot of a READ that begins with the slots; `None` if the identity behind
/// them is not this register's (I6).
#[inline(always)]
pub(crate) fn state(reply: &[u64], identity: Identity) -> Option<Stamp> {
    let words: &[u64; register::STATE_WORDS] = reply.first_chunk()?;
    let [slots @ .., created_at, number] = words;
    is_of(identity, *created_at, *number).then(|| largest(slots))
}

/// Returns whether a replica is this register's, by the words of its identity.
#[inline(always)]
pub(crate) fn is_of(identity: Identity, created_at: u64, number: u64) -> bool {
    created_at == identity.created_at && number == identity.number.0
}

/// Posts the READ of one replica: slots and identity, the in-place copy at the home node, and the
/// header if `check` needs it.
#[inline(always)]
pub(crate) fn post_read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    node: NodeId,
    register: &Register,
    check: Check<'_>,
) -> F::Completion<'f> {
    let words = check.words(register.shape(), node == register.home());
    let at = register.place.at(node, group.nodes()).plus(register::SLOTS_AT);
    group.fabric().post(node, &[Verb::Read { at, words }])
}

/// Returns the CAS that raises the client's own slot at `node` from `own`, its expected word, to
/// `stamp`.
///
/// I2: a slot only grows. One that is expected to be past the stamp keeps its word.
#[inline(always)]
pub(crate) fn raise<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    node: NodeId,
    register: &Register,
    own: Stamp,
    stamp: Stamp,
) -> Verb<'static> {
    let at = register.place.at(node, group.nodes()).plus(register::SLOTS_AT + group.slot());
    Verb::Cas { at, expect: own.0, new: own.max(stamp).0 }
}

/// Returns the READ of slots and identity at `node`.
#[inline(always)]
fn read_state<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    node: NodeId,
    register: &Register,
) -> Verb<'static> {
    let at = register.place.at(node, group.nodes()).plus(register::SLOTS_AT);
    Verb::Read { at, words: register::STATE_WORDS }
}

/// Posts the chain of one write at one node that holds the buffer: WRITE the buffer, CAS the
/// client's own slot, READ the slots. The reply is the slot's old word and the READ.
#[inline(always)]
pub(crate) fn post_write<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    node: NodeId,
    register: &Register,
    stamp: Stamp,
    own: Stamp,
    copy: &Copy<'_>,
) -> F::Completion<'f> {
    let write = copy.write(node, group.nodes());
    let raise = raise(group, node, register, own, stamp);
    // I1: the buffer comes before the slot. I3: the READ comes after the CAS.
    group.fabric().post(node, &[write, raise, read_state(group, node, register)])
}

/// Returns whether a CAS from `own` that succeeds proves what a READ of the slots after it would
/// show. It does if the slot is the only one and `own` is a stamp of this register.
///
/// A frozen slot is not raised. On synchronous fabrics the READ costs next to nothing.
#[inline(always)]
pub(crate) fn cas_proves_max<F: Fabric, C: Clock>(group: &Group<F, C>, own: Stamp) -> bool {
    !group.fabric().is_near() && group.slots() == 1 && own != Stamp::EMPTY && !own.is_frozen()
}

/// Posts the chain of one write at one node where the CAS [proves the maximum](cas_proves_max): WRITE the
/// buffer, CAS the slot. The reply is the slot's old word.
#[inline(always)]
pub(crate) fn post_write_alone<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    node: NodeId,
    register: &Register,
    stamp: Stamp,
    own: Stamp,
    copy: &Copy<'_>,
) -> F::Completion<'f> {
    let write = copy.write(node, group.nodes());
    // I1: the buffer comes before the slot.
    group.fabric().post(node, &[write, raise(group, node, register, own, stamp)])
}

/// Posts CAS and READ of a write without its buffer: for a retry from the word that the slot was
/// found to hold, or for a delete. Leaves a frozen slot as it is (V1).
pub(crate) fn post_again<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    node: NodeId,
    register: &Register,
    stamp: Stamp,
    own: Stamp,
) -> F::Completion<'f> {
    let stamp = if own.is_frozen() { own } else { stamp };
    let raise = raise(group, node, register, own, stamp);
    group.fabric().post(node, &[raise, read_state(group, node, register)])
}

/// The part of a buffer that a write stores.
#[derive(Clone, Copy)]
pub(crate) struct Copy<'a> {
    /// The nodes that hold the buffer, and where.
    pub(crate) site: ReplicaSet,
    /// First word, counted from the buffer's beginning; never the lock (I4).
    pub(crate) from: usize,
    /// Header words, or all that follows `from`.
    pub(crate) head: &'a [u64],
    /// The value, if it is not in `head`.
    pub(crate) tail: &'a [u8],
}

impl Copy<'_> {
    /// Returns a guess's buffer with this header, without the word for its rewrite's timestamp
    /// (I4). This chain may be late, and a reader may have brought the rewrite to the node
    /// meanwhile.
    #[inline(always)]
    pub(crate) fn of_guess<'a>(
        site: ReplicaSet,
        header: &'a [u64; buffer::HEADER_WORDS - 1],
        value: &'a [u8],
    ) -> Copy<'a> {
        let head = &header[buffer::NUMBER - buffer::REWRITE..];
        Copy { site, from: buffer::NUMBER, head, tail: value }
    }

    /// Returns the verb that stores it at `node`, of `n`.
    #[inline(always)]
    pub(crate) fn write(&self, node: NodeId, n: usize) -> Verb<'_> {
        debug_assert!(self.site.holders.contains(node), "other memory lies there");
        let at = self.site.place.at(node, n).plus(self.from);
        Verb::Write { at, head: self.head, tail: self.tail }
    }
}

/// A buffer as it was read, from [`buffer::REWRITE`] on, and found valid for one stamp.
pub(crate) struct Fetched<R> {
    pub(crate) reply: R,
    pub(crate) header: BufferHeader,
}

impl<R: core::ops::Deref<Target = [u64]>> Fetched<R> {
    /// Index of the value in the reply.
    pub(crate) const VALUE: usize = buffer::HEADER_WORDS - 1;

    /// Returns what to store when this buffer is written back for `stamp`.
    ///
    /// I4: the word for the rewrite's timestamp is left out unless `stamp` is the rewrite. It may
    /// have been written since this buffer was read, and must not be erased.
    pub(crate) fn copy(&self, format: WordFormat, site: ReplicaSet, stamp: Stamp) -> Copy<'_> {
        let rewrite = format.timestamp(stamp) != self.header.guess;
        let from = if rewrite { buffer::REWRITE } else { buffer::NUMBER };
        let end = Self::VALUE + self.header.length.div_ceil(8);
        Copy { site, from, head: &self.reply[from - buffer::REWRITE..end], tail: &[] }
    }

    /// Returns the value.
    pub(crate) fn value(&self) -> &[u8] {
        crate::layout::bytes(&self.reply[Self::VALUE..], self.header.length).unwrap_or_default()
    }
}

impl<R> Fetched<R> {
    /// Returns the value in the reply that carries it.
    pub(crate) fn into_value<'f, F: Fabric<Reply<'f> = R> + 'f>(self) -> Value<'f, F> {
        Value { reply: self.reply, start: buffer::HEADER_WORDS - 1, length: self.header.length }
    }
}

/// Result of validating a buffer for a stamp.
pub(crate) enum Validated<R> {
    /// It is the stamp's, and complete.
    Good(Fetched<R>),
    /// It is longer than what was read: its number of words.
    Longer(usize),
    /// It is not the stamp's, or damaged.
    Bad,
}

/// Validates a READ of the buffer that `stamp` names, from [`buffer::REWRITE`] on (I5).
pub(crate) fn validate<R: core::ops::Deref<Target = [u64]>>(
    format: WordFormat,
    register: &Register,
    stamp: Stamp,
    reply: R,
) -> Validated<R> {
    let Some(header) = BufferHeader::decode(&reply) else { return Validated::Bad };
    if header.length > crate::layout::MAX_VALUE {
        return Validated::Bad;
    }
    let words = Fetched::<R>::VALUE + header.length.div_ceil(8);
    let Some(value) = reply.get(Fetched::<R>::VALUE..words) else {
        return Validated::Longer(words);
    };
    let value = crate::layout::bytes(value, header.length).unwrap_or_default();
    if header.agrees(format, register.name(), stamp, value) {
        Validated::Good(Fetched { reply, header })
    } else {
        Validated::Bad
    }
}

/// Result of validating the in-place copy for a stamp.
pub(crate) enum InPlace {
    /// It is the stamp's value: its length in bytes.
    Value(usize),
    /// It is the stamp's, whose value is too long for it: its length in bytes.
    Length(usize),
    /// It is another stamp's, or torn.
    Bad,
}

/// Validates the in-place copy in the home node's READ for a verified `stamp`.
#[inline(always)]
pub(crate) fn validate_in_place(
    format: WordFormat,
    register: &Register,
    stamp: Stamp,
    reply: &[u64],
) -> InPlace {
    let Some((&copied, image)) = reply.get(register::IN_PLACE..).and_then(<[u64]>::split_first)
    else {
        return InPlace::Bad;
    };
    let Some(header) = BufferHeader::decode(image).filter(|_| copied == stamp.0) else {
        return InPlace::Bad;
    };
    let value = image.get(buffer::HEADER_WORDS - 1..).unwrap_or_default();
    match crate::layout::bytes(value, header.length) {
        // I5: however this copy is torn, the checksum rejects a value of another stamp.
        Some(value) if header.agrees(format, register.name(), stamp, value) => {
            InPlace::Value(header.length)
        }
        None if header.length <= crate::layout::MAX_VALUE => InPlace::Length(header.length),
        _ => InPlace::Bad,
    }
}

/// Returns the words before the value in the in-place copy of a verified `stamp`, whose buffer has
/// this header.
#[inline(always)]
pub(crate) fn in_place_head(
    stamp: Stamp,
    header: &BufferHeader,
) -> [u64; register::IN_PLACE_WORDS] {
    in_place_words(stamp, &header.encode())
}

/// The same from the words of the header.
#[inline(always)]
pub(crate) fn in_place_words(
    stamp: Stamp,
    &[rewrite, number, register, guess, checksum]: &[u64; buffer::HEADER_WORDS - 1],
) -> [u64; register::IN_PLACE_WORDS] {
    [stamp.0, rewrite, number, register, guess, checksum]
}

/// Posts the in-place copy of a verified stamp at the home node.
#[inline(always)]
pub(crate) fn post_in_place<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    head: &[u64; register::IN_PLACE_WORDS],
    value: &[u8],
) -> F::Completion<'f> {
    group.fabric().post(register.home(), &[in_place(group, register, head, value)])
}

/// Posts the in-place copy deferred, followed by `and`.
#[inline(always)]
pub(crate) fn put_in_place<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    head: &[u64; register::IN_PLACE_WORDS],
    value: &[u8],
    and: Option<Verb<'_>>,
) {
    let (home, copy) = (register.home(), in_place(group, register, head, value));
    match and {
        Some(verb) => group.fabric().post_deferred(home, &[copy, verb]),
        None => group.fabric().post_deferred(home, &[copy]),
    }
}

/// Returns the WRITE of the in-place copy at the home node.
#[inline(always)]
pub(crate) fn in_place<'a, F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    head: &'a [u64; register::IN_PLACE_WORDS],
    value: &'a [u8],
) -> Verb<'a> {
    let at = register.place.at(register.home(), group.nodes()).plus(register::IN_PLACE);
    let tail = if value.len() <= register.capacity() { value } else { &[] };
    Verb::Write { at, head, tail }
}

const _: () = assert!(register::STATE_WORDS == SLOTS + 2);

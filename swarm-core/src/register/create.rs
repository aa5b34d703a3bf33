//! How a register comes into being.
//!
//! One chain to each node writes the header with the key, the identity, the first value, and last
//! the first stamp. **Invariant:** nobody else knows the register before a majority has it. So
//! a client that learns of it finds its value at a node of any majority (M1), and brings it to nodes that
//! it did not reach (I6).

use heapless::Vec;

use super::handle::Register;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{
    BufferHeader, Identity, Location, MAX_KEY, Shape, buffer, checksum, header, register,
};
use crate::node::{NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::register::in_n_out::in_place_head;
use crate::register::safe_guess::first_stamp;
use crate::words::{Pointer, Stamp, Timestamp};

/// A register that is to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewRegister<'a> {
    /// Where it will lie: zeroed memory at every node that no other client uses, of
    /// [`full_words`](Shape::full_words) at home and [`small_words`](Shape::small_words) elsewhere.
    pub place: Location,
    /// Its name, which no other register ever had: [`Group::now`] and [`Group::number`].
    pub identity: Identity,
    /// Capacity of its in-place copy, in words. Longer values take another roundtrip to read.
    pub capacity: usize,
    /// Its key, of at most 255 bytes; it may be empty.
    pub key: &'a [u8],
    /// Where its first value lies: zeroed memory for [`HEADER_WORDS`](buffer::HEADER_WORDS) and the
    /// value, at all nodes, or at all but the home, which then has the value in place alone (M4).
    pub buffer: Pointer,
    /// Its first value.
    pub value: &'a [u8],
}

impl NewRegister<'_> {
    /// Returns its shape.
    pub fn shape(&self) -> Shape {
        Shape { key_length: self.key.len(), capacity: self.capacity }
    }
}

/// Creates a register with its first value. It exists for others once they receive its place,
/// identity and shape, which they are when this has ended.
///
/// One roundtrip.
///
/// # Cancel safety
/// Dropping the future leaves memory whose place nobody may receive. It may serve again when it was
/// zeroed at every node, after the chains that were posted.
///
/// # Errors
/// [`Error::NoMajority`]: as if the future was dropped. [`Error::Damaged`] if the memory was not
/// zeroed.
///
/// # Panics
/// If the key is too long; if the first buffer leaves out another node than the home, or the home
/// although the value does not fit in place.
pub async fn create<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    new: &NewRegister<'_>,
) -> Result<Register, Error> {
    assert!(new.key.len() <= MAX_KEY, "a key has at most {MAX_KEY} bytes");
    let image = Image::new(group, new);
    let mut damaged = false;
    let step = |node, reply: Option<F::Reply<'_>>| match reply {
        None => Next::Post(group.fabric().post(node, &image.chain(node, group.nodes()))),
        Some(found) => {
            damaged |= *found != [0];
            Next::Vote
        }
    };
    group.collect_votes(NodeSet::all(group.nodes()), group.majority(), step).await?;
    if damaged {
        return Err(Error::Damaged);
    }
    let NewRegister { place, identity, .. } = *new;
    Ok(Register::just_created(place, identity, new.shape(), image.stamp, group.slot()))
}

/// The words of a new register.
struct Image<'a> {
    new: &'a NewRegister<'a>,
    stamp: Stamp,
    identity: [u64; register::IDENTITY_WORDS],
    header: [u64; register::HEADER_WORDS],
    buffer_header: [u64; buffer::HEADER_WORDS - 1],
    in_place: [u64; register::IN_PLACE_WORDS],
    /// Where the first buffer lies: at home it may be the in-place copy (M4).
    first: Location,
    /// Whether the home has the value nowhere else than in place.
    only_in_place: bool,
}

impl<'a> Image<'a> {
    fn new<F: Fabric, C: Clock>(group: &Group<F, C>, new: &'a NewRegister<'a>) -> Self {
        let NewRegister { place, identity, buffer, value, key, .. } = *new;
        let (format, guess, number) = (group.format(), Timestamp::FIRST, identity.number);
        let only_in_place = match group.placement().absent(buffer) {
            None => false,
            // M3: any majority of the nodes must have the value.
            Some(absent) => {
                assert!(absent == place.home, "a first buffer leaves out the home or none");
                assert!(value.len() <= new.capacity * 8, "the home has the value in place alone");
                true
            }
        };
        let stamp = first_stamp(format, buffer);
        let header_of_buffer = BufferHeader {
            rewrite: Timestamp(0),
            number,
            register: place.pointer,
            length: value.len(),
            guess,
            checksum: checksum(format, identity, guess, buffer, number, value),
        };
        Self {
            new,
            stamp,
            identity: identity.encode(),
            header: header(number, key),
            buffer_header: header_of_buffer.encode(),
            in_place: in_place_head(stamp, &header_of_buffer),
            first: group.placement().first_site(buffer, &place).place,
            only_in_place,
        }
    }

    /// Returns the chain for `node`, of `n`. Its reply is what the CAS found.
    fn chain(&self, node: NodeId, n: usize) -> Vec<Verb<'_>, 5> {
        let NewRegister { place, value, key, capacity, .. } = *self.new;
        let at = place.at(node, n);
        let header = self.new.shape().header_place(&place).at(node, n);
        let first = self.first.at(node, n);
        let mut chain = Vec::new();
        let mut push = |verb| chain.push(verb).expect("there are five");
        // I6: a client that finds the identity finds the header.
        push(Verb::Write { at: header, head: &self.header, tail: key });
        push(Verb::Write { at: at.plus(register::IDENTITY), head: &self.identity, tail: &[] });
        // I1: a client that finds the stamp finds the value.
        push(Verb::Write {
            at: first.plus(buffer::REWRITE),
            head: &self.buffer_header,
            tail: value,
        });
        if node == place.home {
            let in_place = at.plus(register::IN_PLACE);
            let (head, tail): (&[u64], &[u8]) = match value.len() <= capacity * 8 {
                // The buffer is the in-place copy but for its first word.
                true if self.only_in_place => (&self.in_place[..1], &[]),
                true => (&self.in_place, value),
                false => (&self.in_place, &[]),
            };
            push(Verb::Write { at: in_place, head, tail });
        }
        push(Verb::Cas { at: at.plus(register::SLOTS_AT), expect: 0, new: self.stamp.0 });
        chain
    }
}

//! A record on its way to the nodes, and what is born with it.

use heapless::Vec;
use zerocopy::IntoBytes;

use crate::fabric::{MAX_VERBS, Verb};
use crate::layout::{Place, RecordHeader, record};
use crate::node::{Address, NodeId};
use crate::words::{Ballot, CellWord, Pointer, WriteNumber};

/// The most objects' parts that may be born with one record: with the record, its accepted ballot
/// and the cell's word they fill a chain.
pub const MAX_BIRTHS: usize = MAX_VERBS - 3;

/// Part of an object that is born with a record, as told from the record's payload.
#[derive(Clone, Copy, Debug)]
pub enum Birth {
    /// `words` words, `from` words into the object, that do not change while the object may be
    /// found through this record: copied from a node that has them.
    Copy {
        /// The object.
        place: Place,
        /// First word within the object.
        from: usize,
        /// How many words.
        words: usize,
    },
    /// A control word, set by CAS from 0 so that a late copy erases nothing.
    Set {
        /// The object.
        place: Place,
        /// The word within the object.
        at: usize,
        /// What it is set to.
        value: u64,
    },
}

/// How whoever brings another client's record to a node finds what must be there before it.
pub trait Births {
    /// Calls `each`, at most [`MAX_BIRTHS`] times and in the order in which the parts must come into
    /// being, with what was born with the record of this payload. An object's copies come before
    /// what makes it visible.
    fn births(&self, payload: &[u64], each: &mut dyn FnMut(Birth));
}

/// Nothing is born with this cell's records.
impl Births for () {
    fn births(&self, _payload: &[u64], _each: &mut dyn FnMut(Birth)) {}
}

/// Some of an object's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replicas {
    /// All of them.
    All,
    /// Its home.
    Home,
    /// All but its home.
    Elsewhere,
}

/// Part of an object that is born with a record, with the data at hand.
#[derive(Clone, Copy, Debug)]
pub enum Newborn<'a> {
    /// `head`, then `tail`, from word `from` of the object on. Never over a control word.
    Write {
        /// The object.
        place: Place,
        /// First word within the object.
        from: usize,
        /// What to write.
        head: &'a [u64],
        /// What to write behind it.
        tail: &'a [u8],
        /// Which of the object's nodes have this part.
        at: Replicas,
    },
    /// A control word, set by CAS from 0.
    Set {
        /// The object.
        place: Place,
        /// The word within the object.
        at: usize,
        /// What it is set to.
        value: u64,
    },
}

/// The verbs of a chain.
pub(super) type Chain<'a> = Vec<Verb<'a>, MAX_VERBS>;

/// Adds a verb to a chain that has room for it.
pub(super) fn push<'a>(chain: &mut Chain<'a>, verb: Verb<'a>) {
    chain.push(verb).expect("births were counted, and all else fits beside MAX_BIRTHS");
}

/// The accepted-ballot word of a record.
pub(super) fn accepted_at(pointer: Pointer) -> Address {
    Place::everywhere(pointer, NodeId(0)).at(NodeId(0), 1).plus(record::ACCEPTED)
}

/// What is born with a record, from whichever side.
#[derive(Clone, Copy)]
pub(super) enum Born<'a> {
    /// By its proposer.
    Here(&'a [Newborn<'a>]),
    /// By another client; the copies' words were READ one behind the other.
    Elsewhere(&'a [Birth], &'a [u64]),
    /// By another client, and at all nodes that are known to matter.
    There,
}

/// A record that is proposed.
pub(super) struct Offer<'a> {
    /// Where it lies.
    pub(super) pointer: Pointer,
    head: [u64; record::HEADER_WORDS - 1],
    payload: &'a [u64],
    born: Born<'a>,
    /// Whether this round is the first that brings the record to any node.
    pub(super) fresh: bool,
}

impl<'a> Offer<'a> {
    /// A record of one's own, to be built on what `base` names.
    pub(super) fn own(
        pointer: Pointer,
        base: CellWord,
        writer: WriteNumber,
        payload: &'a [u64],
        newborns: &'a [Newborn<'a>],
    ) -> Self {
        let head = RecordHeader::new(pointer, base, writer, payload).encode();
        Self { pointer, head, payload, born: Born::Here(newborns), fresh: true }
    }

    /// Another client's record, as it is, with what was born with it, if some node lacks that, and the
    /// words to copy.
    pub(super) fn adopted(
        pointer: Pointer,
        header: RecordHeader,
        payload: &'a [u64],
        born: Option<(&'a [Birth], &'a [u64])>,
    ) -> Self {
        let born = born.map_or(Born::There, |(births, copies)| Born::Elsewhere(births, copies));
        Self { pointer, head: header.encode(), payload, born, fresh: false }
    }

    /// What the record says.
    pub(super) fn payload(&self) -> &'a [u64] {
        self.payload
    }

    /// Brings what is born, then the record, to a node, but for its control word. False if what is born
    /// is not at hand.
    pub(super) fn bring<'b>(&'b self, chain: &mut Chain<'b>, node: NodeId, n: usize) -> bool {
        match self.born {
            Born::Here(newborns) => bring_newborns(newborns, chain, node, n),
            Born::Elsewhere(births, copies) => bring_copies(births, copies, chain, node, n),
            Born::There => return false,
        }
        let at = accepted_at(self.pointer).plus(record::BODY - record::ACCEPTED);
        push(chain, Verb::Write { at, head: &self.head, tail: self.payload.as_bytes() });
        true
    }

    /// Raises the record's accepted ballot from `from` to `to`, or takes it back to nothing for a
    /// record that nobody knows. By CAS, so that it never falls.
    pub(super) fn raise(&self, from: Ballot, to: Ballot) -> Verb<'static> {
        debug_assert!(from <= to || to == Ballot(0), "an accepted ballot never falls");
        Verb::Cas { at: accepted_at(self.pointer), expect: from.0, new: to.0 }
    }
}

fn bring_newborns<'b>(newborns: &'b [Newborn<'b>], chain: &mut Chain<'b>, node: NodeId, n: usize) {
    for newborn in newborns {
        match *newborn {
            Newborn::Write { place, from, head, tail, at } => {
                if at == Replicas::All || (at == Replicas::Home) == (node == place.home) {
                    push(chain, Verb::Write { at: place.at(node, n).plus(from), head, tail });
                }
            }
            Newborn::Set { place, at, value } => {
                push(chain, Verb::Cas { at: place.at(node, n).plus(at), expect: 0, new: value });
            }
        }
    }
}

fn bring_copies<'b>(
    births: &'b [Birth],
    mut copies: &'b [u64],
    chain: &mut Chain<'b>,
    node: NodeId,
    n: usize,
) {
    for birth in births {
        match *birth {
            Birth::Copy { place, from, words } => {
                let (head, rest) = copies.split_at(words);
                copies = rest;
                push(chain, Verb::Write { at: place.at(node, n).plus(from), head, tail: &[] });
            }
            Birth::Set { place, at, value } => {
                push(chain, Verb::Cas { at: place.at(node, n).plus(at), expect: 0, new: value });
            }
        }
    }
}

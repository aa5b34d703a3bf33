//! A record that is to be accepted by the nodes, and the objects that are created with it.

use heapless::Vec;
use zerocopy::IntoBytes;

use crate::fabric::{MAX_VERBS, Verb};
use crate::layout::{Location, RecordHeader, record};
use crate::node::{Address, NodeId};
use crate::words::{Ballot, CellWord, Pointer, WriteNumber};

/// Maximum number of created parts of one record: with the record, its accepted ballot and the
/// cell's word they fill a chain.
pub const MAX_CREATED_PARTS: usize = MAX_VERBS - 3;

/// Part of an object that is created with a record, as derived from the record's payload.
#[derive(Clone, Copy, Debug)]
pub enum CreatedPart {
    /// `words` words, from word `from` of the object on, that do not change while this record leads
    /// to the object: copied from a node that has them.
    Copy {
        /// The object.
        place: Location,
        /// First word within the object.
        from: usize,
        /// How many words.
        words: usize,
    },
    /// A control word, set by CAS from 0 so that a late copy erases nothing (I4).
    Set {
        /// The object.
        place: Location,
        /// The word within the object.
        at: usize,
        /// What it is set to.
        value: u64,
    },
}

/// Derives from another client's record what must be at a node before the record is. A proposal holds it
/// as `dyn`, so that a cell's operations are built once for all of them: it is asked only when a record of
/// another client is adopted. `Sync`, because what holds it may go on in another thread.
pub trait CreatedParts: Sync {
    /// Calls `each` for what was created with the record of this payload: at most [`MAX_CREATED_PARTS`]
    /// times, and in the order in which the parts must be written. An object's copies come before
    /// what makes it visible.
    fn created_parts(&self, payload: &[u64], each: &mut dyn FnMut(CreatedPart));
}

/// For cells whose records create no objects.
impl CreatedParts for () {
    fn created_parts(&self, _payload: &[u64], _each: &mut dyn FnMut(CreatedPart)) {}
}

/// A subset of an object's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replicas {
    /// All nodes.
    All,
    /// Its home node.
    Home,
    /// All but its home node.
    Elsewhere,
}

/// Part of an object that is created with a record, with its data.
#[derive(Clone, Copy, Debug)]
pub enum InitialWrite<'a> {
    /// `head`, then `tail`, from word `from` of the object on. Never over a control word (I4).
    Write {
        /// The object.
        place: Location,
        /// First word within the object.
        from: usize,
        /// What to write.
        head: &'a [u64],
        /// What to write after it.
        tail: &'a [u8],
        /// The object's nodes that have this part.
        at: Replicas,
    },
    /// A control word, set by CAS from 0.
    Set {
        /// The object.
        place: Location,
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
    chain
        .push(verb)
        .expect("created parts were counted, and all else fits beside MAX_CREATED_PARTS");
}

/// Returns the address of a record's accepted-ballot word.
pub(super) fn accepted_at(pointer: Pointer) -> Address {
    Location::everywhere(pointer, NodeId(0)).at(NodeId(0), 1).plus(record::ACCEPTED)
}

/// What is created with a record, and where it comes from.
#[derive(Clone, Copy)]
pub(super) enum Created<'a> {
    /// Created by this proposer.
    Here(&'a [InitialWrite<'a>]),
    /// Created by another client; the copies' words were READ one after the other.
    Elsewhere(&'a [CreatedPart], &'a [u64]),
    /// Created by another client, and present at all nodes that are known to matter.
    There,
}

/// A record that is proposed.
pub(super) struct AcceptRequest<'a> {
    /// Where it lies.
    pub(super) pointer: Pointer,
    head: [u64; record::HEADER_WORDS - 1],
    payload: &'a [u64],
    created: Created<'a>,
    /// Whether this round is the first that brings the record to any node.
    pub(super) fresh: bool,
}

impl<'a> AcceptRequest<'a> {
    /// Makes a record of this client, to be built on what `base` names.
    pub(super) fn own(
        pointer: Pointer,
        base: CellWord,
        writer: WriteNumber,
        payload: &'a [u64],
        initial_writes: &'a [InitialWrite<'a>],
    ) -> Self {
        let head = RecordHeader::new(pointer, base, writer, payload).encode();
        Self { pointer, head, payload, created: Created::Here(initial_writes), fresh: true }
    }

    /// Makes a request for another client's record, unchanged. `created` is what was created with it,
    /// and the words to copy, if some node lacks them.
    pub(super) fn adopted(
        pointer: Pointer,
        header: RecordHeader,
        payload: &'a [u64],
        created: Option<(&'a [CreatedPart], &'a [u64])>,
    ) -> Self {
        let created = created.map_or(Created::There, |(created_parts, copies)| {
            Created::Elsewhere(created_parts, copies)
        });
        Self { pointer, head: header.encode(), payload, created, fresh: false }
    }

    /// Returns the record's payload.
    pub(super) fn payload(&self) -> &'a [u64] {
        self.payload
    }

    /// Adds what is created and then the record, but not its accepted ballot, to a node's chain
    /// (S1). Returns false if what is created was not fetched.
    pub(super) fn push_to<'b>(&'b self, chain: &mut Chain<'b>, node: NodeId, n: usize) -> bool {
        match self.created {
            Created::Here(initial_writes) => push_created_parts(initial_writes, chain, node, n),
            Created::Elsewhere(created_parts, copies) => {
                push_copies(created_parts, copies, chain, node, n)
            }
            Created::There => return false,
        }
        let at = accepted_at(self.pointer).plus(record::BODY - record::ACCEPTED);
        push(chain, Verb::Write { at, head: &self.head, tail: self.payload.as_bytes() });
        true
    }

    /// Returns the CAS that raises the record's accepted ballot from `from` to `to`, or back to 0
    /// for a record that no other client knows. C4: by CAS, so that it never falls.
    pub(super) fn raise(&self, from: Ballot, to: Ballot) -> Verb<'static> {
        debug_assert!(from <= to || to == Ballot(0), "an accepted ballot never falls");
        Verb::Cas { at: accepted_at(self.pointer), expect: from.0, new: to.0 }
    }
}

fn push_created_parts<'b>(
    initial_writes: &'b [InitialWrite<'b>],
    chain: &mut Chain<'b>,
    node: NodeId,
    n: usize,
) {
    for just_created in initial_writes {
        match *just_created {
            InitialWrite::Write { place, from, head, tail, at } => {
                if at == Replicas::All || (at == Replicas::Home) == (node == place.home) {
                    push(chain, Verb::Write { at: place.at(node, n).plus(from), head, tail });
                }
            }
            InitialWrite::Set { place, at, value } => {
                push(chain, Verb::Cas { at: place.at(node, n).plus(at), expect: 0, new: value });
            }
        }
    }
}

fn push_copies<'b>(
    created_parts: &'b [CreatedPart],
    mut copies: &'b [u64],
    chain: &mut Chain<'b>,
    node: NodeId,
    n: usize,
) {
    for part in created_parts {
        match *part {
            CreatedPart::Copy { place, from, words } => {
                let (head, rest) = copies.split_at(words);
                copies = rest;
                push(chain, Verb::Write { at: place.at(node, n).plus(from), head, tail: &[] });
            }
            CreatedPart::Set { place, at, value } => {
                push(chain, Verb::Cas { at: place.at(node, n).plus(at), expect: 0, new: value });
            }
        }
    }
}

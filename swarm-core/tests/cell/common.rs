//! A list in a cell. Each change appends a token; each token has an object that is born with it.

use swarm_core::cell::{
    Birth, Births, CellRef, Newborn, Proposal, Proposed, Replicas, View, propose, read,
};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Place, RecordHeader, record};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::Group;
use swarm_core::words::{
    Ballot, CellFlags, CellWord, Incarnation, Pointer, WordFormat, WriteNumber,
};

pub(crate) const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
/// Tokens that a list has room for.
pub(crate) const ROOM: usize = 11;
/// Records that there is memory for.
pub(crate) const RECORDS: u64 = 120;

const CELL: u64 = 1;
const RECORDS_AT: u64 = 8;
const RECORD_GRANULES: u64 = 2;
const OBJECTS_AT: u64 = RECORDS_AT + RECORDS * RECORD_GRANULES;
const OBJECT_HOME: NodeId = NodeId(1);
/// An object away from home: a control word and two words that never change.
const SMALL: usize = 3;

/// The cell, with this home.
pub(crate) fn cell(home: u8) -> CellRef {
    CellRef { place: Place::everywhere(Pointer(CELL), NodeId(home)), room: ROOM }
}

/// Where record number `index` lies.
pub(crate) fn record(index: u64) -> Pointer {
    assert!(index < RECORDS, "the test's memory is used up");
    Pointer(RECORDS_AT + index * RECORD_GRANULES)
}

/// Where the object of `token` lies: one that has a home, so that its address differs by node.
pub(crate) fn object(token: u64) -> Place {
    let index = token % 1000;
    let at = OBJECTS_AT * 8;
    Place {
        pointer: Pointer(OBJECTS_AT + index),
        home: OBJECT_HOME,
        at_home: at + index * 8,
        elsewhere: at + RECORDS * 8 + index * 4,
        stride: RECORDS as u32 * 4,
    }
}

fn content(token: u64) -> [u64; SMALL - 1] {
    [token * 3, token * 5]
}

/// Of a list, only the last token's object is born with it.
pub(crate) struct LastToken;

impl Births for LastToken {
    fn births(&self, payload: &[u64], each: &mut dyn FnMut(Birth)) {
        let Some(&token) = payload.last() else { return };
        let place = object(token);
        each(Birth::Copy { place, from: 1, words: SMALL - 1 });
        each(Birth::Set { place, at: 0, value: token });
    }
}

/// Whether the object of `token` is whole at `node`.
pub(crate) fn is_born(
    token: u64,
    node: NodeId,
    nodes: usize,
    word: impl Fn(Address) -> u64,
) -> bool {
    let at = object(token).at(node, nodes);
    let [one, two] = content(token);
    word(at) == token && word(at.plus(1)) == one && word(at.plus(2)) == two
}

/// A proposal of `tokens`, the last of which is new, as record number `index`.
pub(crate) async fn append<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
    on: &View,
    index: u64,
    change: WriteNumber,
    tokens: &[u64],
) -> Result<Proposed, Error> {
    with_proposal(index, change, tokens, async |proposal| {
        propose(group, at, on, proposal, &LastToken).await
    })
    .await
}

/// Makes the proposal of `tokens` as record number `index`, and proposes it.
pub(crate) async fn with_proposal<T>(
    index: u64,
    change: WriteNumber,
    tokens: &[u64],
    propose: impl AsyncFnOnce(&Proposal<'_>) -> T,
) -> T {
    let token = *tokens.last().expect("a change appends a token");
    let place = object(token);
    let [one, two] = content(token);
    let bytes = two.to_le_bytes();
    let newborns = [
        Newborn::Write { place, from: 1, head: &[one], tail: &bytes, at: Replicas::All },
        Newborn::Write { place, from: 3, head: &[token], tail: &[], at: Replicas::Home },
        Newborn::Set { place, at: 0, value: token },
    ];
    let record = record(index);
    let proposal =
        Proposal { change, record, payload: tokens, newborns: &newborns, sparing: false };
    propose(&proposal).await
}

/// The list, and what its words said.
pub(crate) async fn list<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
) -> Result<(Vec<u64>, View), Error> {
    let found = read(group, at, &LastToken).await?;
    Ok((found.to_vec(), found.view))
}

/// A number for change `counter` of `client`.
pub(crate) fn number(client: usize, counter: u64) -> WriteNumber {
    WriteNumber::new(Incarnation(client as u64 + 1), counter)
}

/// A cell's word.
pub(crate) fn word(ballot: u64, record: Pointer, flags: CellFlags) -> CellWord {
    FORMAT.cell(Ballot(ballot), record, flags)
}

/// Solid and accepted.
pub(crate) fn solid() -> CellFlags {
    CellFlags::SOLID | CellFlags::ACCEPTED
}

/// The word that named what a planted record builds on.
fn base(predecessor: Pointer) -> CellWord {
    if predecessor.is_null() { CellWord(0) } else { word(2, predecessor, solid()) }
}

/// Puts a whole record into a node's memory, as if it had long been there.
pub(crate) fn plant(
    index: u64,
    predecessor: Pointer,
    accepted: u64,
    tokens: &[u64],
    mut set: impl FnMut(Address, u64),
) {
    let at = Place::everywhere(record(index), NodeId(0)).at(NodeId(0), 1);
    let header = RecordHeader::new(record(index), base(predecessor), WriteNumber(index), tokens);
    set(at.plus(record::ACCEPTED), accepted);
    let words = header.encode().into_iter().chain(tokens.iter().copied());
    words.enumerate().for_each(|(i, word)| set(at.plus(record::BODY + i), word));
}

/// Puts the object of `token` into a node's memory.
pub(crate) fn plant_object(
    token: u64,
    node: NodeId,
    nodes: usize,
    mut set: impl FnMut(Address, u64),
) {
    let at = object(token).at(node, nodes);
    set(at, token);
    content(token).into_iter().enumerate().for_each(|(i, word)| set(at.plus(1 + i), word));
}

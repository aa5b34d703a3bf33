//! A list in a cell. Each change appends a token; each token has an object that is created with it.

use swarm_core::cell::{
    CellRef, CreatedPart, CreatedParts, InitialWrite, Proposal, Proposed, Replicas, View, propose,
    read,
};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Location, RecordHeader, record};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::Group;
use swarm_core::words::{
    Ballot, CellFlags, CellWord, Incarnation, Pointer, WordFormat, WriteNumber,
};

pub(crate) const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
/// Maximum number of tokens of a list.
pub(crate) const ROOM: usize = 11;
/// Number of records for which there is memory.
pub(crate) const RECORDS: u64 = 120;

const CELL: u64 = 1;
const RECORDS_AT: u64 = 8;
const RECORD_GRANULES: u64 = 2;
const OBJECTS_AT: u64 = RECORDS_AT + RECORDS * RECORD_GRANULES;
const OBJECT_HOME: NodeId = NodeId(1);
/// An object away from home: a control word and two words that never change.
const SMALL: usize = 3;

/// Returns the cell, with this home.
pub(crate) fn cell(home: u8) -> CellRef {
    CellRef::new(Location::everywhere(Pointer(CELL), NodeId(home)), ROOM)
}

/// Returns where record number `index` lies.
pub(crate) fn record(index: u64) -> Pointer {
    assert!(index < RECORDS, "the test's memory is used up");
    Pointer(RECORDS_AT + index * RECORD_GRANULES)
}

/// Returns where the object of `token` lies: it has a home, so its address differs by node.
pub(crate) fn object(token: u64) -> Location {
    let index = token % 1000;
    let at = OBJECTS_AT * 8;
    Location {
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

/// Only the object of a list's last token is created with it.
pub(crate) struct LastToken;

impl CreatedParts for LastToken {
    fn created_parts(&self, payload: &[u64], each: &mut dyn FnMut(CreatedPart)) {
        let Some(&token) = payload.last() else { return };
        let place = object(token);
        each(CreatedPart::Copy { place, from: 1, words: SMALL - 1 });
        each(CreatedPart::Set { place, at: 0, value: token });
    }
}

/// Returns whether the object of `token` is complete at `node`.
pub(crate) fn is_created(
    token: u64,
    node: NodeId,
    nodes: usize,
    word: impl Fn(Address) -> u64,
) -> bool {
    let at = object(token).at(node, nodes);
    let [one, two] = content(token);
    word(at) == token && word(at.plus(1)) == one && word(at.plus(2)) == two
}

/// Proposes `tokens`, the last of which is new, as record number `index`.
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

/// Makes the proposal of `tokens` as record number `index`, and calls `propose` with it.
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
    let initial_writes = [
        InitialWrite::Write { place, from: 1, head: &[one], tail: &bytes, at: Replicas::All },
        InitialWrite::Write { place, from: 3, head: &[token], tail: &[], at: Replicas::Home },
        InitialWrite::Set { place, at: 0, value: token },
    ];
    let record = record(index);
    let proposal = Proposal {
        change,
        record,
        payload: tokens,
        initial_writes: &initial_writes,
        sparing: false,
    };
    propose(&proposal).await
}

/// Returns the list, and its view.
pub(crate) async fn list<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    at: &CellRef,
) -> Result<(Vec<u64>, View), Error> {
    let found = read(group, at, &LastToken).await?;
    Ok((found.to_vec(), found.view))
}

/// Returns a number for change `counter` of `client`.
pub(crate) fn number(client: usize, counter: u64) -> WriteNumber {
    WriteNumber::new(Incarnation(client as u64 + 1), counter)
}

/// Returns a cell's word.
pub(crate) fn word(ballot: u64, record: Pointer, flags: CellFlags) -> CellWord {
    FORMAT.cell(Ballot(ballot), record, flags)
}

/// Returns the flags confirmed and accepted.
pub(crate) fn confirmed() -> CellFlags {
    CellFlags::CONFIRMED | CellFlags::ACCEPTED
}

/// Returns the word that named the base of a planted record.
fn base(predecessor: Pointer) -> CellWord {
    if predecessor.is_null() { CellWord(0) } else { word(2, predecessor, confirmed()) }
}

/// Puts a complete record into a node's memory, as if it had long been there.
pub(crate) fn plant(
    index: u64,
    predecessor: Pointer,
    accepted: u64,
    tokens: &[u64],
    mut set: impl FnMut(Address, u64),
) {
    let at = Location::everywhere(record(index), NodeId(0)).at(NodeId(0), 1);
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

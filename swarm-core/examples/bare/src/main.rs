//! A register and a cell on three memory nodes, in a program without `std` and `alloc`.
//!
//! One client creates a register and publishes it in a cell. Another one finds it there, and both
//! read and write it, with a node down in the end. `docs/EMBEDDING.md` goes through it.

#![no_std]
#![no_main]

mod fabric;
mod host;

use swarm_core::cell::{self, CellRef, Proposal, Proposed, View};
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::faults::{Faulty, HandSwitches, SwitchState};
use swarm_core::layout::{Identity, Location, Shape, buffer, record, words_for};
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Session};
use swarm_core::register::create::{NewRegister, create};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{Incarnation, Pointer, WordFormat, WriteNumber};

use crate::fabric::Memory;
use crate::host::{Looks, allocate, block_on, print};

/// The nodes: three, of 4 KiB each, and replies of at most 256 bytes.
static MEMORY: Memory<3, 512, 32> = Memory::new();

/// How words are split: pointers to 1,024 granules of 64 bytes, and ticks of a microsecond, which
/// last for 146 years.
const FORMAT: WordFormat = WordFormat { pointer_bits: 10, tick_shift: 10 };

/// The cell, which all clients know: it says which register there is.
const DIRECTORY: Pointer = Pointer(1);
/// The words of its records: a register's pointer, and its identity.
const ENTRY: usize = 3;
/// Granules that have a fixed place: 0, which no pointer names, and the cell.
pub(crate) const FIXED: u64 = 2;

/// The register's key, and room for values of 16 bytes in place.
const KEY: &[u8] = b"color";
const SHAPE: Shape = Shape { key_length: KEY.len(), capacity: 2 };

/// A client: what it knows of the nodes. It belongs to one core.
struct Client<F>(Group<F, Looks>);

impl<F: Fabric> Client<F> {
    /// Makes the client with this number, which no other one has.
    fn new(number: u8, fabric: F) -> Self {
        let incarnation = Incarnation(u64::from(number) + 1);
        let session = Session { client: usize::from(number), incarnation };
        Self(Group::new(fabric, Looks, FORMAT, session))
    }

    /// Returns a number for a write or a change.
    fn number(&self) -> WriteNumber {
        self.0.number().expect("an incarnation has more numbers than there is memory")
    }

    /// Creates the register, and publishes it, unless another client was first. Returns whether it
    /// did.
    async fn create(&self, value: &[u8], on: &View) -> Result<bool, Error> {
        let identity = Identity { created_at: self.0.now(), number: self.number() };
        let place = place(allocate(SHAPE.full_words()));
        let new = NewRegister {
            place,
            identity,
            capacity: SHAPE.capacity,
            key: KEY,
            buffer: allocate(buffer_words(value)),
            value,
        };
        create(&self.0, &new).await?;
        // It is complete at a majority: from here on, others may find it.
        let payload: [u64; ENTRY] = [place.pointer.0, identity.created_at, identity.number.0];
        let (change, record) = (self.number(), allocate(record::HEADER_WORDS + ENTRY));
        let proposal =
            Proposal { change, record, payload: &payload, initial_writes: &[], sparing: false };
        let proposed = cell::propose(&self.0, &directory(), on, &proposal, &()).await?;
        Ok(matches!(proposed, Proposed::Committed(_)))
    }

    /// Returns the register that the directory names.
    async fn find(&self) -> Result<Register, Error> {
        let entry = cell::read(&self.0, &directory(), &()).await?;
        let &[pointer, created_at, number] = &entry[..] else { return Err(Error::Gone) };
        let identity = Identity { created_at, number: WriteNumber(number) };
        Ok(Register::new(place(Pointer(pointer)), identity, SHAPE))
    }

    /// Writes the register.
    async fn write(&self, register: &mut Register, value: &[u8]) -> Result<(), Error> {
        let buffer = allocate(buffer_words(value));
        let write = Write { number: self.number(), buffer, value };
        match SafeGuess::write(&self.0, register, write).await? {
            Written::Done => Ok(()),
            Written::Deleted => Err(Error::Gone),
            // Never, while at most six clients write and none freezes registers.
            Written::Moved(_) => Err(Error::Moved),
        }
    }

    /// Reads the register, and gives `seen` its value.
    async fn read(&self, register: &mut Register, seen: impl FnOnce(&str)) -> Result<(), Error> {
        match SafeGuess::read(&self.0, register, Check::Identity).await? {
            Found::Value(value) => seen(core::str::from_utf8(&value).unwrap_or("not text")),
            Found::Deleted | Found::OtherKey => return Err(Error::Gone),
        }
        Ok(())
    }
}

/// Returns how many words a value takes out of place.
fn buffer_words(value: &[u8]) -> usize {
    buffer::HEADER_WORDS + words_for(value.len())
}

/// Returns where an object lies: at the same address of each node, with its copy in place at node 0.
fn place(pointer: Pointer) -> Location {
    Location::everywhere(pointer, NodeId(0))
}

/// Returns the cell.
fn directory() -> CellRef {
    CellRef::new(place(DIRECTORY), ENTRY)
}

/// Called by [`host`].
fn run() -> Result<(), Error> {
    let switches = HandSwitches::new();
    let one = Client::new(0, &MEMORY);
    let two = Client::new(1, Faulty::new(&MEMORY, &switches));
    block_on(async {
        let before = cell::read(&one.0, &directory(), &()).await?.view;
        assert!(one.create(b"green", &before).await?, "nobody else is here yet");
        // It saw the cell before the first one did: so it is not the first.
        assert!(!two.create(b"violet", &before).await?, "only one of them is first");

        let (mut of_one, mut of_two) = (one.find().await?, two.find().await?);
        two.read(&mut of_two, |color| assert_eq!(color, "green")).await?;
        two.write(&mut of_two, b"blue").await?;
        one.read(&mut of_one, |color| assert_eq!(color, "blue")).await?;
        one.write(&mut of_one, b"a dark sea-green, too long for its place").await?;
        print(format_args!("both clients use the register that the cell names\n"));

        // Node 0 has the copies in place.
        switches.set(NodeId(0), SwitchState::Down);
        two.read(&mut of_two, |color| assert!(color.starts_with("a dark"))).await?;
        two.write(&mut of_two, b"red").await?;
        assert_eq!(two.find().await?.identity, of_one.identity);
        one.read(&mut of_one, |color| {
            assert_eq!(color, "red");
            print(format_args!("written without node 0, and read: {color}\n"));
        })
        .await
    })
}

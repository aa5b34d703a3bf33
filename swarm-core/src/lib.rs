//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
//!
//! Any number of clients share objects that lie in the memory of a few *memory nodes*. A node offers
//! words that are read, written and compared-and-swapped from afar ([`fabric`]), and no more. Two kinds
//! of object are made of that, and both survive the crash of any client and of a minority of the
//! nodes:
//!
//! - a [`register`]: linearizable, wait-free reads and writes, one roundtrip in the common
//!   case ([`safe_guess`]);
//! - a [`cell`]: linearizable read-modify-write, one roundtrip in the common case.
//!
//! The protocols are `async` functions over any [`Fabric`](fabric::Fabric) and any
//! [`Clock`](clock::Clock). They need neither `std` nor `alloc`, no executor and no `unsafe`; only
//! speed depends on the clock. Dropping an operation's future equals a crash of its client at that
//! point.
//!
//! The layers, top to bottom; each uses only what is below it. Sections are those of *SWARM:
//! Replicating Shared Disaggregated-Memory Data in No Time* (SOSP 2024).
//!
//! | file | paper | concept |
//! | --- | --- | --- |
//! | [`cell`] | not in it | replicated compare-and-swap: CASPaxos over words, with fast rounds |
//! | [`abd`], [`raw`] | §7 | the baselines DM-ABD and RAW, behind the same interface |
//! | [`safe_guess`] | §3, A–C | the register: guess a timestamp, settle the rare stale guess |
//! | [`freeze`] | not in it | a register's last value, and which writes are in it, for moves |
//! | `timestamp_lock` | §3, A | whether a guess is returned by readers or replaced by its writer |
//! | `near` | | the common case on near memory, in straight lines |
//! | `max_register` | §3.2 | the reliable max register M over a majority |
//! | [`look`] | A | the weak read: one READ of a majority |
//! | `replicas` | | which replicas vote, and bringing a register to those that lack it |
//! | `in_n_out` | §4 | a max register at one node, by chains that never wait |
//! | [`register`] | | the register as its users see it: [`Protocol`](register::Protocol) |
//! | [`gather`], [`round`] | | votes until there are enough; chains on their way; late nodes |
//! | [`group`] | | a replica group as one client sees it: preferred majorities, suspects |
//! | [`epoch`], [`survey`] | not in it | when memory may be used again; what is garbage |
//! | [`buffers`] | not in it | which nodes hold a buffer, and where |
//! | [`geometry`], `regions` | §4.2 | a pool's numbers; what lies where in a node |
//! | [`layout`], [`class`] | §4.2 | objects, word by word; what a chunk holds |
//! | [`words`] | §4.2 | stamps, cell words, locks, write numbers |
//! | [`fabric`], [`board`] | | verbs and chains: the interface to memory; how clients see each other's operations |
//! | [`error`], [`node`], [`clock`] | | failures; nodes and sets of them; time |
//!
//! Beside the layers: fabrics that wrap another ([`latency`], [`faults`], [`counting`]) and, with the
//! feature `sim`, what tests stand on: `sim` (every word a step, every schedule a seed),
//! `conformance` (the suite for fabrics), `loopback`; with `history` the checker of histories.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "history", feature = "sim"))]
extern crate std;

pub mod abd;
pub mod board;
pub mod buffers;
pub mod cell;
pub mod class;
pub mod clock;
#[cfg(feature = "sim")]
pub mod conformance;
pub mod counting;
pub mod epoch;
pub mod error;
pub mod fabric;
pub mod faults;
pub mod freeze;
pub mod gather;
pub mod geometry;
pub mod group;
#[cfg(feature = "history")]
pub mod history;
pub(crate) mod in_n_out;
pub mod latency;
pub mod layout;
pub mod look;
#[cfg(any(test, feature = "sim"))]
pub mod loopback;
pub(crate) mod max_register;
pub(crate) mod near;
pub mod node;
pub mod raw;
pub(crate) mod regions;
pub mod register;
pub(crate) mod replicas;
pub mod round;
pub mod safe_guess;
#[cfg(feature = "sim")]
pub mod sim;
pub mod survey;
pub(crate) mod timestamp_lock;
pub mod words;

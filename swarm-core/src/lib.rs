//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
//!
//! Any number of clients share objects that lie in the memory of a few *memory nodes*. A node offers
//! words that are read, written and compared-and-swapped from afar ([`fabric`]), and no more. Two kinds
//! of object are made of that, and both survive the crash of any client and of a minority of the
//! nodes:
//!
//! - a [`register`]: linearizable, wait-free reads and writes, one roundtrip in the common
//!   case ([`safe_guess`](register::safe_guess));
//! - a [`cell`]: linearizable read-modify-write, one roundtrip in the common case.
//!
//! The protocols are `async` functions over any [`Fabric`](fabric::Fabric) and any
//! [`Clock`](clock::Clock). They need neither `std` nor `alloc`, no executor and no `unsafe`; only
//! speed depends on the clock. Dropping an operation's future equals a crash of its client at that
//! point.
//!
//! The layers, top to bottom. Each uses only those in rows below its own: `tests/layers.rs` holds the code to this
//! table. Sections are those of *SWARM: Replicating Shared Disaggregated-Memory Data in No Time* (SOSP 2024).
//!
//! | layer | paper | concept |
//! | --- | --- | --- |
//! | [`baselines`] | §7 | DM-ABD and RAW, behind the register's interface |
//! | [`register`], [`cell`] | §3, §4, A–C | wait-free reads and writes; compare-and-swap: CASPaxos over words |
//! | [`quorum`], [`epoch`] | | one client's view of the replicas, rounds, votes; when memory may be used again |
//! | `conformance`, `sim` | | with the feature `sim`: the suite for fabrics; every word a step, every schedule a seed |
//! | `history` | | with the feature of that name: are histories linearizable? |
//! | [`fabric`] | | verbs and chains, the interface to memory; fabrics that wrap another |
//! | [`layout`] | §4.2 | what lies where in a node, and at which nodes; objects, word by word |
//! | [`words`] | §4.2 | stamps, cell words, locks, write numbers |
//! | [`node`], [`error`], [`clock`] | | nodes and sets of them; failures; time |
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "history", feature = "sim"))]
extern crate std;

pub mod baselines;
pub mod cell;
pub mod clock;
#[cfg(feature = "sim")]
pub mod conformance;
pub mod epoch;
pub mod error;
pub mod fabric;
#[cfg(feature = "history")]
pub mod history;
pub mod layout;
pub mod node;
pub mod quorum;
pub mod register;
#[cfg(feature = "sim")]
pub mod sim;
pub mod words;

//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
//!
//! Any number of clients share objects that lie in the memory of a few *memory nodes*. A node
//! offers words that can be read, written and compared-and-swapped remotely ([`fabric`]), and
//! nothing more. Two kinds of object are built on that, and both survive the crash of any client
//! and of a minority of the nodes:
//!
//! - a [`register`]: linearizable, wait-free reads and writes, one roundtrip in the common case
//!   ([`safe_guess`](register::safe_guess));
//! - a [`cell`]: linearizable read-modify-write, one roundtrip in the common case.
//!
//! The protocols are `async` functions over any [`Fabric`](fabric::Fabric) and any
//! [`Clock`](clock::Clock). They need neither `std` nor `alloc`, no executor and no `unsafe`; only
//! speed depends on the clock. Dropping an operation's future equals a crash of its client at that
//! point.
//!
//! A program brings a fabric, a clock, memory that pointers lead to, and something that polls. Here the
//! fabric is [`loopback`](fabric), which is for tests:
//!
//! ```
//! # use core::{future::Future, pin::pin, task::{Context, Poll, Waker}};
//! use swarm_core::clock::Clock;
//! use swarm_core::error::Error;
//! use swarm_core::fabric::loopback::Loopback;
//! use swarm_core::layout::{Identity, Location};
//! use swarm_core::node::NodeId;
//! use swarm_core::quorum::{Group, Session};
//! use swarm_core::register::create::{NewRegister, create};
//! use swarm_core::register::safe_guess::SafeGuess;
//! use swarm_core::register::{Check, Found, Protocol, Write, Written};
//! use swarm_core::words::{Incarnation, Pointer, WordFormat};
//!
//! struct Still;
//! impl Clock for Still {
//!     fn now(&self) -> u64 {
//!         1_000
//!     }
//! }
//!
//! // Three nodes of 8 KiB, as one client sees them.
//! let format = WordFormat { pointer_bits: 7, tick_shift: 10 };
//! let session = Session { client: 0, incarnation: Incarnation(1) };
//! let group = Group::new(Loopback::new(3, 1024), Still, format, session);
//! let number = || group.number().expect("an incarnation has many");
//!
//! let operations = async {
//!     let new = NewRegister {
//!         place: Location::everywhere(Pointer(1), NodeId(0)),
//!         identity: Identity { created_at: group.now(), number: number() },
//!         capacity: 2,
//!         key: b"color",
//!         buffer: Pointer(8),
//!         value: b"green",
//!     };
//!     let mut register = create(&group, &new).await?;
//!     // Each write has memory of its own.
//!     let write = Write { number: number(), buffer: Pointer(9), value: b"blue" };
//!     assert_eq!(SafeGuess::write(&group, &mut register, write).await?, Written::Done);
//!     let found = SafeGuess::read(&group, &mut register, Check::Identity).await?;
//!     assert!(matches!(found, Found::Value(value) if *value == *b"blue"));
//!     Ok::<(), Error>(())
//! };
//! // On this fabric every chain is done when it is posted.
//! let polled = pin!(operations).poll(&mut Context::from_waker(Waker::noop()));
//! assert_eq!(polled, Poll::Ready(Ok(())));
//! ```
//!
//! `docs/EMBEDDING.md` of the repository goes through a whole program without `std`, its fabric, its
//! cell and its memory.
//!
//! The layers, top to bottom. A module uses only modules in rows below its own;
//! the module `layers` of swarm-kv's test `correctness` checks that. Sections (§) are those
//! of *SWARM: Replicating Shared Disaggregated-Memory Data in No Time* (SOSP 2024).
//!
//! | layer | paper | concept |
//! | --- | --- | --- |
//! | [`baselines`] | §7 | DM-ABD and RAW, behind the register's interface |
//! | [`register`], [`cell`] | §3, §4, A–C | wait-free reads and writes; CASPaxos over words |
//! | [`quorum`], [`epoch`] | | one client's replicas, rounds, votes; when memory may be reused |
//! | `conformance`, `sim` | | feature `sim`: the suite for fabrics; the simulator of schedules |
//! | `history` | | feature `history`: are histories linearizable? |
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

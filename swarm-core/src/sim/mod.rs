//! The simulated fabric: protocol code under every schedule that memory nodes allow.
//!
//! A [`Sim`] holds a few memory nodes and clients, in one thread and determined by one seed. Each
//! of these is a step of its own: a word that a verb accesses (those of one READ or WRITE in any
//! order), the delivery of a completion, and a poll of a client's task. The scheduler picks the
//! next step among all that are possible; two runs differ only in what it picks.
//!
//! | file | what |
//! | --- | --- |
//! | `chain` | verbs, word by word |
//! | `world` | nodes' memories, pending chains, completions, time |
//! | `fabric` | a client's view: [`SimFabric`], [`SimClock`] |
//! | `scheduler` | which step is next: weighted actors, or priorities with a few changes |
//! | `chaos` | nodes that crash or are paused, connections that break, clients that die |
//! | `directed` | scripted scenarios, played step by step |
//! | `drops` | operations that are dropped before they end |
//! | [`deaths`] | a client that dies at every await in turn |
//! | [`explore`] | every schedule of a small race |
//! | `script` | what a scheduler decided, to be replayed |
//! | [`seeds`] | how many schedules a test runs, and which |
//! | [`shrink`] | a run that failed, reduced until it can be read |
//! | `trace` | what happened, to be printed for a seed that failed |
//!
//! The simulated fabric does what [`Fabric`](crate::fabric::Fabric) allows and no more: chains of
//! one client to one node take effect in order, all else in any order. In particular a chain whose
//! connection broke may take effect after its completion reported that the node is down.

mod chain;
mod chaos;
pub mod deaths;
mod directed;
mod drops;
pub mod explore;
mod fabric;
mod scheduler;
mod script;
pub mod seeds;
pub mod shrink;
mod trace;
mod world;

pub use chaos::{FaultRates, clock_fits};
pub use drops::dropped_after;
pub use fabric::{SimClock, SimCompletion, SimFabric};
pub use scheduler::{Outcome, Policy, Setup, Sim};
pub use script::{ReplayRules, Script};
pub use trace::{Step, Trace, WordStep};

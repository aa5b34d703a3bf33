//! The simulated fabric: protocol code under every schedule that memory nodes allow.
//!
//! A [`Sim`] holds a few memory nodes and clients, all within one thread and all decided by one
//! seed. Each word that a verb touches is a step of its own (the words of one READ or WRITE in any
//! order), each completion is delivered in a step of its own, and so is each poll of a client's
//! task. The scheduler picks the next step among all that are possible; what it picks is the only
//! thing that differs between two runs.
//!
//! | file | what |
//! | --- | --- |
//! | `chain` | verbs, word by word |
//! | `world` | nodes' memories, chains on their way, completions, time |
//! | `fabric` | a client's view: [`SimFabric`], [`SimClock`] |
//! | `scheduler` | who is next: weighted actors, or priorities with a few changes |
//! | `chaos` | nodes that crash and freeze, connections that break, clients that die |
//! | `directed` | stories played step by step |
//! | `drops` | operations that are dropped half-way |
//! | [`deaths`] | a client that dies at every await in turn |
//! | [`explore`] | every schedule of a small race |
//! | `script` | what a scheduler decided, to be played again |
//! | [`seeds`] | how many schedules a test plays, and which |
//! | [`shrink`] | a run that failed, made so small that it can be read |
//! | `trace` | what happened, to be printed for a seed that failed |
//!
//! What the simulated fabric may do is what [`Fabric`](crate::fabric::Fabric) promises and no more:
//! chains of one client to one node take effect in order, all else in any order. In particular a
//! chain whose connection broke may take effect after its completion said that the node is down.

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

pub use chaos::{Chaos, clock_fits};
pub use drops::dropped_after;
pub use fabric::{SimClock, SimCompletion, SimFabric};
pub use scheduler::{Outcome, Policy, Setup, Sim};
pub use script::{Conduct, Script};
pub use trace::{Step, Trace, WordStep};

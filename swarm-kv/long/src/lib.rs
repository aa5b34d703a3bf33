//! Tests of swarm-kv that compute for long, in `tests`, and what they have in common.
//!
//! They are a package of their own since packages are what Cargo optimises apart: it pays to build them optimised. The
//! store is generic. It is generated for simulated nodes here, once, and not in each of the test programs: without much
//! optimisation the compiler takes what a crate below has generated already.
//!
//! | file | concept |
//! | --- | --- |
//! | [`store_sim_common`] | a store on simulated nodes, and clients of it whose operations are recorded |
//! | [`domain`] | an epoch table for them, which poisons reclaimed memory |
//! | [`lock_history`], [`barrier_history`] | whether a lock, or a barrier, may do what clients saw of it |
//! | [`steps`] | what clients do with an object, in order |

pub mod barrier_history;
pub mod domain;
pub mod lock_history;
pub mod steps;
pub mod store_sim_common;

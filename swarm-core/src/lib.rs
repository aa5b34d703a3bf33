//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "sim"))]
extern crate std;

pub mod abd;
pub mod cell;
pub mod clock;
#[cfg(feature = "sim")]
pub mod conformance;
pub mod counting;
pub mod error;
pub mod fabric;
pub mod faults;
pub mod gather;
pub mod geometry;
pub mod group;
#[cfg(feature = "sim")]
pub mod history;
pub(crate) mod in_n_out;
pub mod latency;
pub mod layout;
pub mod look;
#[cfg(any(test, feature = "sim"))]
pub mod loopback;
pub(crate) mod max_register;
pub(crate) mod near;
pub mod node_set;
pub mod raw;
pub mod register;
pub(crate) mod replicas;
pub mod round;
pub mod safe_guess;
#[cfg(feature = "sim")]
pub mod sim;
pub(crate) mod timestamp_lock;
pub mod words;

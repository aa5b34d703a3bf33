//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "sim"))]
extern crate std;

pub mod clock;
pub mod counting;
pub mod error;
pub mod fabric;
pub mod faults;
pub mod geometry;
pub mod group;
pub mod latency;
pub mod layout;
#[cfg(any(test, feature = "sim"))]
pub mod loopback;
pub mod node_set;
pub mod words;

//! The SWARM protocols: replicated objects in the memory of nodes that run no code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "sim"))]
extern crate std;

pub mod clock;
pub mod error;
pub mod fabric;
pub mod geometry;
pub mod group;
pub mod layout;
pub mod node_set;
pub mod words;

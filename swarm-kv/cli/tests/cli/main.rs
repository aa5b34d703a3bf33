//! The command line, as a shell sees it.

mod bench;
mod common;
mod demo;
mod evict;
mod interrupt;
mod keys;
mod kill;
mod pools;
mod salvage;
mod soak;
mod torture;
mod transfer;

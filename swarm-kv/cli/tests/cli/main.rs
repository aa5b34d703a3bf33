//! The command line, as a shell sees it.

mod backup;
mod bench;
mod common;
mod demo;
mod evict;
mod interrupt;
mod keys;
mod kill;
mod lock;
mod pools;
mod repair;
mod replace;
mod salvage;
mod soak;
mod torture;
mod transfer;
mod verify;

//! The operations on keys.

pub(crate) mod blocking;
pub(crate) mod convert;
pub(crate) mod cursor;
mod delete;
pub(crate) mod expiry;
mod fast_change;
pub(crate) mod fill;
mod get;
pub(crate) mod insert;
pub(crate) mod key_lock;
pub(crate) mod keyed;
mod keys;
pub(crate) mod locate;
mod many;
pub(crate) mod modify;
mod operations;
mod put;
pub(crate) mod relocate;
pub(crate) mod replace;
pub(crate) mod scan;
mod settle;
pub(crate) mod update;
pub(crate) mod verify;
pub(crate) mod version;
pub(crate) mod watch;
mod write_buffer;

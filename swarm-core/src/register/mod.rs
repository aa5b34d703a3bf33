//! The register: what clients know of one, and the protocol of the paper, one of its concepts a file.
//!
//! | file | paper | concept |
//! | --- | --- | --- |
//! | `handle` | | the register as its users see it; the interface of all protocols, [`Protocol`] |
//! | [`safe_guess`] | §3, A–C | guess a timestamp, settle the rare stale guess |
//! | [`freeze`] | not in it | a register's last value, and which writes are in it, for moves |
//! | `timestamp_lock` | §3, A | whether a guess is returned by readers or replaced by its writer |
//! | `near` | | the common case on near memory, in straight lines |
//! | `max_register` | §3.2 | the reliable max register M over a majority |
//! | [`look`] | A | the weak read: one READ of a majority |
//! | `replicas` | | which replicas vote, and bringing a register to those that lack it |
//! | `in_n_out` | §4 | a max register at one node, by chains that never wait |
//! | [`survey`] | not in it | what all nodes show of a register: what is garbage |

pub mod freeze;
mod handle;
pub(crate) mod in_n_out;
pub mod look;
pub(crate) mod max_register;
mod near;
mod replicas;
pub mod safe_guess;
pub mod survey;
mod timestamp_lock;

pub use handle::{Check, Found, Protocol, Register, Seen, Value, Write, Written, read_key};

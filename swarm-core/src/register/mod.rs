//! The register: what clients know of one, and the paper's protocol, with one concept per file.
//!
//! | file | paper | concept |
//! | --- | --- | --- |
//! | `handle` | | the register as its users see it; the interface of all protocols, [`Protocol`] |
//! | [`safe_guess`] | §3, A–C | guess a timestamp, resolve the rare stale guess |
//! | [`freeze`] | not in it | a register's last value, and which writes are in it, for relocations |
//! | `timestamp_lock` | §3, A | whether a guess is returned by readers or replaced by its writer |
//! | [`create`] | | how a register comes into being |
//! | `fast_path` | | the common case on synchronous fabrics, as straight-line code |
//! | `max_register` | §3.2 | the reliable max register M over a majority |
//! | [`weak_read`] | A | the weak read: one READ of a majority |
//! | `replicas` | | which replicas vote, and the backfill of those that lack a register |
//! | `in_n_out` | §4 | a max register at one node, by chains that never wait |
//! | [`read_all`] | not in it | what all nodes show of a register: which buffers are garbage |
//! | [`fill`] | not in it | a register is brought to a node that takes a lost one's place |
//! | [`audit`] | not in it | whether each node has of a register what it should have |

pub mod audit;
pub mod create;
mod fast_path;
pub mod fill;
pub mod freeze;
mod handle;
pub(crate) mod in_n_out;
pub(crate) mod max_register;
pub mod read_all;
mod replicas;
pub mod safe_guess;
mod timestamp_lock;
pub mod weak_read;

pub use handle::{
    Check, Found, Protocol, Register, Seen, Value, Write, Written, read_key, try_read_key,
};

//! A memory node's daemon: its state, its protocol, its server, and requests to all daemons of a
//! pool.

pub(super) mod ended;
pub(super) mod epochs;
pub(super) mod membership;
pub mod protocol;
pub(super) mod quorum;
pub(super) mod server;

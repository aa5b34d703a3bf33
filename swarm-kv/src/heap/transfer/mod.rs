//! Transfer of chunks: taken over from dead clients, stolen from clients that have more than they
//! use, released to the pool, emptied where little is left in them.

pub(super) mod release;
pub(super) mod sparse;
pub(super) mod steal;
pub(super) mod takeover;

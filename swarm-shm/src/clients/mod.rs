//! Client slots: their owners, in which epoch each is, and eviction.

pub(crate) mod epoch_domain;
pub(crate) mod evict;
pub(crate) mod incarnation;
pub(crate) mod list;
pub(crate) mod slot;
pub(crate) mod wait;
pub(crate) mod watch;

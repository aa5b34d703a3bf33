//! Reclamation: objects are retired, wait until no operation can reach them, are zeroed where
//! needed, and are free again.

pub(super) mod free_list;
pub(super) mod object_table;
pub(crate) mod reclaimer;
pub(super) mod remote_free;
mod supersede;
pub(super) mod zeroing;

//! Small commands, and their arguments: a file for each, or for a few of a kind.

pub(crate) mod backup;
pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod evict;
pub(crate) mod gc;
pub(crate) mod import_export;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod lock;
pub(crate) mod memnode;
pub(crate) mod repair;
pub(crate) mod replace;
pub(crate) mod restore;
pub(crate) mod verify;
pub(crate) mod watch;

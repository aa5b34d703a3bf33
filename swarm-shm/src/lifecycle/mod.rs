//! Creating, repairing and destroying pools, replacing a node, and what the host must provide.

pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod file_system;
pub(crate) mod repair;
pub(crate) mod replace;
pub(crate) mod rights;

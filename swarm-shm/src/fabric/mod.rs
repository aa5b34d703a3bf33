//! The fabric over mapped files.

pub(crate) mod reply;
pub(crate) mod shm_fabric;

//! The control plane in etcd: its keys, and keys under a lease.

pub(super) mod lease;
pub(super) mod plane;

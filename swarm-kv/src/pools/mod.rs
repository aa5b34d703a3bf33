//! Clients of pools: in shared memory, and on memory nodes behind RDMA cards.

#[cfg(feature = "rdma")]
pub mod rdma;
pub mod shm;

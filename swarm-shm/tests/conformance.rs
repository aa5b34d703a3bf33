//! The suite that every fabric must pass.

#![cfg(not(loom))]

use std::thread::yield_now;

use swarm_core::conformance::{self, LONGEST, SHORTEST};
use swarm_core::node::Address;
use swarm_shm::{CreateOptions, OpenOptions, Pool};

const BASE: Address = Address(1024);

#[test]
fn mapped_memory_is_a_fabric() {
    for nodes in [1, 3, 7] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options =
            CreateOptions { nodes, capacity: 8 << 20, max_clients: 8, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let other = Pool::open(pool.path(), OpenOptions::default()).expect("the pool is there");
        let make = |client| if client == 0 { pool.fabric() } else { other.fabric() };
        for reply in [SHORTEST, 100, LONGEST] {
            conformance::run(make, BASE, reply, yield_now);
        }
        conformance::race(|_| pool.fabric(), BASE);
    }
}

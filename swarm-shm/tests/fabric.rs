//! The fabric does what the verbs say.

#![cfg(not(loom))]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use swarm_core::fabric::{Address, Fabric, NodeDown, NodeId, Verb};
use swarm_shm::{CreateOptions, OpenOptions, Pool, ShmFabric};

const NODE: NodeId = NodeId(0);
const AT: Address = Address(4096);

fn small() -> CreateOptions {
    CreateOptions { capacity: 8 << 20, max_clients: 8, ..CreateOptions::default() }
}

fn pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pool = Pool::create(dir.path().join("pool"), &small()).expect("a pool");
    (dir, pool)
}

fn post(fabric: &ShmFabric, node: NodeId, chain: &[Verb<'_>]) -> Result<Vec<u64>, NodeDown> {
    let completion = pin!(fabric.post(node, chain));
    match completion.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply.map(|reply| reply.to_vec()),
        Poll::Pending => panic!("chains on mapped memory are complete at once"),
    }
}

#[test]
fn a_chain_takes_effect_in_order() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    let chain = [
        Verb::Read { at: AT, words: 2 },
        Verb::Write { at: AT, head: &[1, 2], tail: &[3, 0, 0, 0, 0, 0, 0, 1, 7] },
        Verb::Cas { at: AT, expect: 1, new: 10 },
        Verb::Cas { at: AT, expect: 1, new: 11 },
        Verb::Read { at: AT, words: 5 },
    ];
    let third = 3 | (1 << 56);
    assert_eq!(post(&fabric, NODE, &chain), Ok(vec![0, 0, 1, 10, 10, 2, third, 7, 0]));
    let elsewhere = post(&fabric, NodeId(1), &[Verb::Read { at: AT, words: 1 }]);
    assert_eq!(elsewhere, Ok(vec![0]));
}

#[test]
fn another_opening_sees_the_same_memory() {
    let (_dir, pool) = pool();
    let other = Pool::open(pool.path(), OpenOptions::default()).expect("the pool is there");
    let write = Verb::Write { at: AT, head: &[], tail: b"shared" };
    post(&pool.fabric(), NODE, &[write]).expect("the node is up");
    let read = post(&other.fabric(), NODE, &[Verb::Read { at: AT, words: 1 }]);
    assert_eq!(read.expect("the node is up")[0].to_le_bytes(), *b"shared\0\0");
}

//! The fabric does what the verbs specify, and nothing if they lie outside of the memory.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::fs;
use std::mem;

use common::{pool, post};
use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_shm::{OpenOptions, Pool};

const NODE: NodeId = NodeId(0);
const AT: Address = Address(4096);

#[test]
fn a_chain_takes_effect_in_order() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    let chain = [
        Verb::Read { at: AT, words: 2 },
        Verb::Write { at: AT, head: &[1, 2], tail: &[3, 0, 0, 0, 0, 0, 0, 1, 7] },
        Verb::Read { at: AT.plus(3), words: 1 },
        Verb::Cas { at: AT, expect: 1, new: 10 },
        Verb::Cas { at: AT, expect: 1, new: 11 },
        Verb::Read { at: AT, words: 5 },
    ];
    let third = 3 | (1 << 56);
    assert_eq!(post(&fabric, NODE, &chain), Ok(vec![0, 0, 7, 1, 10, 10, 2, third, 7, 0]));
    let elsewhere = post(&fabric, NodeId(1), &[Verb::Read { at: AT, words: 1 }]);
    assert_eq!(elsewhere, Ok(vec![0]), "nodes have memories of their own");
}

#[test]
fn a_written_tail_is_filled_up_with_zeros() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    let bytes: Vec<u8> = (1..=24).collect();
    for length in 0..=24 {
        let ones = [u64::MAX; 4];
        let chain = [
            Verb::Write { at: AT, head: &ones, tail: &[] },
            Verb::Write { at: AT, head: &[], tail: &bytes[..length] },
            Verb::Read { at: AT, words: 4 },
        ];
        let found = post(&fabric, NODE, &chain).expect("the node is up");
        let mut expected = [0; 32];
        expected[..length].copy_from_slice(&bytes[..length]);
        expected[length.next_multiple_of(8)..].fill(0xff);
        let found: Vec<u8> = found.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(found, expected, "{length} bytes");
    }
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

#[test]
fn a_dropped_completion_has_taken_effect() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    drop(fabric.post(NODE, &[Verb::Cas { at: AT, expect: 0, new: 5 }]));
    assert_eq!(post(&fabric, NODE, &[Verb::Read { at: AT, words: 1 }]), Ok(vec![5]));
}

#[test]
fn replies_stay_as_they_are_while_others_come_and_go() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    let words: Vec<u64> = (0..131_080).collect();
    post(&fabric, NODE, &[Verb::Write { at: AT, head: &words, tail: &[] }]).expect("it is up");
    let mut held = Vec::new();
    // More than the fabric keeps buffers for, of all lengths.
    for round in 0..3000_usize {
        let length = if round % 100 == 0 { 131_080 - round } else { round % 200 };
        let read = Verb::Read { at: AT.plus(round), words: length };
        let reply = fabric.post(NODE, &[read]).into_inner().expect("the node is up");
        held.push((round, length, reply));
        if round % 3 == 0 {
            held.swap_remove(round / 7 % held.len());
        }
        if round % 50 == 0 {
            mem::forget(held.pop());
        }
    }
    for (round, length, reply) in held {
        assert!(reply.iter().copied().eq(round as u64..(round + length) as u64), "{round}");
    }
}

/// Addresses come from memory that other clients wrote; whatever they are, nothing else is
/// accessed. In debug builds such a verb counts as the caller's bug, so this shows in release
/// builds only.
#[cfg(not(debug_assertions))]
#[test]
fn a_verb_that_leads_nowhere_touches_nothing() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    let end = pool.geometry().capacity / 8;
    let header = fs::read(pool.path().join("node-0")).expect("the node's file")[..4096].to_vec();
    let full = vec![7; 64];
    for at in [0, 1, 511, 512 - 64 + 1, end - 63, end, end + 1, 1 << 61, u64::MAX - 63, u64::MAX] {
        let at = Address(at);
        for verb in [
            Verb::Read { at, words: 64 },
            Verb::Write { at, head: &full, tail: &[] },
            Verb::Write { at, head: &full[1..], tail: &[7] },
        ] {
            assert_eq!(post(&fabric, NODE, &[verb]), Err(NodeDown), "{verb:?}");
        }
    }
    for at in [0, 511, end, u64::MAX].map(Address) {
        assert_eq!(post(&fabric, NODE, &[Verb::Cas { at, expect: 0, new: 7 }]), Err(NodeDown));
    }
    for words in [end as usize, usize::MAX, usize::MAX / 8, usize::MAX - 511] {
        let read = Verb::Read { at: AT, words };
        assert_eq!(post(&fabric, NODE, &[read]), Err(NodeDown), "{words} words");
        assert_eq!(post(&fabric, NODE, &[read, read]), Err(NodeDown), "{words} words");
    }
    assert_eq!(post(&fabric, NodeId(3), &[Verb::Read { at: AT, words: 1 }]), Err(NodeDown));
    assert_eq!(post(&fabric, NodeId(255), &[Verb::Read { at: AT, words: 1 }]), Err(NodeDown));

    let last = Verb::Read { at: Address(end - 1), words: 1 };
    let first = Verb::Read { at: Address(512), words: 1 };
    assert_eq!(post(&fabric, NODE, &[first, last]), Ok(vec![0, 0]), "the edges are there");
    let after = fs::read(pool.path().join("node-0")).expect("the node's file");
    assert_eq!(after[..4096], header);
    assert!(after[4096..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_chain_may_yield_more_than_a_node_holds() {
    let (_dir, pool) = pool();
    let fabric = pool.fabric();
    pool.populate();
    let words = (pool.geometry().capacity / 8 - 512) as usize;
    let read = Verb::Read { at: Address(512), words };
    let reply = post(&fabric, NODE, &[read; 12]).expect("the node is up");
    assert_eq!(reply.len(), 12 * words);
}

#[test]
fn a_missing_node_does_not_answer_and_the_others_do() {
    let (dir, pool) = pool();
    drop(pool);
    let path = dir.path().join("pool");
    fs::remove_file(path.join("node-1")).expect("the node's file");
    let pool = Pool::open(&path, OpenOptions { degraded: true, ..OpenOptions::default() })
        .expect("a majority is there");
    let fabric = pool.fabric();
    assert_eq!(fabric.nodes(), 3);
    let chains: [&[Verb<'_>]; 4] = [
        &[],
        &[Verb::Cas { at: AT, expect: 0, new: 1 }],
        &[Verb::Read { at: AT, words: 1 << 17 }],
        &[Verb::Write { at: AT, head: &[1], tail: &[] }],
    ];
    for chain in chains {
        assert_eq!(post(&fabric, NodeId(1), chain), Err(NodeDown), "{chain:?}");
        assert!(post(&fabric, NodeId(2), chain).is_ok(), "{chain:?}");
    }
}

//! NUMA: a pool's memory lies on the requested nodes of the machine.

#![cfg(all(not(loom), target_os = "linux", target_env = "gnu"))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{post, skipped, small};
use swarm_core::fabric::Verb;
use swarm_core::node::{Address, NodeId};
use swarm_shm::{CreateOptions, Error, Numa, OpenOptions, Pages, Pool};

/// Eight huge pages.
const CAPACITY: u64 = 16 << 20;
const OPENED: OpenOptions = OpenOptions {
    degraded: false,
    pages: Pages::Huge,
    numa: Numa::Default,
    leave_sigbus: false,
    read_only: false,
    evict_stopped: None,
};

fn options(pages: Pages, numa: Numa) -> CreateOptions {
    CreateOptions { nodes: 1, capacity: CAPACITY, pages, numa, ..small() }
}

/// Returns how much of the file at `path` lies on each node of the machine, as far as this process
/// has it mapped.
fn bytes_on_nodes(path: &Path) -> BTreeMap<u32, u64> {
    let file = format!("file={}", path.to_str().expect("text"));
    let mut bytes = BTreeMap::new();
    for line in fs::read_to_string("/proc/self/numa_maps").expect("numa_maps").lines() {
        let words: Vec<_> = line.split(' ').collect();
        if !words.contains(&file.as_str()) {
            continue;
        }
        let field = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        let page: u64 = field("kernelpagesize_kB=").and_then(|k| k.parse().ok()).expect("a size");
        for word in &words {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|on| on.split_once('='))
            else {
                continue;
            };
            let (node, pages): (u32, u64) =
                (node.parse().expect("one"), pages.parse().expect("many"));
            *bytes.entry(node).or_default() += (pages * page) << 10;
        }
    }
    bytes
}

/// Returns the nodes that this machine has. A request for another one lists them.
fn nodes(dir: &Path) -> Result<Vec<u32>, Error> {
    match Pool::create(dir.join("none"), &options(Pages::Touched, Numa::Bind(u32::MAX))) {
        Err(Error::NoNumaNode { node: u32::MAX, nodes }) => Ok(nodes),
        other => Err(other.expect_err("there is no such node")),
    }
}

#[test]
fn a_node_that_is_not_there_is_refused_and_nothing_is_left_behind() {
    let dir = common::directory();
    if let Err(error) = nodes(dir.path()) {
        assert!(matches!(error, Error::NumaRefused { .. }), "{error}");
        return skipped("a_node_that_is_not_there_is_refused", &error.to_string());
    }
    assert!(!dir.path().join("none").exists());
    let path = dir.path().join("pool");
    drop(Pool::create(&path, &options(Pages::Touched, Numa::Default)).expect("a pool"));
    let absent = OpenOptions { numa: Numa::Preferred(u32::MAX), ..OPENED };
    assert!(matches!(Pool::open(&path, absent), Err(Error::NoNumaNode { .. })));
}

/// A guest may have two nodes: `GUEST_MEMORY=1536M GUEST_QEMU="-object
/// memory-backend-ram,id=a,size=768M -object memory-backend-ram,id=b,size=768M -numa
/// node,memdev=a,cpus=0 -numa node,memdev=b,cpus=1" ci/rdma/guest.sh` and this program.
#[test]
fn memory_lies_on_the_nodes_that_it_was_asked_for() {
    let name = "memory_lies_on_the_nodes_that_it_was_asked_for";
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return skipped(name, "no /dev/shm") };
    let nodes = nodes(dir.path()).unwrap_or_default();
    let Some((&last, _)) = nodes.split_last().filter(|(_, others)| !others.is_empty()) else {
        return skipped(name, "this machine has no two NUMA nodes");
    };
    let check = |path: &Path, numa: Numa, what: &str| {
        let bytes = bytes_on_nodes(&path.join("node-0"));
        assert_eq!(bytes.values().sum::<u64>(), CAPACITY, "{what}: {bytes:?}");
        match numa {
            Numa::Interleave => {
                let least = CAPACITY / nodes.len() as u64 / 2;
                assert!(nodes.iter().all(|on| bytes.get(on) >= Some(&least)), "{what}: {bytes:?}");
            }
            _ => assert_eq!(bytes, BTreeMap::from([(last, CAPACITY)]), "{what}"),
        }
    };
    for numa in [Numa::Interleave, Numa::Bind(last), Numa::Preferred(last)] {
        for pages in [Pages::Touched, Pages::Huge] {
            let what = format!("{numa:?} {pages:?}");
            let path = dir.path().join("pool");
            drop(Pool::create(&path, &options(pages, numa)).expect("a pool"));
            let pool = Pool::open(&path, OpenOptions::default()).expect("it is there");
            let all = Verb::Read { at: Address(512), words: (CAPACITY / 8 - 512) as usize };
            post(&pool.fabric(), NodeId(0), &[all]).expect("the node is up");
            check(&path, numa, &what);
            drop(pool);
            Pool::destroy(&path, false).expect("destroyed");
        }
        if numa == Numa::Interleave {
            // Memory on one of its nodes stays there.
            continue;
        }
        // It moves, if no other process has it mapped.
        let what = format!("{numa:?} later");
        let path = dir.path().join("pool");
        drop(Pool::create(&path, &options(Pages::Huge, Numa::Default)).expect("a pool"));
        let pool = Pool::open(&path, OpenOptions { numa, ..OPENED }).expect("it is there");
        check(&path, numa, &what);
        drop(pool);
        Pool::destroy(&path, false).expect("destroyed");
    }
}

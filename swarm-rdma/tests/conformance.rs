//! The suite that every fabric must pass, over real queue pairs.

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::thread::yield_now;

use common::{client, connect, device_address, endpoints, serve};
use swarm_core::conformance::{self, LONGEST};
use swarm_core::node::Address;

const BASE: Address = Address(1024);

#[test]
fn verbs_are_a_fabric() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 3, 4 << 20);
    let endpoints = endpoints(&nodes);
    conformance::run(|slot| connect(client(slot as u32), &endpoints), BASE, LONGEST, yield_now);
    for node in &nodes {
        assert_eq!(node.report().registrations, 1);
    }
}

#[test]
fn clients_race_on_threads_of_their_own() {
    let Some(at) = device_address() else { return };
    let nodes = serve(at, 1, 4 << 20);
    let endpoints = endpoints(&nodes);
    conformance::race(|slot| connect(client(10 + slot as u32), &endpoints), BASE);
}

//! What the tests share.

pub(crate) mod in_time;

use std::env;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::NodeId;
use swarm_rdma::{
    ClientId, ConnectOptions, Endpoint, InstanceId, MemoryNode, PoolId, RdmaFabric, ServeOptions,
    devices,
};

/// The pool that the tests' nodes belong to.
pub(crate) const POOL: PoolId = PoolId(0x5a5a_0000_1111);

/// An address of this host's RDMA device. `None`, with a message, if there is no device: the test
/// is skipped then.
pub(crate) fn device_address() -> Option<IpAddr> {
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error) => {
            assert!(env::var_os("SWARM_RDMA_REQUIRED").is_none(), "{error}");
            eprintln!("SKIPPED, run it by ci/rdma.sh: {error}");
            return None;
        }
    };
    let gids = devices.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    gids.filter_map(|gid| gid.address()).find(IpAddr::is_ipv4)
}

/// Memory nodes of one pool in this process.
pub(crate) fn serve(at: IpAddr, nodes: usize, bytes: u64) -> Vec<MemoryNode> {
    (0..nodes)
        .map(|number| {
            let options = ServeOptions::new(SocketAddr::new(at, 0), bytes);
            let node = MemoryNode::serve(&options).expect("a memory node");
            node.enlist(POOL, NodeId(number as u8));
            node
        })
        .collect()
}

/// Where the nodes are.
pub(crate) fn endpoints(nodes: &[MemoryNode]) -> Vec<Endpoint> {
    nodes.iter().map(|node| Endpoint { address: node.address(), life: Some(node.life()) }).collect()
}

/// A client in a slot of its own.
pub(crate) fn client(slot: u32) -> ClientId {
    ClientId { slot, incarnation: u64::from(slot) + 100 }
}

/// How `client` connects to nodes that stay up. A busy host may withhold the processor from a node for
/// seconds: the device sends a packet again for 7.5 s before the connection counts as lost.
pub(crate) fn options(client: ClientId) -> ConnectOptions {
    let mut options = ConnectOptions::new(POOL, client, 1024);
    options.patience = Duration::from_secs(60);
    options.ack_timeout = 18;
    options.retries = 6;
    options
}

/// A fabric of a client, all of whose nodes are up.
pub(crate) fn connect(client: ClientId, nodes: &[Endpoint]) -> RdmaFabric {
    connect_as(&options(client), nodes)
}

/// The same with options of one's own.
pub(crate) fn connect_as(options: &ConnectOptions, nodes: &[Endpoint]) -> RdmaFabric {
    let fabric = RdmaFabric::connect(options, nodes).expect("a fabric");
    // A fabric does not wait long for the last ones.
    let all_up = || fabric.status().iter().all(|status| status.fault.is_none());
    until("all nodes are up", all_up);
    fabric
}

/// Runs a future to its end. Gives up after a minute in which it polled often: a slow host polls
/// rarely, and gets more time.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let (begun, mut polls) = (Instant::now(), 0);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        polls += 1;
        let is_over = polls > 50_000 && begun.elapsed() > Duration::from_secs(60);
        assert!(!is_over, "a chain does not end");
    }
}

/// Posts a chain and waits for what it yields.
pub(crate) fn post(
    fabric: &RdmaFabric,
    node: u8,
    chain: &[Verb<'_>],
) -> Result<Vec<u64>, NodeDown> {
    wait(fabric.post(NodeId(node), chain)).map(|reply| reply.to_vec())
}

/// Waits until something is so. The bound counts sleeps, which are longer on a busy host.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come: {what}");
}

/// A memory node in a process of its own.
pub(crate) struct Running {
    process: Child,
    endpoint: Endpoint,
}

impl Running {
    /// Starts node `number`, at this port or at any.
    pub(crate) fn start(number: u8, at: IpAddr, port: u16) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env("SWARM_RDMA_NODE", number.to_string());
        command.env("SWARM_RDMA_AT", SocketAddr::new(at, port).to_string());
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let lines = BufReader::new(process.stdout.take().expect("its output"));
        let report = lines.lines().map_while(Result::ok).find_map(|line| {
            let at = line.find("says: ")?;
            Some(line[at + 6..].trim().to_owned())
        });
        let report = report.expect("the child says where it is");
        let (address, life) = report.split_once(' ').expect("two words");
        let life = u128::from_str_radix(life, 16).expect("a number");
        let address = address.parse().expect("an address");
        Self { process, endpoint: Endpoint { address, life: Some(InstanceId(life)) } }
    }

    /// Which node this process is to be, if it is a child.
    pub(crate) fn number() -> Option<u8> {
        env::var("SWARM_RDMA_NODE").ok()?.parse().ok()
    }

    /// Where it is.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it was running");
        self.process.wait().expect("it ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reports to the parent where this node is.
pub(crate) fn report(node: &MemoryNode) {
    println!("says: {} {}", node.address(), node.life());
}

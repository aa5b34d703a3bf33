//! What gets and updates cost over this host's RDMA device: one client, three memory nodes in this
//! process, 2,000 keys of 24 bytes with values of 64, chosen by zipf (0.99), 95 % gets. SWARM,
//! with all stamp slots in use and with one, DM-ABD and RAW take turns, so that what else the machine
//! does meets all of them. What each posted for an operation is counted.
//!
//!     cargo run --release -p swarm-rdma --example latency [ROUNDS]

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use swarm_core::baselines::{DmAbd as Abd, Raw};
use swarm_core::layout::{Geometry, SLOTS};
use swarm_core::node::NodeId;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::words::Incarnation;
use swarm_kv::{Client, Options, block_on};
use swarm_rdma::control::WallClock;
use swarm_rdma::{
    ClientId, ConnectOptions, Endpoint, MemoryNode, PoolId, RdmaFabric, ServeOptions, devices,
};

const KEYS: usize = 2000;
const OPERATIONS: usize = 5000;
const CAPACITY: u64 = 32 << 20;

/// One protocol's store: nodes and a client of their own.
struct Store<P: Protocol> {
    name: String,
    client: Client<RdmaFabric, WallClock, P>,
    _nodes: Vec<MemoryNode>,
    gets: Vec<u64>,
    updates: Vec<u64>,
}

impl<P: Protocol> Store<P> {
    fn new(at: IpAddr, pool: PoolId, slots: usize) -> Result<Self, Box<dyn Error>> {
        let options = ServeOptions::new(SocketAddr::new(at, 0), CAPACITY);
        let nodes: Vec<_> =
            (0..3).map(|_| MemoryNode::serve(&options)).collect::<Result<_, _>>()?;
        for (number, node) in nodes.iter().enumerate() {
            node.enlist(pool, NodeId(number as u8));
        }
        let endpoint = |node: &MemoryNode| Endpoint { address: node.address(), life: None };
        let endpoints: Vec<_> = nodes.iter().map(endpoint).collect();
        let who = ClientId { slot: 0, incarnation: 1 };
        let fabric =
            RdmaFabric::connect(&ConnectOptions::new(pool, who, CAPACITY / 8), &endpoints)?;
        let mut geometry = Geometry::new(3, CAPACITY, 4, 7)?.with_slots(slots)?;
        geometry.format.tick_shift = 10;
        let created = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let clock = WallClock::since(created);
        let client = Client::new(fabric, clock, geometry, session, Options::default());
        let name = if slots < SLOTS { format!("{}/{slots}", P::NAME) } else { P::NAME.to_owned() };
        let store = Self { name, client, _nodes: nodes, gets: Vec::new(), updates: Vec::new() };
        for key in 0..KEYS {
            block_on(store.client.insert(&key_name(key), &[1; 64]))?;
        }
        Ok(store)
    }

    fn turn(&mut self, chance: &mut Chance) -> Result<(), Box<dyn Error>> {
        for _ in 0..OPERATIONS {
            let key = key_name(chance.zipf());
            let is_get = chance.next() < 0.95;
            let begun = Instant::now();
            if is_get {
                block_on(self.client.get(&key))?.ok_or("a key is missing")?;
                self.gets.push(begun.elapsed().as_nanos() as u64);
            } else {
                block_on(self.client.update(&key, &[2; 64]))?;
                self.updates.push(begun.elapsed().as_nanos() as u64);
            }
        }
        Ok(())
    }

    fn report(&mut self) {
        let micros = |times: &mut Vec<u64>, part: f64| {
            times.sort_unstable();
            times[((times.len() - 1) as f64 * part) as usize] as f64 / 1000.0
        };
        let counters = self.client.counters();
        let share = |kind: swarm_kv::KindCounters| {
            kind.roundtrips[1] as f64 / kind.operations.max(1) as f64 * 100.0
        };
        let verbs =
            |kind: swarm_kv::KindCounters| kind.verbs as f64 / kind.operations.max(1) as f64;
        println!(
            "{:8} get {:5.1} µs (p99 {:6.1}), {:.1} % in one roundtrip, {:.2} work requests; \
             update {:5.1} µs (p99 {:6.1}), {:.1} %, {:.2}; widened {}",
            self.name,
            micros(&mut self.gets, 0.5),
            micros(&mut self.gets, 0.99),
            share(counters.get),
            verbs(counters.get),
            micros(&mut self.updates, 0.5),
            micros(&mut self.updates, 0.99),
            share(counters.update),
            verbs(counters.update),
            counters.events.widened,
        );
    }
}

fn key_name(key: usize) -> Vec<u8> {
    format!("{key:024}").into_bytes()
}

/// Chance by a fixed seed.
struct Chance {
    state: u64,
    cumulative: Vec<f64>,
}

impl Chance {
    fn new() -> Self {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=KEYS)
            .map(|rank| {
                sum += (rank as f64).powf(-0.99);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|part| *part /= sum);
        Self { state: 0x9e37_79b9_7f4a_7c15, cumulative }
    }

    fn next(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn zipf(&mut self) -> usize {
        let chance = self.next();
        self.cumulative.partition_point(|&part| part < chance).min(KEYS - 1)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(4), |rounds| rounds.parse::<usize>())?;
    let found = devices()?;
    let gids = found.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    let at = gids
        .filter_map(|gid| gid.address())
        .find(IpAddr::is_ipv4)
        .ok_or("no device has an IPv4 address")?;
    let mut swarm = Store::<SafeGuess>::new(at, PoolId(1), SLOTS)?;
    let mut alone = Store::<SafeGuess>::new(at, PoolId(4), 1)?;
    let mut abd = Store::<Abd>::new(at, PoolId(2), SLOTS)?;
    let mut raw = Store::<Raw>::new(at, PoolId(3), SLOTS)?;
    let mut chance = Chance::new();
    for _ in 0..rounds {
        swarm.turn(&mut chance)?;
        alone.turn(&mut chance)?;
        abd.turn(&mut chance)?;
        raw.turn(&mut chance)?;
    }
    swarm.report();
    alone.report();
    abd.report();
    raw.report();
    Ok(())
}

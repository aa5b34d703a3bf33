//! The control plane: which memory nodes make a pool, and who may act as its client. Two ways to
//! keep that: in etcd, or by the nodes' daemons alone.
//!
//! The data path never comes here: a client that has its [`Seat`] reads and writes through its
//! queue pairs, whatever becomes of etcd and of the daemons' answers. What guards the pool against
//! a client that was given up is the *fence* at the memory nodes (its queue pairs lose their access),
//! never that client's own clock: a client that could not renew its lease goes on until it is
//! fenced, and from then on nothing that it posts takes effect at a majority.
//!
//! | file | concept |
//! | --- | --- |
//! | `error` | what can be wrong |
//! | `record` | what is known of a pool and its nodes |
//! | `address` | pools as a command line names them |
//! | `ledger` | what a memory node's daemon remembers: its pool, the holders of client slots |
//! | `admin` | what is said to a daemon, and how |
//! | `server` | a daemon that answers |
//! | `daemons` | all daemons of a pool, asked together |
//! | `fixed` | the control plane without etcd |
//! | `etcd`, `lease` | the control plane in etcd; keys that go when their holder does |
//! | `seat` | a client slot, held |
//! | `epochs` | when memory may be used again: what daemons remember, and what clients make of it |
//! | `board` | how far a client is, and telling the daemons |
//! | `numbers` | incarnations set aside for when a client's write numbers are used up |
//! | `clock` | the clock that all hosts share, roughly |

mod address;
pub mod admin;
mod board;
mod clock;
mod daemons;
mod epochs;
mod error;
mod etcd;
mod fixed;
mod lease;
mod ledger;
mod numbers;
mod record;
mod seat;
mod server;

use std::net::SocketAddr;

use board::Undertaker;
use numbers::Drawer;

pub use address::{PoolAddress, parse_members, parse_name};
pub use board::FarBoard;
pub use clock::WallClock;
pub use daemons::Evicted;
pub use epochs::{Heard, Said, Standing};
pub use error::Error;
pub use etcd::{Etcd, Registration};
pub use fixed::Fixed;
pub use ledger::{Body, Holder, Ledger, Refusal};
pub use record::{Id, NodeEntry, PoolRecord};
pub use seat::Seat;
pub use server::Server;

/// What a new pool is to be like.
#[derive(Clone, Copy, Debug)]
pub struct PoolWishes {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each node's memory.
    pub capacity: u64,
    /// The most clients at a time.
    pub max_clients: usize,
    /// [Stamp slots in use](swarm_core::layout::Geometry::slots): 6, or fewer.
    pub slots: usize,
}

/// Who keeps what is known of a pool.
pub enum Plane {
    /// etcd, under this name.
    Etcd(Box<Etcd>, String),
    /// The daemons that a file lists.
    Fixed(Fixed),
}

impl Plane {
    /// Turns to whoever keeps the pool at `address`.
    ///
    /// # Errors
    /// etcd does not answer, or the file cannot be used.
    pub fn open(address: &PoolAddress) -> Result<Self, Error> {
        match address {
            PoolAddress::Etcd { members, pool } => {
                Ok(Self::Etcd(Box::new(Etcd::connect(members)?), pool.clone()))
            }
            PoolAddress::Static(file) => Ok(Self::Fixed(Fixed::read(file)?)),
        }
    }

    /// What a command line calls the pool.
    pub fn address(&self) -> String {
        match self {
            Self::Etcd(etcd, pool) => etcd.address(pool),
            Self::Fixed(fixed) => fixed.address(),
        }
    }

    /// The pool.
    ///
    /// # Errors
    /// There is none, or whoever knows does not answer.
    pub fn record(&self) -> Result<PoolRecord, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.record(pool),
            Self::Fixed(fixed) => fixed.record(),
        }
    }

    /// Makes the pool, on memory nodes that belong to none.
    ///
    /// # Errors
    /// There is one, or too few nodes are free, or the wishes contradict each other.
    pub fn create(&self, wishes: &PoolWishes) -> Result<PoolRecord, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.create(pool, wishes),
            Self::Fixed(fixed) => fixed.create(wishes),
        }
    }

    /// Removes the pool: its nodes forget what is in their memory, and belong to none. `force` does
    /// so under live clients, and has etcd forget a pool though too few nodes answer, which is an error all
    /// the same.
    ///
    /// # Errors
    /// There is none, clients use it, or somebody who must know does not answer: without etcd each of its nodes, and those
    /// that do have left it all the same ([`Error::Unreached`]).
    pub fn destroy(&self, force: bool) -> Result<(), Error> {
        if !force {
            let clients = self.clients(&self.record()?)?.len();
            if clients > 0 {
                return Err(Error::InUse { address: self.address(), clients });
            }
        }
        match self {
            Self::Etcd(etcd, pool) => etcd.destroy(pool, force),
            Self::Fixed(fixed) => fixed.destroy(),
        }
    }

    /// Takes the lowest free client slot.
    ///
    /// # Errors
    /// All are taken, or whoever gives them out does not answer.
    pub fn attach(&self, record: &PoolRecord) -> Result<Seat, Error> {
        let (mut seat, undertaker, drawer): (Seat, Undertaker, Drawer) = match self {
            Self::Etcd(etcd, pool) => (
                etcd.attach(pool, record)?,
                etcd.undertaker(pool.clone(), record.clone()),
                etcd.drawer(pool.clone()),
            ),
            // Nobody can tell a dead client from a silent one.
            Self::Fixed(fixed) => (
                Seat::new(fixed.claim(record)?, record.clone(), None),
                Box::new(|_| ()),
                fixed.drawer(record.clone()),
            ),
        };
        seat.speak(undertaker, drawer)?;
        Ok(seat)
    }

    /// How each of the pool's daemons is, in order; what is wrong with those that do not answer, or
    /// are not the pool's any more.
    pub fn statuses(&self, record: &PoolRecord) -> Vec<Result<admin::Status, Error>> {
        daemons::Daemons::of(record).statuses()
    }

    /// Who holds a client slot.
    ///
    /// # Errors
    /// Whoever knows does not answer.
    pub fn clients(&self, record: &PoolRecord) -> Result<Vec<Holder>, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.clients(pool),
            Self::Fixed(fixed) => fixed.clients(record),
        }
    }

    /// Evicts the client in `slot`: fences it at all memory nodes that answer, then frees its slot.
    ///
    /// # Errors
    /// There is no such client, or fewer than a majority of the nodes answered.
    pub fn evict(&self, record: &PoolRecord, slot: usize) -> Result<Evicted, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.evict(pool, record, slot),
            Self::Fixed(fixed) => fixed.evict(record, slot),
        }
    }
}

/// Where a pool's memory nodes are, in order.
pub fn addresses(record: &PoolRecord) -> Vec<SocketAddr> {
    record.nodes.iter().map(|node| node.address).collect()
}

/// Who a process of this host is, for people: `host:pid`.
pub fn label(process: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "host" } else { host.trim() };
    format!("{host}:{process}")
}

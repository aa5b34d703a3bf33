//! The control plane without etcd: a file lists the memory nodes, and a majority of their daemons
//! defines the pool.
//!
//! ```toml
//! nodes = ["10.0.0.1:7471", "10.0.0.2:7471", "10.0.0.3:7471"]
//! ```
//!
//! A client gets its client slot from the daemons. It asks all for their status, and claims the
//! lowest slot that a majority reports as free, with an incarnation above all that they report. It
//! has both once a majority has granted the claim. Each daemon grants a slot to one client at a
//! time and an incarnation once, and any two majorities share a daemon. So no two clients hold one
//! slot, no two have one incarnation, and a client that begins after another had its incarnation
//! gets a larger one. A client that does not reach a majority gives back its claims and retries.
//!
//! Without leases, a dead client cannot be told from a silent one: the client slot of a killed
//! client is held until `swarm evict` fences it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;
use swarm_core::words::WriteNumber;

use super::PoolSpec;
use super::error::Error;
use crate::control::daemon::membership::Holder;
use crate::control::daemon::protocol::{Request, Status, ask, who};
use crate::control::daemon::quorum::{Daemons, Evicted, at_once, holders};
use crate::control::descriptor::{Id, NodeEntry, PoolDescriptor};
use crate::control::incarnations::{BLOCK, DRAW_TRIES, IncarnationSource};

/// Tries of a claim that other clients' claims fail.
const CLAIM_TRIES: u64 = 200;

/// The memory nodes that a file lists.
#[derive(Clone, Debug)]
pub struct StaticPool {
    file: PathBuf,
    nodes: Vec<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Vec<String>,
}

impl StaticPool {
    /// Reads the file.
    ///
    /// # Errors
    /// The file does not exist or is malformed, or two nodes have one address.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let bad = |why: String| Error::File { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file).map_err(|error| {
            bad(format!(
                "cannot be read ({error}); it lists the memory nodes: \
                 nodes = [\"10.0.0.1:7471\", …]"
            ))
        })?;
        let list: File = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let mut nodes: Vec<SocketAddr> = Vec::new();
        for (number, name) in list.nodes.iter().enumerate() {
            let found = name.to_socket_addrs().map_err(|error| bad(format!("{name}: {error}")))?;
            let address =
                found.into_iter().next().ok_or_else(|| bad(format!("{name} has no address")))?;
            if let Some(twin) = nodes.iter().position(|&other| other == address) {
                return Err(bad(format!(
                    "two memory nodes claim {address}: number {twin} (`{}`) and number {number} \
                     (`{name}`)",
                    list.nodes[twin],
                )));
            }
            nodes.push(address);
        }
        if nodes.is_empty() {
            return Err(bad("it lists no memory nodes".to_owned()));
        }
        Ok(Self { file: file.to_owned(), nodes })
    }

    /// Returns the addresses of the memory nodes.
    pub fn nodes(&self) -> &[SocketAddr] {
        &self.nodes
    }

    /// Returns the pool's address as given on a command line.
    pub fn address(&self) -> String {
        format!("rdma:{}", self.file.display())
    }

    /// Returns the pool that a majority of its daemons belongs to.
    ///
    /// # Errors
    /// There is no such pool, or too few daemons answer.
    pub fn record(&self) -> Result<PoolDescriptor, Error> {
        let statuses = at_once(&self.nodes, self.nodes.len() / 2 + 1, who);
        let mut records: Vec<(PoolDescriptor, usize)> = Vec::new();
        for record in statuses.iter().flatten().filter_map(|status| status.pool.as_ref()) {
            match records.iter_mut().find(|(other, _)| other == record) {
                Some((_, count)) => *count += 1,
                None => records.push((record.clone(), 1)),
            }
        }
        if let Some((record, _)) =
            records.iter().find(|(record, count)| *count >= record.majority())
        {
            record.geometry()?;
            return Ok(record.clone());
        }
        let unanswered = statuses.iter().filter(|status| status.is_err()).count();
        if unanswered == 0 && records.is_empty() {
            return Err(Error::NoPool { address: self.address() });
        }
        let why: Vec<String> = statuses.iter().filter_map(Self::excuse).collect();
        let (answered, needed) = (
            records.iter().map(|(_, count)| *count).max().unwrap_or(0),
            records.first().map_or(self.nodes.len() / 2 + 1, |(record, _)| record.majority()),
        );
        Err(Error::Majority { answered, nodes: self.nodes.len(), needed, why: why.join("; ") })
    }

    fn excuse(status: &Result<Status, Error>) -> Option<String> {
        match status {
            Err(error) => Some(error.to_string()),
            Ok(Status { entry, pool: None, .. }) => {
                Some(format!("memory node {} belongs to no pool", entry.address))
            }
            Ok(Status { entry, pool: Some(pool), .. }) => {
                Some(format!("memory node {} belongs to pool {}", entry.address, pool.id))
            }
        }
    }

    /// Returns whether a pool is this file's: the file lists a majority of its nodes. It may list a
    /// few nodes of another pool.
    fn lists(&self, pool: &PoolDescriptor) -> bool {
        let listed = pool.nodes.iter().filter(|node| self.nodes.contains(&node.address));
        listed.count() >= pool.majority()
    }

    /// Creates a pool on the nodes that the file lists.
    ///
    /// # Errors
    /// The pool exists, too few free nodes answer, or the parameters contradict each other.
    pub fn create(&self, wishes: &PoolSpec) -> Result<PoolDescriptor, Error> {
        let address = self.address();
        let mut free: Vec<NodeEntry> = Vec::new();
        let mut others = Vec::new();
        for (status, &address) in
            at_once(&self.nodes, self.nodes.len(), who).into_iter().zip(&self.nodes)
        {
            match status {
                // The daemon may listen on all addresses; the file names the one to use.
                Ok(Status { pool: None, entry, .. }) => free.push(NodeEntry { address, ..entry }),
                Ok(Status { pool: Some(pool), .. }) if self.lists(&pool) => {
                    return Err(Error::Exists { address: self.address(), id: pool.id });
                }
                other => others.extend(Self::excuse(&other)),
            }
        }
        let (wanted, capacity) = (wishes.nodes, wishes.capacity);
        if free.len() < wanted {
            if others.is_empty() {
                others.push("the file lists no others".to_owned());
            }
            let (free, why) = (free.len(), others.join("; "));
            return Err(Error::FewNodes { address, wanted, capacity, free, why });
        }
        free.truncate(wanted);
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let record = PoolDescriptor::new(name, free, wishes)?;
        Daemons::of(&record).join()?;
        Ok(record)
    }

    /// Makes the pool's nodes leave it, also if only some of them belong to it.
    ///
    /// # Errors
    /// No daemon answers, or there is no pool. [`Error::Unreached`] if some of its nodes do not
    /// answer: those that do have left it.
    pub fn destroy(&self) -> Result<(), Error> {
        let statuses = at_once(&self.nodes, self.nodes.len(), who);
        // If the pool was recreated while nodes were unreachable, there may be two.
        let mut pools: Vec<&PoolDescriptor> = Vec::new();
        for pool in statuses.iter().flatten().filter_map(|status| status.pool.as_ref()) {
            if self.lists(pool) && pools.iter().all(|other| other.id != pool.id) {
                pools.push(pool);
            }
        }
        if pools.is_empty() {
            let silent = statuses.into_iter().find_map(Result::err);
            return Err(silent.unwrap_or_else(|| Error::NoPool { address: self.address() }));
        }
        // All nodes of each pool, listed in the file or not: its descriptor names them.
        let released =
            pools.iter().flat_map(|pool| Daemons::of(pool).release_all(pool.nodes.len()));
        let why: Vec<String> =
            released.filter_map(Result::err).map(|error| error.to_string()).collect();
        if why.is_empty() {
            return Ok(());
        }
        Err(Error::Unreached { address: self.address(), why: why.join("; ") })
    }

    /// Takes the lowest free client slot.
    ///
    /// # Errors
    /// All are taken, or too few daemons answer.
    pub fn claim(&self, record: &PoolDescriptor) -> Result<Holder, Error> {
        let daemons = Daemons::of(record);
        for attempt in 0..CLAIM_TRIES {
            let statuses = daemons.statuses();
            daemons.need_majority(&statuses)?;
            let up: Vec<(SocketAddr, &Status)> = record
                .nodes
                .iter()
                .zip(&statuses)
                .filter_map(|(node, status)| Some((node.address, status.as_ref().ok()?)))
                .collect();
            let is_free =
                |status: &Status, slot| status.clients.iter().all(|held| held.slot != slot);
            let free_at = |slot| up.iter().filter(|(_, status)| is_free(status, slot)).count();
            let Some(slot) =
                (0..record.max_clients).find(|&slot| free_at(slot) >= record.majority())
            else {
                return Err(Error::Slots { address: self.address(), limit: record.max_clients });
            };
            let highest = up.iter().map(|(_, status)| status.highest).max().unwrap_or(0);
            if highest >= WriteNumber::LAST_INCARNATION.0 {
                return Err(Error::Incarnations { address: self.address() });
            }
            let client = Holder::new(slot, highest + 1)?;
            let asked = up.iter().filter(|(_, status)| is_free(status, slot));
            if grant(record, asked.map(|(address, _)| *address), &client) {
                return Ok(client);
            }
            let Holder { slot, token, .. } = client;
            daemons.send(&Request::GiveBack { pool: record.id, slot, token });
            back_off(attempt);
        }
        Err(Error::Busy { address: self.address() })
    }

    /// Returns how a client of the pool draws incarnations: above all that a majority reports, and
    /// granted by a majority, as in a claim.
    pub(super) fn incarnation_source(&self, record: PoolDescriptor) -> IncarnationSource {
        let address = self.address();
        Box::new(move || {
            let address = address.clone();
            let daemons = Daemons::of(&record);
            for attempt in 0..DRAW_TRIES {
                let statuses = daemons.statuses();
                daemons.need_majority(&statuses)?;
                let highest = statuses.iter().flatten().map(|status| status.highest).max();
                let first = highest.unwrap_or(0) + 1;
                let drawn = first..first + BLOCK;
                if drawn.end > WriteNumber::LAST_INCARNATION.0 {
                    return Err(Error::Incarnations { address });
                }
                let request = Request::Draw { pool: record.id, drawn: drawn.clone() };
                if daemons.majority(&request).is_ok() {
                    return Ok(drawn);
                }
                back_off(attempt);
            }
            Err(Error::Busy { address })
        })
    }

    /// Returns the clients that hold a client slot, including those that were killed while they
    /// claimed one.
    ///
    /// # Errors
    /// Too few daemons answer.
    pub fn clients(&self, record: &PoolDescriptor) -> Result<Vec<Holder>, Error> {
        let daemons = Daemons::of(record);
        let statuses = daemons.statuses();
        daemons.need_majority(&statuses)?;
        Ok(holders(&statuses).into_iter().map(|(holder, _)| holder).collect())
    }

    /// Evicts the client in a client slot.
    ///
    /// # Errors
    /// No client holds it, or too few daemons answer.
    pub fn evict(&self, record: &PoolDescriptor, slot: usize) -> Result<Evicted, Error> {
        let clients = self.clients(record)?;
        let last = clients.into_iter().rfind(|holder| holder.slot == slot);
        let Some(Holder { incarnation, label, .. }) = last else {
            return Err(Error::NoClient { address: self.address(), slot });
        };
        Daemons::of(record).fence(slot, incarnation, Some(label))
    }
}

/// Releases a client slot.
pub(super) fn release(record: &PoolDescriptor, client: &Holder) {
    let &Holder { slot, token, .. } = client;
    Daemons::of(record).send(&Request::Leave { pool: record.id, slot, token });
}

/// Claims a client slot at one daemon after the other. All clients use the same order, so that one
/// of several concurrent claims succeeds. Returns whether a majority granted it.
fn grant(
    record: &PoolDescriptor,
    daemons: impl Iterator<Item = SocketAddr>,
    client: &Holder,
) -> bool {
    let request = Request::Claim { pool: record.id, client: client.clone() };
    let mut granted = 0;
    for address in daemons {
        match ask(address, &request) {
            Ok(_) => granted += 1,
            // Another client was first.
            Err(Error::Refused { .. }) => break,
            Err(_) => {}
        }
    }
    granted >= record.majority()
}

/// Waits a random time, so that clients that collided do not collide again.
fn back_off(attempt: u64) {
    let chance = Id::random().map_or(attempt, |id| id.0 as u64);
    sleep(Duration::from_millis(1 + chance % (2 + attempt.min(30))));
}

//! The control plane in etcd.
//!
//! ```text
//! /swarm/nodes/NAME                   a memory node: address, life, capacity     under its lease
//! /swarm/pools/POOL/record            the pool descriptor
//! /swarm/pools/POOL/incarnation       the last one granted
//! /swarm/pools/POOL/slots/SLOT        the last incarnation that had the slot
//! /swarm/pools/POOL/clients/SLOT      the client that holds it                   under its lease
//! /swarm/pools/POOL/evictions/SLOT    the last incarnation evicted from it
//! ```
//!
//! A client takes the lowest free client slot and the next incarnation in one transaction. Before
//! it uses the slot, a majority of the daemons has *admitted* it, which fences the earlier
//! incarnations of the slot. One of these may be alive: a client whose lease ended while it was cut
//! off from etcd, and which may not know it.

use std::error::Error as _;
use std::fmt::Display;
use std::future::Future;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, GetOptions, Txn, TxnOp,
};
use serde::de::DeserializeOwned;
use swarm_core::words::WriteNumber;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::control::PoolSpec;
use crate::control::client_slot::ClientSlot;
use crate::control::daemon::membership::Holder;
use crate::control::daemon::protocol::{Request, Status, who};
use crate::control::daemon::quorum::{Daemons, Evicted, at_once};
use crate::control::descriptor::{NodeEntry, PoolDescriptor};
use crate::control::epoch_domain::Reaper;
use crate::control::error::Error;
use crate::control::etcd::lease::{self, Claim, Lease};
use crate::control::incarnations::{BLOCK, DRAW_TRIES, IncarnationSource};

/// The longest time that etcd may take to answer.
pub(in crate::control) const PATIENCE: Duration = Duration::from_secs(3);
/// Tries of a transaction that other clients' changes fail.
const TRIES: usize = 200;

/// A connection to etcd.
pub struct Etcd {
    members: Vec<String>,
    runtime: Mutex<Runtime>,
    client: Client,
}

/// A memory node's registration, which holds its name.
pub struct Registration {
    lease: Lease,
}

impl Registration {
    /// Returns whether another memory node has the name by now: this one's lease ended while it was
    /// stopped or cut off from etcd.
    pub fn is_lost(&self) -> bool {
        self.lease.is_lost()
    }
}

impl Etcd {
    /// Connects to etcd at `members`.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn connect(members: &[String]) -> Result<Self, Error> {
        let runtime = runtime(members)?;
        let client = runtime.block_on(connect(members))?;
        Ok(Self { members: members.to_vec(), runtime: Mutex::new(runtime), client })
    }

    /// Connects to another member, if there are several, because the current one does not answer.
    ///
    /// # Errors
    /// None of them answers.
    pub fn turn_elsewhere(&mut self) -> Result<(), Error> {
        if self.members.len() > 1 {
            *self = Self::connect(&self.members)?;
        }
        Ok(())
    }

    /// Returns a pool's address as given on a command line.
    pub fn address(&self, pool: &str) -> String {
        format!("rdma://{}/{pool}", self.members.join(","))
    }

    /// Takes the exclusive name of a memory node, until the registration is dropped. Waits for the
    /// lease of a former run of the same node to end.
    ///
    /// # Errors
    /// Another memory node has the name; etcd does not answer.
    pub fn register(&self, entry: &NodeEntry) -> Result<Registration, Error> {
        let key = format!("/swarm/nodes/{}", entry.name);
        let give_up = Instant::now() + Duration::from_secs(lease::SECONDS as u64 + 3);
        loop {
            let claim = Claim {
                key: key.clone(),
                value: self.written(&key, entry)?,
                first: Vec::new(),
                beside: Vec::new(),
                again: Vec::new(),
                after: Vec::new(),
            };
            if let Some(lease) = Lease::take(&self.members, claim)? {
                return Ok(Registration { lease });
            }
            let twin: Option<NodeEntry> = self.read(&key)?;
            if let Some(twin) = twin
                && (Instant::now() > give_up || twin.address != entry.address)
            {
                // A node at another address may have died a moment ago; one that answers has not.
                let lives = who(twin.address).is_ok_and(|status| status.entry.life == twin.life);
                if lives || Instant::now() > give_up {
                    let (name, ours, theirs) = (entry.name.clone(), entry.address, twin.address);
                    return Err(Error::Twins { name, ours, theirs });
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the registered memory nodes, by name.
    ///
    /// # Errors
    /// etcd does not answer, or holds an unreadable value.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        self.list("/swarm/nodes/")
    }

    pub(in crate::control) fn record(&self, pool: &str) -> Result<PoolDescriptor, Error> {
        let record: Option<PoolDescriptor> = self.read(&key(pool, "record"))?;
        let record = record.ok_or_else(|| Error::NoPool { address: self.address(pool) })?;
        record.geometry()?;
        Ok(record)
    }

    pub(in crate::control) fn create(
        &self,
        pool: &str,
        wishes: &PoolSpec,
    ) -> Result<PoolDescriptor, Error> {
        let address = self.address(pool);
        let record_key = key(pool, "record");
        if let Some(PoolDescriptor { id, .. }) = self.read(&record_key)? {
            return Err(Error::Exists { address, id });
        }
        let (free, others) = self.free_nodes(wishes.capacity)?;
        let (wanted, capacity) = (wishes.nodes, wishes.capacity);
        if free.len() < wanted {
            let (free, why) = (free.len(), others.join("; "));
            return Err(Error::FewNodes { address, wanted, capacity, free, why });
        }
        let nodes = free.into_iter().take(wanted).collect();
        let record = PoolDescriptor::new(pool.to_owned(), nodes, wishes)?;
        // First in etcd, so that nodes that have joined can be found and released.
        let put = TxnOp::put(record_key.clone(), self.written(&record_key, &record)?, None);
        if !self.txn(vec![absent(&record_key)], vec![put])? {
            let id = self.record(pool)?.id;
            return Err(Error::Exists { address, id });
        }
        if let Err(error) = Daemons::of(&record).join() {
            self.forget(pool)?;
            return Err(error);
        }
        Ok(record)
    }

    /// Returns the registered nodes that belong to no pool, and why the others are not usable.
    fn free_nodes(&self, capacity: u64) -> Result<(Vec<NodeEntry>, Vec<String>), Error> {
        let nodes = self.nodes()?;
        let addresses: Vec<_> = nodes.iter().map(|node| node.address).collect();
        let (mut free, mut others) = (Vec::new(), Vec::new());
        for (node, status) in nodes.into_iter().zip(at_once(&addresses, addresses.len(), who)) {
            let name = &node.name;
            match status {
                Ok(Status { pool: Some(pool), .. }) => {
                    others.push(format!("{name} belongs to pool {}", pool.id));
                }
                Ok(Status { entry, .. }) if entry.capacity < capacity => {
                    others.push(format!("{name} has {} bytes", entry.capacity));
                }
                Ok(Status { entry, .. }) => {
                    free.push(NodeEntry { life: entry.life, capacity: entry.capacity, ..node });
                }
                Err(error) => others.push(error.to_string()),
            }
        }
        if others.is_empty() {
            others.push("no other `swarm memnode` is registered in etcd".to_owned());
        }
        Ok((free, others))
    }

    pub(in crate::control) fn destroy(&self, pool: &str, force: bool) -> Result<(), Error> {
        let (record, address) = (self.record(pool)?, self.address(pool));
        // An unreached minority stays in a pool that etcd no longer lists, until `swarm memnode` is
        // restarted there. S8: until a majority has left, the pool's clients go on, so it is not
        // removed.
        let released = Daemons::of(&record).release();
        let why = match released {
            Ok(()) => return self.forget(pool),
            Err(error) => error.to_string(),
        };
        if !force {
            return Err(Error::NotRemoved { address, why });
        }
        self.forget(pool)?;
        Err(Error::Forgotten { address, why })
    }

    pub(in crate::control) fn attach(
        &self,
        pool: &str,
        record: &PoolDescriptor,
    ) -> Result<ClientSlot, Error> {
        for _ in 0..TRIES {
            let (last, revision) = self.last_incarnation(pool)?;
            if last >= WriteNumber::LAST_INCARNATION.0 {
                return Err(Error::Incarnations { address: self.address(pool) });
            }
            let held = self.clients(pool)?;
            let free = |slot: &usize| held.iter().all(|holder| holder.slot != *slot);
            let Some(slot) = (0..record.max_clients).find(free) else {
                let (address, limit) = (self.address(pool), record.max_clients);
                return Err(Error::Slots { address, limit });
            };
            let holder = Holder::new(slot, last + 1)?;
            let claim = self.claim(pool, &holder, revision)?;
            let Some(lease) = Lease::take(&self.members, claim)? else { continue };
            let request = Request::Admit { pool: record.id, client: holder.clone() };
            // From here on, dropping the seat releases the client slot.
            let client_slot = ClientSlot::new(holder, record.clone(), Some(lease));
            Daemons::of(record).majority(&request)?;
            return Ok(client_slot);
        }
        Err(Error::Busy { address: self.address(pool) })
    }

    /// Returns how a client of the pool draws incarnations.
    pub(in crate::control) fn incarnation_source(&self, pool: String) -> IncarnationSource {
        let members = self.members.clone();
        Box::new(move || Self::connect(&members)?.draw(&pool))
    }

    fn draw(&self, pool: &str) -> Result<Range<u64>, Error> {
        for _ in 0..DRAW_TRIES {
            let (last, revision) = self.last_incarnation(pool)?;
            let end = last + BLOCK;
            if end > WriteNumber::LAST_INCARNATION.0 {
                return Err(Error::Incarnations { address: self.address(pool) });
            }
            let same = incarnations_are_of(pool, revision);
            // A removed pool must leave no key.
            let is_there = Compare::create_revision(key(pool, "record"), CompareOp::NotEqual, 0);
            let put = TxnOp::put(key(pool, "incarnation"), end.to_string(), None);
            if self.txn(vec![same, is_there], vec![put])? {
                return Ok(last + 1..end + 1);
            }
        }
        Err(Error::Busy { address: self.address(pool) })
    }

    fn claim(&self, pool: &str, holder: &Holder, revision: i64) -> Result<Claim, Error> {
        let (slots, clients) = (slot_key(pool, "slots", holder.slot), "clients");
        let incarnation = holder.incarnation.to_string();
        let ours = Compare::value(slots.clone(), CompareOp::Equal, incarnation.clone());
        let key_of_client = slot_key(pool, clients, holder.slot);
        Ok(Claim {
            value: self.written(&key_of_client, holder)?,
            key: key_of_client,
            first: vec![incarnations_are_of(pool, revision)],
            beside: vec![
                TxnOp::put(key(pool, "incarnation"), incarnation.clone(), None),
                TxnOp::put(slots.clone(), incarnation, None),
            ],
            again: vec![ours],
            after: vec![TxnOp::delete(slots, None)],
        })
    }

    /// Returns the last granted incarnation, and its revision.
    fn last_incarnation(&self, pool: &str) -> Result<(u64, i64), Error> {
        let key = key(pool, "incarnation");
        let mut client = self.client.clone();
        let found = self.run(client.get(key.clone(), None))?;
        let Some(found) = found.kvs().first() else { return Ok((0, 0)) };
        let text = found.value_str().unwrap_or_default();
        let last = text.parse().map_err(|_| self.foreign(&key, &"it is no number"))?;
        Ok((last, found.mod_revision()))
    }

    pub(in crate::control) fn clients(&self, pool: &str) -> Result<Vec<Holder>, Error> {
        self.list(&key(pool, "clients/"))
    }

    pub(in crate::control) fn evict(
        &self,
        pool: &str,
        record: &PoolDescriptor,
        slot: usize,
    ) -> Result<Evicted, Error> {
        let held: Option<Holder> = self.read(&slot_key(pool, "clients", slot))?;
        // A client whose lease ended leaves its incarnation here.
        let last: Option<u64> = self.read(&slot_key(pool, "slots", slot))?;
        let label = held.as_ref().map(|holder| holder.label.clone());
        let Some(incarnation) = held.map(|holder| holder.incarnation).or(last) else {
            return Err(Error::NoClient { address: self.address(pool), slot });
        };
        self.evict_life(pool, record, (slot, incarnation), label)
    }

    /// Returns a reaper: it evicts a client that is waited for, if its lease has ended.
    pub(in crate::control) fn reaper(&self, pool: String, record: PoolDescriptor) -> Reaper {
        let members = self.members.clone();
        Box::new(move |slot, incarnation| {
            // A failure is retried as long as the client is waited for.
            let Ok(etcd) = Self::connect(&members) else { return };
            // What a damaged object names must fence no client that is there, nor one that is yet to come: so first
            // whether there was such a client, then whether its slot is held. A later holder of the slot had this
            // client fenced before it began.
            let is_past = etcd.last_incarnation(&pool).is_ok_and(|(last, _)| incarnation <= last);
            let Ok(clients) = etcd.clients(&pool) else { return };
            let is_held = clients.iter().any(|it| it.slot == slot);
            if !is_held && is_past {
                drop(etcd.evict_life(&pool, &record, (slot, incarnation), None));
            }
        })
    }

    fn evict_life(
        &self,
        pool: &str,
        record: &PoolDescriptor,
        (slot, incarnation): (usize, u64),
        label: Option<String>,
    ) -> Result<Evicted, Error> {
        self.note_eviction(pool, record, (slot, incarnation))?;
        let evicted = Daemons::of(record).fence(slot, incarnation, label)?;
        // A client that holds the slot by now is a later one: leave it alone.
        let slots = slot_key(pool, "slots", slot);
        let same = Compare::value(slots.clone(), CompareOp::Equal, incarnation.to_string());
        let clients = slot_key(pool, "clients", slot);
        self.txn(vec![same], vec![TxnOp::delete(slots, None), TxnOp::delete(clients, None)])?;
        Ok(evicted)
    }

    /// Records an eviction, unless one of a later incarnation of the client slot is recorded:
    /// daemons that cannot be reached now use the record, and need the later one.
    fn note_eviction(
        &self,
        pool: &str,
        record: &PoolDescriptor,
        (slot, incarnation): (usize, u64),
    ) -> Result<(), Error> {
        let (pool_key, evictions) = (key(pool, "record"), slot_key(pool, "evictions", slot));
        for _ in 0..TRIES {
            // A removed pool must leave no key, and a recreated one must not get it.
            let (found, made): (Option<PoolDescriptor>, _) = self.read_at(&pool_key)?;
            if found.is_none_or(|found| found.id != record.id) {
                return Err(Error::NoPool { address: self.address(pool) });
            }
            let (last, noted): (Option<u64>, _) = self.read_at(&evictions)?;
            if last.is_some_and(|last| last >= incarnation) {
                return Ok(());
            }
            let same = |key: &str, at| Compare::mod_revision(key, CompareOp::Equal, at);
            let put = TxnOp::put(evictions.clone(), incarnation.to_string(), None);
            if self.txn(vec![same(&pool_key, made), same(&evictions, noted)], vec![put])? {
                return Ok(());
            }
        }
        Err(Error::Busy { address: self.address(pool) })
    }

    /// Returns a pool's recorded evictions: client slot and incarnation. Daemons that could not be
    /// reached at the time use these.
    ///
    /// # Errors
    /// etcd does not answer, or holds an unreadable value.
    pub fn evictions(&self, pool: &str) -> Result<Vec<(usize, u64)>, Error> {
        let prefix = key(pool, "evictions/");
        let mut client = self.client.clone();
        let found = self.run(client.get(prefix.clone(), Some(GetOptions::new().with_prefix())))?;
        let parse = |kv: &etcd_client::KeyValue| {
            let slot = kv.key_str().ok()?.strip_prefix(&prefix)?.parse().ok()?;
            Some((slot, kv.value_str().ok()?.parse().ok()?))
        };
        let bad = || self.foreign(&prefix, &"it is no eviction");
        found.kvs().iter().map(|kv| parse(kv).ok_or_else(bad)).collect()
    }

    fn forget(&self, pool: &str) -> Result<(), Error> {
        let all = DeleteOptions::new().with_prefix();
        self.txn(Vec::new(), vec![TxnOp::delete(key(pool, ""), Some(all))]).map(|_| ())
    }

    fn txn(&self, when: Vec<Compare>, then: Vec<TxnOp>) -> Result<bool, Error> {
        let mut client = self.client.clone();
        let reply = self.run(client.txn(Txn::new().when(when).and_then(then)))?;
        Ok(reply.succeeded())
    }

    fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        self.read_at(key).map(|(value, _)| value)
    }

    /// Returns a key's value and its revision; 0 if the key does not exist.
    fn read_at<T: DeserializeOwned>(&self, key: &str) -> Result<(Option<T>, i64), Error> {
        let mut client = self.client.clone();
        let found = self.run(client.get(key, None))?;
        let Some(kv) = found.kvs().first() else { return Ok((None, 0)) };
        let value =
            serde_json::from_slice(kv.value()).map_err(|error| self.foreign(key, &error))?;
        Ok((Some(value), kv.mod_revision()))
    }

    fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<T>, Error> {
        let mut client = self.client.clone();
        let found = self.run(client.get(prefix, Some(GetOptions::new().with_prefix())))?;
        let read = |kv: &etcd_client::KeyValue| {
            let key = String::from_utf8_lossy(kv.key());
            serde_json::from_slice(kv.value()).map_err(|error| self.foreign(&key, &error))
        };
        found.kvs().iter().map(read).collect()
    }

    fn written(&self, key: &str, value: &impl serde::Serialize) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(value).map_err(|error| self.foreign(key, &error))
    }

    fn foreign(&self, key: &str, why: &dyn Display) -> Error {
        let members = self.members.join(",");
        Error::Foreign { members, key: key.to_owned(), why: why.to_string() }
    }

    fn run<T>(
        &self,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.block_on(within(&self.members, call))
    }
}

fn key(pool: &str, what: &str) -> String {
    format!("/swarm/pools/{pool}/{what}")
}

fn slot_key(pool: &str, what: &str, slot: usize) -> String {
    format!("/swarm/pools/{pool}/{what}/{slot:04}")
}

/// Compares: no incarnation was granted since `revision`.
fn incarnations_are_of(pool: &str, revision: i64) -> Compare {
    Compare::mod_revision(key(pool, "incarnation"), CompareOp::Equal, revision)
}

/// Compares: the key does not exist.
pub(in crate::control) fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

pub(in crate::control) fn failed(members: &[String], why: &dyn Display) -> Error {
    Error::Etcd { members: members.join(","), why: why.to_string() }
}

/// Returns the root cause of an error, such as `Connection refused`: etcd's client quotes the whole
/// chain.
fn plainly(error: &etcd_client::Error) -> String {
    let etcd_client::Error::GRpcStatus(status) = error else { return error.to_string() };
    let Some(mut cause) = status.source() else { return status.message().to_owned() };
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

pub(in crate::control) fn runtime(members: &[String]) -> Result<Runtime, Error> {
    Builder::new_current_thread().enable_all().build().map_err(|error| failed(members, &error))
}

/// Connects to the member that answers first. A client that is given several members spreads its
/// requests over all of them, including dead ones.
pub(in crate::control) async fn connect(members: &[String]) -> Result<Client, Error> {
    let mut asked = JoinSet::new();
    for member in members {
        let (url, members) = (format!("http://{member}"), members.to_vec());
        asked.spawn(async move {
            let options =
                ConnectOptions::new().with_connect_timeout(PATIENCE).with_timeout(PATIENCE);
            let mut client = within(&members, Client::connect([url], Some(options))).await?;
            // A connection does not prove that the member answers, nor that it reaches a majority.
            within(&members, client.get("/swarm/", None)).await?;
            Ok(client)
        });
    }
    let mut why = failed(members, &"no member is named");
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => why = error,
            Err(error) => why = failed(members, &error),
        }
    }
    Err(why)
}

/// Awaits etcd's answer, or returns why there is none.
pub(in crate::control) async fn within<T>(
    members: &[String],
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    match timeout(PATIENCE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(members, &plainly(&error))),
        Err(_) => Err(failed(members, &format_args!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

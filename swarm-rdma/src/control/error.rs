//! Errors of the control plane.

use std::net::SocketAddr;
use std::path::PathBuf;

use swarm_core::layout::BadGeometry;

use crate::control::descriptor::{Id, NodeEntry};

/// Why a request to the control plane failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pool's address is malformed.
    #[error("`{address}` is no pool: {why}; give rdma://ETCD[,ETCD]/POOL or rdma:FILE")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// A file of node addresses cannot be used.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// A pool's parameters contradict each other.
    #[error("{0}")]
    Geometry(#[from] BadGeometry),
    /// A node's memory is too small for the pool.
    #[error(
        "memory node {} at {} has {} bytes, the pool wants {wanted}; start it with a larger \
         --capacity, or create a smaller pool", node.name, node.address, node.capacity
    )]
    SmallNode {
        /// The node.
        node: NodeEntry,
        /// The bytes that the pool needs.
        wanted: u64,
    },
    /// The pool has another layout version.
    #[error("the pool has layout version {found}; this program knows version {known}")]
    Version {
        /// The pool's.
        found: u32,
        /// The program's.
        known: u32,
    },
    /// The pool uses features that this program does not know.
    #[error(
        "the pool uses features that this program does not know (bits {unknown:#x}); use the \
             program that made it, or a newer one"
    )]
    Features {
        /// A bit for each unknown feature.
        unknown: u64,
    },
    /// A memory node's daemon did not answer.
    #[error(
        "memory node {address} does not answer: {why}; is `swarm memnode` running there, and is \
         the way to it open?"
    )]
    Node {
        /// Its address.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
    /// A memory node's daemon refused.
    #[error("memory node {address}: {why}")]
    Refused {
        /// Its address.
        address: SocketAddr,
        /// Its reason.
        why: String,
    },
    /// Too few memory nodes answered.
    #[error("only {answered} of {nodes} memory nodes answered, {needed} are needed: {why}")]
    Majority {
        /// How many answered.
        answered: usize,
        /// How many nodes the pool has.
        nodes: usize,
        /// How many are needed.
        needed: usize,
        /// Why the others did not.
        why: String,
    },
    /// There is no such pool.
    #[error("{address}: there is no such pool; make it with `swarm create {address}`")]
    NoPool {
        /// The pool's address.
        address: String,
    },
    /// The pool exists already.
    #[error("{address} is a pool already (id {id}); `swarm destroy {address}` removes it")]
    Exists {
        /// The pool's address.
        address: String,
        /// The pool's id.
        id: Id,
    },
    /// Too few free memory nodes.
    #[error(
        "{address}: the pool wants {wanted} memory nodes of at least {capacity} bytes that belong \
         to no pool, and there are {free}: {why}"
    )]
    FewNodes {
        /// The pool's address.
        address: String,
        /// How many nodes it wants.
        wanted: usize,
        /// Bytes of each.
        capacity: u64,
        /// How many there are.
        free: usize,
        /// Why the others are not free.
        why: String,
    },
    /// Two memory nodes claim one name.
    #[error(
        "two memory nodes claim the name {name}: the one at {ours} (this one) and the one at \
         {theirs}; give them different names"
    )]
    Twins {
        /// The name.
        name: String,
        /// This one's address.
        ours: SocketAddr,
        /// The other one's address.
        theirs: SocketAddr,
    },
    /// All client slots are taken.
    #[error(
        "all {limit} client slots of {address} are taken; `swarm info` lists their holders, \
         `swarm evict {address} CLIENT` ends one that is gone for good"
    )]
    Slots {
        /// The pool's address.
        address: String,
        /// How many there are.
        limit: usize,
    },
    /// Other clients changed the state first, in every attempt.
    #[error("{address}: others take and end clients as fast as this one asks; try again")]
    Busy {
        /// The pool's address.
        address: String,
    },
    /// The pool's incarnations are used up.
    #[error(
        "{address}: all incarnations are used up; export the pool and import it into a new one"
    )]
    Incarnations {
        /// The pool's address.
        address: String,
    },
    /// No such client.
    #[error("{address} has no client {slot}; `swarm info` lists them")]
    NoClient {
        /// The pool's address.
        address: String,
        /// The slot.
        slot: usize,
    },
    /// A pool was not removed: too few memory nodes have left it.
    #[error(
        "{address} is not removed: {why}; destroy it again when they answer, or with --force: then \
         etcd forgets it at once, and those that were not reached do when they are started again"
    )]
    NotRemoved {
        /// The pool's address.
        address: String,
        /// What happened at the nodes.
        why: String,
    },
    /// A pool was removed from etcd, but too few memory nodes have left it.
    #[error(
        "etcd has forgotten {address}, but {why}; those that were not reached serve its clients until \
         `swarm memnode` is started again there"
    )]
    Forgotten {
        /// The pool's address.
        address: String,
        /// What happened at the nodes.
        why: String,
    },
    /// Some nodes of a removed pool were not reached.
    #[error(
        "{address}: the memory nodes that answered have left the pool, but {why}; one that was not reached \
         serves the pool's clients until `swarm memnode` is started again there, or it is destroyed again with --force \
         when that node answers"
    )]
    Unreached {
        /// The pool's address.
        address: String,
        /// What happened at the nodes.
        why: String,
    },
    /// Clients use the pool.
    #[error("{address} is in use by {clients} client(s); --force destroys it under them")]
    InUse {
        /// The pool's address.
        address: String,
        /// How many clients.
        clients: usize,
    },
    /// etcd did not answer, or returned an error.
    #[error(
        "etcd at {members}: {why}; is it running there (`etcdctl --endpoints {members} endpoint \
         health`)?"
    )]
    Etcd {
        /// Its members.
        members: String,
        /// What happened.
        why: String,
    },
    /// A key in etcd holds a value that cannot be read.
    #[error("etcd at {members} holds {key}, which cannot be read: {why}")]
    Foreign {
        /// Its members.
        members: String,
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// The system has no random numbers.
    #[error("cannot draw random numbers: {0}")]
    Random(String),
    /// A daemon cannot listen.
    #[error("cannot listen on {address}: {why}; is another `swarm memnode` running there?")]
    Listen {
        /// Its address.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
}

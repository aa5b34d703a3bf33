//! What can be wrong with the control plane.

use std::net::SocketAddr;
use std::path::PathBuf;

use swarm_core::layout::BadGeometry;

use super::record::{Id, NodeEntry};

/// Why the control plane could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pool's address that is none.
    #[error("`{address}` is no pool: {why}; give rdma://ETCD[,ETCD]/POOL or rdma:FILE")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// A file of node addresses that cannot be used.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The numbers of a pool contradict each other.
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
        /// Bytes.
        wanted: u64,
    },
    /// A pool of another version.
    #[error("the pool has layout version {found}; this program knows version {known}")]
    Version {
        /// The pool's.
        found: u32,
        /// The program's.
        known: u32,
    },
    /// A pool that uses something that this program does not know.
    #[error(
        "the pool uses features that this program does not know (bits {unknown:#x}); use the \
             program that made it, or a newer one"
    )]
    Features {
        /// A bit for each that is not known.
        unknown: u64,
    },
    /// A memory node's daemon did not answer.
    #[error(
        "memory node {address} does not answer: {why}; is `swarm memnode` running there, and is \
         the way to it open?"
    )]
    Node {
        /// Where.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
    /// A memory node's daemon refused.
    #[error("memory node {address}: {why}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// Its words.
        why: String,
    },
    /// Too few memory nodes answered.
    #[error("only {answered} of {nodes} memory nodes answered, {needed} are needed: {why}")]
    Majority {
        /// How many did.
        answered: usize,
        /// Of how many.
        nodes: usize,
        /// How many would do.
        needed: usize,
        /// What became of the others.
        why: String,
    },
    /// There is no such pool.
    #[error("{address}: there is no such pool; make it with `swarm create {address}`")]
    NoPool {
        /// The pool's address.
        address: String,
    },
    /// There is such a pool already.
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
        /// How many it wants.
        wanted: usize,
        /// Bytes of each.
        capacity: u64,
        /// How many there are.
        free: usize,
        /// What of the others.
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
    /// What was to be changed others changed first, every time.
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
    /// A pool that was to be removed is there: too few memory nodes have forgotten it.
    #[error(
        "{address} is not removed: {why}; destroy it again when they answer, or with --force: then \
         etcd forgets it at once, and those that were not reached do when they are started again"
    )]
    NotRemoved {
        /// The pool's address.
        address: String,
        /// What became of the nodes.
        why: String,
    },
    /// A pool is in no list any more, but too few memory nodes have forgotten it.
    #[error(
        "etcd has forgotten {address}, but {why}; those that were not reached serve its clients until \
         `swarm memnode` is started again there"
    )]
    Forgotten {
        /// The pool's address.
        address: String,
        /// What became of the nodes.
        why: String,
    },
    /// Some nodes of a pool that was removed did not hear of it.
    #[error(
        "{address}: the memory nodes that answered have left the pool, but {why}; one that was not reached \
         serves the pool's clients until `swarm memnode` is started again there, or it is destroyed again with --force \
         when that node answers"
    )]
    Unreached {
        /// The pool's address.
        address: String,
        /// What became of the nodes.
        why: String,
    },
    /// Clients use the pool.
    #[error("{address} is in use by {clients} client(s); --force destroys it under them")]
    InUse {
        /// The pool's address.
        address: String,
        /// How many.
        clients: usize,
    },
    /// etcd did not answer, or said something that nobody expects.
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
    /// Something in etcd that is not ours.
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
        /// Where.
        address: SocketAddr,
        /// What happened.
        why: String,
    },
}

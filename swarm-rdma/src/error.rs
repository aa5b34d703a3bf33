//! Errors of options, devices and nodes.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use swarm_core::node::NodeId;

use crate::handshake::{ClientId, InstanceId, PoolId, TRANSPORT_VERSION};

/// Why a fabric or a memory node could not be set up. Later failures of single nodes are
/// [`Fault`]s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no RDMA device.
    #[error(
        "there is no RDMA device on this host ({why}); load the card's driver, or for Soft-RoCE \
             `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev INTERFACE`; `swarm doctor` says more"
    )]
    NoDevice {
        /// The error of libibverbs.
        why: String,
    },
    /// There is no device of that name.
    #[error("there is no RDMA device {name}; this host has {}", there.join(", "))]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// The host's devices.
        there: Vec<String>,
    },
    /// No port of a device is usable.
    #[error("{device}: {why}")]
    Port {
        /// The device, with its port if one was requested.
        device: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A GID index is not usable.
    #[error("{device}: GID index {index}: {why}")]
    Gid {
        /// The device and port.
        device: String,
        /// The requested index.
        index: u8,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A call to a device failed.
    #[error("{device}: cannot {action}: {source}")]
    Device {
        /// The device.
        device: String,
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process may not lock as much memory as a registration needs.
    #[error(
        "{device}: registering {bytes} bytes needs them locked in memory, and the limit is \
             {limit} bytes; raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit)"
    )]
    Memlock {
        /// The device.
        device: String,
        /// Bytes to register.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// The device refused to register memory of this size.
    #[error(
        "{device}: cannot register {bytes} bytes: {source}; the device takes at most {limit} \
             bytes at a time: choose a smaller capacity"
    )]
    Registration {
        /// The device.
        device: String,
        /// Bytes to register.
        bytes: u64,
        /// The largest registration that the device reports.
        limit: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Memory could not be allocated.
    #[error("{bytes} bytes of memory are not to be had: {source}; choose a smaller capacity")]
    Memory {
        /// Bytes to allocate.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A file or DAX device cannot be a node's memory.
    #[error("{}: cannot be a node's memory: {why}", file.display())]
    File {
        /// The file or device.
        file: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The connection manager does not work.
    #[error("the RDMA connection manager cannot be used: {source}; is the module rdma_ucm loaded?")]
    Manager {
        /// The system's error.
        source: io::Error,
    },
    /// An address cannot be bound or served.
    #[error("{address}: cannot {action}: {source}; {}", address_advice(source))]
    Address {
        /// The address.
        address: SocketAddr,
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Options are out of range or contradict each other.
    #[error("{0}")]
    Options(String),
    /// A system call that does not concern the device failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns what to do about an address that was refused.
fn address_advice(refused: &io::Error) -> &'static str {
    match refused.kind() {
        io::ErrorKind::AddrInUse => "is another `swarm memnode` running there?",
        _ => "it must be an address of an RDMA device's network interface",
    }
}

/// Why a client has no connection to a node. Until it has one, the node is a missing vote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Not tried yet.
    #[error("memory node {address}: not connected yet")]
    NotYet {
        /// The node's address.
        address: SocketAddr,
    },
    /// The node does not answer.
    #[error("memory node {address}: {why}; is it running, and does the device reach it?")]
    Unreachable {
        /// The node's address.
        address: SocketAddr,
        /// The stage that failed, and the system's error.
        why: String,
    },
    /// The connection was lost.
    #[error("memory node {address}: the connection was lost: {why}")]
    Lost {
        /// The node's address.
        address: SocketAddr,
        /// The device's error.
        why: String,
    },
    /// Another service listens at the address.
    #[error("memory node {address}: something else than a SWARM memory node listens there")]
    Foreign {
        /// The address.
        address: SocketAddr,
    },
    /// The node speaks another version.
    #[error(
        "memory node {address}: speaks version {version}, this client {TRANSPORT_VERSION}; \
             run the same version everywhere"
    )]
    Version {
        /// The node's address.
        address: SocketAddr,
        /// The node's version.
        version: u32,
    },
    /// The node belongs to no pool.
    #[error(
        "memory node {address}: belongs to no pool; a node that was started again has lost what \
             it held"
    )]
    NoPool {
        /// The node's address.
        address: SocketAddr,
    },
    /// The node belongs to another pool.
    #[error("memory node {address}: belongs to pool {found}, not to {wanted}")]
    OtherPool {
        /// The node's address.
        address: SocketAddr,
        /// Its pool.
        found: PoolId,
        /// The requested pool.
        wanted: PoolId,
    },
    /// The node has another number in the pool.
    #[error(
        "memory node {address}: is {found} of its pool, not {wanted}; the addresses are mixed up"
    )]
    OtherNode {
        /// The node's address.
        address: SocketAddr,
        /// Its number.
        found: NodeId,
        /// The requested number.
        wanted: NodeId,
    },
    /// The node was restarted and has lost its memory.
    #[error(
        "memory node {address}: was started again and has lost what it held (life {found}, \
             known as {known}); replace it"
    )]
    Reborn {
        /// The node's address.
        address: SocketAddr,
        /// Its instance id.
        found: InstanceId,
        /// The instance id in the pool's descriptor.
        known: InstanceId,
    },
    /// The node has less memory than the pool needs.
    #[error("memory node {address}: has {found} words of memory, the pool's nodes have {needed}")]
    Small {
        /// The node's address.
        address: SocketAddr,
        /// Its words.
        found: u64,
        /// The words that the pool needs.
        needed: u64,
    },
    /// This client was evicted.
    #[error("memory node {address}: {client} was evicted; open a new client")]
    Fenced {
        /// The node's address.
        address: SocketAddr,
        /// The evicted client.
        client: ClientId,
    },
    /// The node cannot take another connection.
    #[error("memory node {address}: takes no more connections")]
    Exhausted {
        /// The node's address.
        address: SocketAddr,
    },
    /// This host's device failed.
    #[error("memory node {address}: this host's device cannot connect: {why}")]
    Local {
        /// The node's address.
        address: SocketAddr,
        /// What failed.
        why: String,
    },
}

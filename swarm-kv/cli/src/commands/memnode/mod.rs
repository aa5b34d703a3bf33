//! `swarm memnode`, which a build without RDMA knows, and refuses.

#[cfg(feature = "rdma")]
mod daemon;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

#[cfg(not(feature = "rdma"))]
use crate::common::exit::{Answer, Failure};
use crate::common::units::{parse_duration, parse_size};

#[cfg(feature = "rdma")]
pub(crate) use self::daemon::run;

pub(crate) const HELP: &str = "It prints a line that begins with `ready` once clients can come, and runs no \
code for their operations. When it ends, what it held is lost, and it never passes for the one that \
it was.

Examples:
  swarm memnode --listen 10.0.0.1:7471 --capacity 4GiB --etcd 10.0.0.9:2379 --name a
  swarm memnode --listen 10.0.0.1:7471 --capacity 4GiB --static nodes.toml
  with nodes.toml:  nodes = [\"10.0.0.1:7471\", \"10.0.0.2:7471\", \"10.0.0.3:7471\"]";

#[derive(Args, Debug)]
pub(crate) struct MemnodeArgs {
    /// Where to listen: an address of the RDMA device's network interface, as in 10.0.0.1:7471
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    /// Memory to give
    #[arg(long, value_parser = parse_size)]
    pub(crate) capacity: u64,
    /// Take the memory from this file or DAX device, which is erased [default: anonymous memory]
    #[arg(long, value_name = "FILE")]
    pub(crate) memory: Option<PathBuf>,
    /// Register in etcd, at host:port,…
    #[arg(long, value_name = "MEMBERS", conflicts_with = "static_file", requires = "name")]
    pub(crate) etcd: Option<String>,
    /// The node's name in etcd; no two nodes may have the same
    #[arg(long, requires = "etcd")]
    pub(crate) name: Option<String>,
    /// The file that lists the memory nodes, this one among them
    #[arg(long = "static", value_name = "FILE", required_unless_present = "etcd")]
    pub(crate) static_file: Option<PathBuf>,
    /// How often to report how it is, if anything has changed
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub(crate) report: Duration,
}

/// Fails: this build cannot be a memory node.
#[cfg(not(feature = "rdma"))]
pub(crate) fn run(_: &MemnodeArgs, _json: bool) -> Result<Answer, Failure> {
    Err(Failure::Failed(swarm_worker::pool::NO_RDMA.to_owned()))
}

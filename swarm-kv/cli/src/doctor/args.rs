//! What `swarm doctor` takes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::common::args::HIDDEN;
use crate::common::units::parse_size;

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A pool to look at as well
    pub(crate) pool: Option<PathBuf>,
    /// Look at what RDMA needs instead; so do --etcd, --node and --static
    #[arg(long, hide = HIDDEN)]
    pub(crate) rdma: bool,
    /// etcd's members, host:port,…
    #[arg(long, value_name = "MEMBERS", hide = HIDDEN)]
    pub(crate) etcd: Option<String>,
    /// A memory node's address; may be given several times
    #[arg(long, value_name = "ADDR", hide = HIDDEN)]
    pub(crate) node: Vec<SocketAddr>,
    /// The file that lists the memory nodes
    #[arg(long = "static", value_name = "FILE", hide = HIDDEN)]
    pub(crate) static_file: Option<PathBuf>,
    /// Memory of each node: of one that this host would register, or of three in shared memory
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub(crate) capacity: u64,
}

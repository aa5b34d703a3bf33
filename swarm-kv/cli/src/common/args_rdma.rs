//! What the command line takes for memory nodes behind RDMA cards.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::common::units::{parse_duration, parse_size};

/// Whether a build without RDMA keeps something out of its help.
pub(crate) const HIDDEN: bool = !cfg!(feature = "rdma");

/// The RDMA device to use.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// RDMA device, as in mlx5_0 [default: the first with an active port]
    #[arg(long, global = true, env = "SWARM_DEVICE", hide_env_values = true, hide = HIDDEN)]
    pub(crate) device: Option<String>,
    /// Port of the RDMA device [default: the first active one]
    #[arg(long, global = true, env = "SWARM_PORT", hide_env_values = true, hide = HIDDEN)]
    pub(crate) port: Option<u8>,
    /// GID index of the port [default: RoCE v2 over IPv4 where there is one]
    #[arg(long, global = true, env = "SWARM_GID_INDEX", hide_env_values = true, hide = HIDDEN)]
    pub(crate) gid_index: Option<u8>,
    /// For how long a memory node may be silent before this client does without it [default: 70ms]
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        env = "SWARM_NODE_TIMEOUT",
        hide_env_values = true,
        hide = HIDDEN,
        value_parser = parse_duration
    )]
    pub(crate) node_timeout: Option<Duration>,
}

impl DeviceArgs {
    /// The same as the library takes it.
    #[cfg(feature = "rdma")]
    pub(crate) fn choice(&self) -> swarm_kv::rdma::DeviceChoice {
        let &Self { ref device, port, gid_index, .. } = self;
        swarm_kv::rdma::DeviceChoice { device: device.clone(), port, gid_index }
    }

    /// The same for a process of this program, in its environment.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let number = |number: u8| number.to_string();
        [
            ("SWARM_DEVICE", self.device.clone()),
            ("SWARM_PORT", self.port.map(number)),
            ("SWARM_GID_INDEX", self.gid_index.map(number)),
            ("SWARM_NODE_TIMEOUT", self.node_timeout.map(|time| format!("{}ns", time.as_nanos()))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

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

#[derive(Args, Debug)]
pub(crate) struct EvictArgs {
    /// The pool
    pub(crate) pool: PathBuf,
    /// The client's slot, as `swarm info POOL` lists it
    #[arg(required_unless_present = "stopped_for")]
    pub(crate) client: Option<usize>,
    /// Instead: watch for so long, and end each client that was stopped in the middle of an operation
    /// all the while
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "client")]
    pub(crate) stopped_for: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A pool to look at as well
    pub(crate) pool: Option<PathBuf>,
    /// Look at what RDMA needs instead; so do --etcd, --node and --static
    #[arg(long)]
    pub(crate) rdma: bool,
    /// etcd's members, host:port,…
    #[arg(long, value_name = "MEMBERS")]
    pub(crate) etcd: Option<String>,
    /// A memory node's address; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub(crate) node: Vec<SocketAddr>,
    /// The file that lists the memory nodes
    #[arg(long = "static", value_name = "FILE")]
    pub(crate) static_file: Option<PathBuf>,
    /// Memory of each node: of one that this host would register, or of three in shared memory
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub(crate) capacity: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use crate::common::args::Cli;

    /// A build without RDMA offered what it then refused.
    #[test]
    fn help_lists_only_what_this_build_can_do() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("--json") && help.contains("torture"), "{help}");
        for option in ["--device", "--port", "--gid-index", "--node-timeout", "memnode"] {
            assert_eq!(help.contains(option), cfg!(feature = "rdma"), "{option}: {help}");
        }
    }
}

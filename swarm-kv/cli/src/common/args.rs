//! Arguments of several commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::common::units::parse_duration;

/// Whether a build without RDMA keeps something out of its help.
pub(crate) const HIDDEN: bool = !cfg!(feature = "rdma");

/// A pool that is there.
#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Go on without memory nodes whose files are missing, damaged or another's, as long as a majority is there
    #[arg(long)]
    pub(crate) degraded: bool,
}

/// A pool that is there, for a command that changes nothing.
#[derive(Args, Debug)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Write nothing into the pool's files and take no client slot, as for a user who may only read them; fails where a key is changed
    /// all the time, or was left half changed
    #[arg(long)]
    pub(crate) read_only: bool,
}

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

/// The number of memory nodes of a pool.
pub(crate) fn parse_nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes @ (1 | 3 | 5 | 7)) => Ok(nodes),
        _ => Err("a pool has 1, 3, 5 or 7 memory nodes".to_owned()),
    }
}

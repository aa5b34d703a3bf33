//! What commands share: arguments, how a pool is opened, what is printed, how a command ends.

pub(crate) mod args;
pub(crate) mod busy;
pub(crate) mod cleanup;
pub(crate) mod counterexample;
pub(crate) mod escape;
pub(crate) mod exit;
pub(crate) mod hot_keys;
pub(crate) mod kinds;
pub(crate) mod limits;
pub(crate) mod lines;
pub(crate) mod node_faults;
pub(crate) mod output;
pub(crate) mod pace;
pub(crate) mod pool;
pub(crate) mod signals;
pub(crate) mod temporary;
pub(crate) mod units;
pub(crate) mod verdict;

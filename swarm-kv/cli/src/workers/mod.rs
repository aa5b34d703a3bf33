//! Workers: clients in threads or processes of their own, with the command as parent.

pub(crate) mod process;
pub(crate) mod set;

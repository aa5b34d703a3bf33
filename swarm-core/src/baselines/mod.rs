//! The baselines that the paper measures against (§7), behind the register's interface.

mod abd;
mod raw;

pub use abd::DmAbd;
pub use raw::Raw;

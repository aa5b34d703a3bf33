//! What tests of times share.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The processor time that this thread has had: what others had of a busy machine meanwhile, or the host of a virtual
/// one, is none of the store's.
pub(crate) fn own_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

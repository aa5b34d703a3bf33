//! What time-dependent tests share.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the processor time of this thread: what other processes take of a busy machine, or the
/// host of a virtual one, is not the store's.
pub(crate) fn own_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

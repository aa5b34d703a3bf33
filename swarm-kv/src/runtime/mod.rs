//! What `async` code of one thread needs: a mutex, a bounded wait, futures side by side, and an executor for one future.

pub(crate) mod block_on;
pub(crate) mod local_mutex;
pub(crate) mod side_by_side;
pub(crate) mod wait_budget;

//! One client and its state. Its operations are in [`ops`](crate::ops), its garbage collection in
//! [`gc`](crate::gc).

pub(crate) mod cell_cache;
pub(crate) mod counters;
pub(crate) mod gc_state;
pub(crate) mod handle;
pub(crate) mod key_locks;
pub(crate) mod left_places;
pub(crate) mod location_cache;
pub(crate) mod looks;
pub(crate) mod process;
pub(crate) mod waiting;

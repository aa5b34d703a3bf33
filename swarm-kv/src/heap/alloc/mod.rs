//! Allocation: chunks are claimed, and the objects of a chunk are handed out below its high-water
//! mark.

pub(super) mod active_chunk;
pub(super) mod bootstrap;
pub(super) mod claim;
pub(super) mod high_water;
pub(super) mod known_marks;
pub(super) mod reserve;
pub(super) mod shared_range;

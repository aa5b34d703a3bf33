//! What a client keeps of its garbage collection from one operation to the next. The collection is in [`gc`](crate::gc).

use std::collections::HashMap;

use swarm_core::words::{Pointer, Stamp, WriteNumber};

use crate::heap::{ObjectKind, Purpose, Unreachable};
use crate::index::lookup::Walk;

/// A GC cycle under way.
pub(crate) struct GcCycle {
    /// The epoch in which it began.
    pub(crate) began: u64,
    /// This client's chunks.
    pub(crate) chunks: Vec<usize>,
    pub(crate) stage: Stage,
    pub(crate) found: Found,
    /// Whether clients may have cached where some of the garbage lies: this client does not know of
    /// all of it that it holds a complete write.
    pub(crate) may_be_cached: bool,
}

/// What a cycle found out about registers.
#[derive(Default)]
pub(crate) struct Found {
    /// The registers that the index names, each with its completed stamp, or an empty one.
    pub(crate) settled: HashMap<Pointer, Stamp>,
    /// Whether any were taken out of the index.
    pub(crate) unmapped: bool,
    /// How many expired cells it ended by memory that is reserved.
    pub(crate) ended_by_reserve: usize,
    /// Whether there was no memory for a bucket's record, or it was being reclaimed.
    pub(crate) lacked_records: bool,
    /// The tombstones that it met.
    pub(crate) tombstones: Tombstones,
}

/// Deleted registers whose entries are linked, each with the epoch in which a GC cycle first met it
/// deleted.
pub(crate) type Tombstones = HashMap<(Pointer, WriteNumber), u64>;

pub(crate) enum Stage {
    /// Waits for operations that were under way when it began.
    Waiting,
    /// Walks the index.
    Marking(IndexWalk),
    /// Goes over the client's chunks: from where on, and what is left to READ of the objects
    /// before. Marks those that an operation may still fetch.
    Sweeping { at: ChunkWalk, unread: Vec<Unreachable> },
    /// Goes over them again. What is still unmarked is garbage, of which `retired` objects were
    /// retired.
    Retiring { at: ChunkWalk, retired: usize },
}

/// How far a walk over the client's chunks has come.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChunkWalk {
    /// The chunk, by its number among those of the cycle.
    pub(crate) chunk: usize,
    /// The object of that chunk.
    pub(crate) object: usize,
}

impl ChunkWalk {
    /// Continues at this object of the chunk, or at the next chunk.
    pub(crate) fn go_on(&mut self, object: Option<usize>) {
        *self = match object {
            Some(object) => Self { object, ..*self },
            None => Self { chunk: self.chunk + 1, object: 0 },
        };
    }
}

/// How far a walk over the index has come.
#[derive(Default)]
pub(crate) struct IndexWalk {
    /// The next first bucket.
    pub(crate) next: usize,
    /// The walk below the one before, if it was split.
    pub(crate) walk: Option<Box<Walk>>,
    /// Whether the one before was vacant: those after it may be so too.
    pub(crate) sparse: bool,
}

/// A search that found nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedReclaim {
    /// What was looked for.
    pub(crate) wanted: (ObjectKind, Purpose),
    /// Until when it counts.
    pub(crate) until: u64,
    /// The epoch that other clients blocked, if it waited for them in vain.
    pub(crate) held_up: Option<u64>,
}

//! Garbage collection: the states of an object, and which client moves it from one to the next.
//!
//! An *object* is a register, a buffer, a cell or a record: a piece of a chunk. The owner of the
//! chunk keeps one word about each object in an object table (`heap/reclaim/object_table.rs`),
//! in its own memory. Only the owner, the client that holds the chunk's client slot, hands out and
//! retires the object. In a chunk that all clients share (`heap/alloc/shared_range.rs`), a
//! range of objects has an owner.
//!
//! **Invariant:** an object is handed out only when its object table says that it is free, and it
//! is retired at most once for each time that it is handed out.
//!
//! ```text
//!                                  ┌───── its chain lost, or is half done: unreachable ────────┐
//!              high-water mark     │      its chain             superseded, unreachable         ▼
//!   unused ───────────────────▶ allocated ─────────▶ in use ─────────────────────────────▶ retired
//!                                  ▲  │                                                       │ two epochs
//!                     handed out   │  │ not named by any chain                                ▼
//!                                  │  └────────────────────▶ free ◀──── [zeroed] ◀──────── quiescent
//!                                  └─────────────────────────┘
//! ```
//!
//! | state | what holds |
//! | --- | --- |
//! | unused | above the chunk's high-water mark (`heap/alloc/high_water.rs`): no client had it since the chunk was claimed |
//! | allocated | handed out to one operation; only that operation can put its pointer into the world |
//! | in use | a bucket, a record or a register can lead an operation to it |
//! | retired | no operation that begins now can reach it; older ones may still hold its pointer |
//! | quiescent | those operations and their chains are over |
//! | free | on a free list (`heap/reclaim/free_list.rs`) of its owner: as it is (buffers), or zeroed |
//!
//! # Allocated
//!
//! The owner hands out objects of its active chunk (`heap/alloc/active_chunk.rs`) below the
//! high-water mark: no roundtrip. It raises the mark ahead of need at a majority: one roundtrip,
//! for twice as many objects each time. It claims (`heap/alloc/claim.rs`) more chunks by a
//! change of the chunk map. A free object is handed out before one that was never used. An
//! operation that gives up before any chain has named the object gives it back at once. An object
//! that was named by a chain that lost stays allocated until a cycle finds that nothing leads to it.
//!
//! # Retired
//!
//! | by whom | when | roundtrips |
//! | --- | --- | --- |
//! | the client that wrote it, at its next write (`heap/reclaim/supersede.rs`) | its later write to the same register is complete | 0 |
//! | the same, where a delete refused its write | the delete is complete | 0 |
//! | the owner, after a remote-free hint (`heap/reclaim/remote_free.rs`) of a client that superseded a record or a write | every node's cell word names another record; or a larger verified stamp has reached a majority | 1 for a batch |
//! | the owner, in a [mark-and-sweep cycle](mark_sweep) | no bucket, record or register can name it | 2 for each bucket, 1 for its keys, 1 for 12 objects of unknown content |
//! | the owner of bootstrap records (`heap/alloc/bootstrap.rs`) | all are used up, and the map's converged cell does not name them | 2 |
//!
//! A hint may be lost, late or wrong: the owner believes what the nodes show. What no hint reports
//! waits for a cycle. A cycle starts in one of these ways:
//!
//! - *Assist.* The pacer (`heap/gc_pacer.rs`) says that memory is scarce. Each write then
//!   [takes a step](assist) of at most 12 buckets and 2 ms when it is over. Where only the reserve is
//!   left, steps follow each other for 1 ms.
//! - *Direct reclaim.* An operation [finds no memory](direct_reclaim) and runs cycles itself, among
//!   the steps below.
//! - The program calls [`Client::gc`](crate::Client::gc), which evacuates as well and releases whole chunks
//!   ([`full`]), or [`Client::collect`](crate::Client::collect).
//!
//! Before a cycle retires registers and records it begins a new *generation*: each client forgets
//! remembered locations when its next operation begins. No cycle ends while a node does not answer,
//! since that node may still name the object.
//!
//! # Quiescent, zeroed, free
//!
//! The epoch advances when every pinned client has pinned the current one. An object that was
//! retired in epoch e is quiescent in e + 2 ([`GRACE`](swarm_core::epoch::GRACE)). A client that
//! lacks a buffer tries to advance the epoch: no roundtrip on shared memory; on memory nodes the
//! daemons exchange epochs off the data path.
//!
//! A buffer whose complete write the owner knows is free as it is, since its lock only grows. Its
//! owner takes such buffers in when [`reclaimed_at_once`](crate::Options::reclaimed_at_once) of
//! them are quiescent, or memory is short. All else is zeroed (`heap/reclaim/zeroing.rs`) at
//! every node that holds it: one roundtrip for at most 12 objects.
//!
//! # Where none is free: direct reclaim
//!
//! An operation without memory ends, unpins, tries these steps in turn, and begins again after the
//! first one that brings something ([`direct_reclaim`]):
//!
//! 1. what is retired or taken over already: it waits for the epoch, as long as others go on;
//! 2. takeover (`heap/transfer/takeover.rs`) of the chunks of client slots that no process
//!    holds: a change of the map, and another one two epochs later;
//! 3. a mark-and-sweep cycle over its own chunks;
//! 4. stealing (`heap/transfer/steal.rs`) half of the room that one other client has for such
//!    objects, and a cycle;
//! 5. releasing (`heap/transfer/release.rs`) its own empty chunks of other classes: they are
//!    zeroed at every node;
//! 6. stealing half of another client's empty chunks, a cycle, and releasing those;
//! 7. for inserts: taking over shared chunks of which at most half is reachable, and a cycle;
//! 8. except for buffers of updates of the same size: [evacuation](mod@evacuate) of its own
//!    sparse (`heap/transfer/sparse.rs`) chunks. Their keys and records move out, at some eight
//!    roundtrips a key; then a cycle and a release;
//! 9. chunks that another client took over and never made its own.
//!
//! A writer's [assist] does step 2 ahead of need, for half of such chunks at a time. A
//! chunk that changes owner brings objects of unknown content: they count as in use until a cycle
//! has found out.

pub(crate) mod assist;
pub(crate) mod direct_reclaim;
pub(crate) mod evacuate;
pub(crate) mod full;
pub(crate) mod index_walk;
pub(crate) mod mark_sweep;

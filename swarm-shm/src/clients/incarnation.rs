//! Incarnations: each client has one that no client had before (G4, E8a).
//!
//! The control file counts them. So that they are not given out again if that file is lost, the
//! headers of the nodes say how far that may have gone, a block at a time.
//!
//! **Invariant (S16):** no client acts under an incarnation above the end that the headers of a
//! majority of the nodes say. A repair of the control file goes on above the largest end of a
//! majority.
//!
//! **A node that is replaced** knows what the others know (H9). An end that is recorded counts only
//! at nodes that were not replaced when the configuration was read *behind* it: by then it is at
//! f + 1 nodes, so at f of the 2f others, and a process that reads those of f + 1 others once the
//! node is gone finds it at one. If the node was gone first, it does not count, and the end is at
//! f + 1 of the others. Both sides have a full fence between the two words.

use std::sync::Arc;

use swarm_core::words::{Incarnation, WriteNumber};

use crate::error::Error;
use crate::files::header::{INCARNATIONS, incarnations, incarnations_end};
use crate::files::mapping::Mapping;
use crate::members::Members;
use crate::pool::Pool;
use crate::words::sync::{Ordering, fence};

/// How many incarnations are recorded at a time. A repair skips fewer.
const BLOCK: u64 = 256;

/// Returns an incarnation that no client had. Relaxed: the word alone decides.
pub(crate) fn next_incarnation(pool: &Pool) -> Result<Incarnation, Error> {
    let control = pool.control();
    let next = |last: u64| (last < WriteNumber::LAST_INCARNATION.0).then(|| last + 1);
    let last = control.incarnation().fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    // S11: the pages in place of a lost control file would give them all out again.
    control.check()?;
    let used_up = |_| Error::Incarnations { pool: pool.path().to_path_buf() };
    let own = last.map_err(used_up)? + 1;
    // S16: before any client acts under it. A client that is killed until here leaves it unused.
    record(pool, own)?;
    Ok(Incarnation(own))
}

/// Makes the headers of a majority of the nodes say that this incarnation may have been given out.
fn record(pool: &Pool, own: u64) -> Result<(), Error> {
    record_at(pool, &pool.take_up(), own)
}

/// The same, at the nodes of a configuration that was taken up before.
fn record_at(pool: &Pool, members: &Members, own: u64) -> Result<(), Error> {
    let control = pool.control();
    let is_recorded = || {
        let recorded = members.mappings().filter(|(_, mapping)| has_recorded(mapping, own));
        // H9: `has_recorded` has a fence, behind the load of the end.
        let count = recorded.filter(|(node, _)| members.is_as_configured(control, *node)).count();
        2 * count > pool.geometry().nodes
    };
    if is_recorded() {
        return Ok(());
    }
    let end = (own + BLOCK - 1).min(WriteNumber::LAST_INCARNATION.0);
    for (_, mapping) in members.mappings() {
        // Only grows: a client that was delayed here may find a later end. Relaxed: each word
        // counts by itself.
        mapping.words()[INCARNATIONS].fetch_max(incarnations(end), Ordering::Relaxed);
    }
    if is_recorded() { Ok(()) } else { Err(Error::Unrecorded { pool: pool.path().to_path_buf() }) }
}

/// Returns whether a node's header says that this incarnation may have been given out.
fn has_recorded(mapping: &Arc<Mapping>, own: u64) -> bool {
    let end = incarnations_end(mapping.words()[INCARNATIONS].load(Ordering::Relaxed));
    // S11: what is in the place of lost memory is in no file.
    fence(Ordering::SeqCst);
    end.is_some_and(|end| own <= end) && !mapping.is_lost()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_core::node::NodeId;

    use super::*;
    use crate::files::node;
    use crate::lifecycle::create::CreateOptions;
    use crate::lifecycle::replace::ReplaceOptions;
    use crate::pool::OpenOptions;

    /// A client that stood still while a node was replaced records its incarnation at the former file: that node and
    /// another one that was away know nothing of it, and are a majority by which a repair may go.
    #[test]
    fn what_is_recorded_at_a_former_life_does_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let options = CreateOptions { nodes: 3, capacity: 4 << 20, ..CreateOptions::default() };
        drop(Pool::create(&path, &options).expect("a pool"));
        let (place, away) = (node::path(&path, NodeId(2)), dir.path().join("away"));
        fs::rename(&place, &away).expect("it is there");
        let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
        let slow = Pool::open(&path, degraded).expect("a majority");
        let members = slow.take_up();
        fs::rename(&away, &place).expect("back");
        let other = Pool::open(&path, OpenOptions::default()).expect("all are there");
        let replacement = other.replace(NodeId(1), &ReplaceOptions::default()).expect("begun");
        let gone = other.configuration().replacing(NodeId(1)).expect("two others");
        assert!(replacement.decide(&gone).expect("decided"));
        drop(replacement.join(gone.life(NodeId(1))));
        let votes = other.configuration().voting(NodeId(1), gone.life(NodeId(1))).expect("filled");
        assert!(replacement.decide(&votes).expect("decided"));
        let late = 10 * BLOCK;
        let why = record_at(&slow, &members, late).expect_err("at one node that votes");
        assert!(matches!(why, Error::Unrecorded { .. }), "{why}");
        record(&slow, late).expect("at two");
    }
}

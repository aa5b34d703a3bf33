//! Destroying a pool.
//!
//! The invariant: without force, everything is checked before anything is removed; and only files
//! that say themselves that they are this pool's are removed.
//!
//! The control file goes last. It tells what the other files are, so whoever comes after a
//! destruction that was cut short still knows what to remove: were it to go first, what is left
//! would be a directory of large files that no command recognizes. But a control file beside too
//! few nodes looks like a pool that lost them, whose owner is told to bring them back. So it is
//! marked before the first node goes: from then on the pool calls itself half destroyed.

use std::fs::{self, File};
use std::path::Path;

use swarm_core::fabric::{MAX_NODES, NodeId};
use swarm_core::geometry::MAX_CLIENTS;
use swarm_core::node_set::NodeSet;

use crate::attachment::live_clients;
use crate::control::{
    CONTROL, Control, is_marked, mark_destruction, open_control, renew_generation,
};
use crate::create::is_at;
use crate::error::Error;
use crate::header::{HEADER_WORDS, Header, Member};
use crate::kind::Kind;
use crate::{lock, node};

/// Destroys the pool in `dir`.
pub(crate) fn destroy(dir: &Path, force: bool) -> Result<(), Error> {
    let path = dir.join(CONTROL);
    let control = open_control(dir).map_err(|error| match error {
        // Without it nothing tells whose the nodes are.
        Error::NoControl { .. } => Error::NoPool { pool: dir.to_path_buf() },
        error => error,
    })?;
    let words = Kind::Regular.header(&control, &path).unwrap_or_default();
    let Some(pool_id) = Header::control_pool(&words) else {
        return Err(Error::Foreign { file: path });
    };
    let checked = if force { None } else { Some(Control::load(dir).map_err(not_destroyed)?) };
    // Holding every slot keeps new clients out. With force they are as lost as the others.
    let all = Control::slot_bytes(0..MAX_CLIENTS);
    let alone = lock::hold_within(&control, all, lock::PATIENCE)
        .map_err(|error| Error::io(&path, "lock", error))?;
    if alone.is_none() && !force {
        let clients = live_clients(&control, MAX_CLIENTS);
        return Err(Error::InUse { pool: dir.to_path_buf(), clients });
    }
    // Whoever held the locks before may have destroyed it. Without force nobody can from here on, nor is
    // another pool made where a control file is.
    check_still_there(dir, &control)?;
    let nodes = match &checked {
        Some(checked) => {
            check_nodes(dir, checked).map_err(not_destroyed)?;
            checked.header().geometry.nodes
        }
        // How many there are is no more certain than the rest of a damaged control file.
        None => MAX_NODES,
    };
    let (before, marked) = (present(dir), is_marked(&control));
    mark_destruction(&control, true).map_err(|error| Error::io(&path, "write to", error))?;
    // Behind the mark, which clients look for when they meet another generation: so the next operation of those that
    // are there fails, and nothing is acknowledged any more that goes with the pool.
    renew_generation(&control, &path);
    let left = remove_nodes(dir, nodes, pool_id, force).inspect_err(|_| {
        // If the first removal failed already, the pool is as it was. (The way to an error must not
        // end in another.)
        if !marked && present(dir) == before {
            drop(mark_destruction(&control, false));
        }
    })?;
    // With force somebody else may have been quicker, and another pool be there by now.
    check_still_there(dir, &control)?;
    fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
    // Fails if something else is in there, which then is not the pool's to remove.
    drop(fs::remove_dir(dir));
    left.map_or(Ok(()), |file| Err(Error::LeftOver { file: node::path(dir, file) }))
}

/// Verifies that `control` is the control file in `dir` still: another pool may have come in its place.
fn check_still_there(dir: &Path, control: &File) -> Result<(), Error> {
    let is_there = is_at(control, &dir.join(CONTROL));
    is_there.then_some(()).ok_or_else(|| Error::NoPool { pool: dir.to_path_buf() })
}

/// Verifies that the node files that are there are the pool's and undamaged. Some may be missing:
/// there is nothing to remove then.
fn check_nodes(dir: &Path, control: &Control) -> Result<(), Error> {
    let header = control.header();
    for id in NodeSet::all(header.geometry.nodes) {
        let expected = header.of(Member::Node(id));
        node::check(&node::path(dir, id), &expected, control.is_half_destroyed())?;
    }
    Ok(())
}

/// Removes the nodes' files. Yields the first that was left, as it is not recognizably the pool's.
fn remove_nodes(
    dir: &Path,
    nodes: usize,
    pool_id: u128,
    force: bool,
) -> Result<Option<NodeId>, Error> {
    let mut left = None;
    for id in (0..nodes as u8).map(NodeId) {
        // A device without a header is one whose header was removed before.
        let also = |words: &[u64; HEADER_WORDS]| {
            (force && !Header::is_node(words)) || *words == [0; HEADER_WORDS]
        };
        if !node::remove(&node::path(dir, id), pool_id, also)? {
            left = left.or(Some(id));
        }
    }
    Ok(left)
}

/// The nodes that something is there of.
fn present(dir: &Path) -> NodeSet {
    let mut present = NodeSet::EMPTY;
    for id in (0..MAX_NODES as u8).map(NodeId) {
        if node::path(dir, id).symlink_metadata().is_ok() {
            present.insert(id);
        }
    }
    present
}

fn not_destroyed(why: Error) -> Error {
    match why {
        // Somebody else has destroyed it meanwhile.
        Error::NoPool { .. } => why,
        why => Error::NotDestroyed { why: Box::new(why) },
    }
}

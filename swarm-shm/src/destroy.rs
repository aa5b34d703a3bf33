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
//!
//! Where the control file is gone all the same, force removes what says of itself that it is a pool's node. What a creator
//! left that died half-way is nobody's pool, and takes no force.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use swarm_core::layout::MAX_CLIENTS;
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::attachment::live_clients;
use crate::control::{
    CONTROL, Control, is_marked, mark_destruction, open_control, renew_generation,
};
use crate::create::{self, is_at};
use crate::error::Error;
use crate::header::{HEADER_WORDS, Header, Member};
use crate::kind::Kind;
use crate::{lock, node};

/// The directory of a pool that was destroyed, where it is still there.
#[derive(Debug)]
#[non_exhaustive]
pub struct DirectoryLeft {
    /// The directory, or a link to where it was.
    pub directory: PathBuf,
    /// Why it was left: something that is not the pool's is in it, or it is not this user's to remove.
    pub why: io::Error,
}

/// Destroys the pool in `dir`, also one that lost its control file or was never completed, and then the directory. Yields that
/// if it stays.
pub(crate) fn destroy(dir: &Path, force: bool) -> Result<Option<DirectoryLeft>, Error> {
    match open_control(dir) {
        Ok(control) => destroy_pool(dir, &control, force)?,
        // Nobody has ever used it.
        Err(Error::Unfinished { .. }) => create::clear_away(dir)?,
        Err(Error::NoControl { .. }) if force => destroy_nodes(dir)?,
        Err(error) => return Err(error),
    }
    Ok(remove_directory(dir))
}

/// Removes the directory and, if `dir` is a link, that as well.
fn remove_directory(dir: &Path) -> Option<DirectoryLeft> {
    let left = |directory: &Path| {
        let directory = directory.to_path_buf();
        move |why| DirectoryLeft { directory, why }
    };
    // Behind a last `/` the kernel follows a link.
    let name: PathBuf = dir.components().collect();
    let is_link = name.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    // Whoever destroyed the pool at the same time may have been quicker.
    let directory = match fs::canonicalize(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound && !is_link => return None,
        Err(why) => return Some(left(dir)(why)),
        Ok(directory) => directory,
    };
    match fs::remove_dir(&directory) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Some(left(&directory)(why)),
        _ if is_link => fs::remove_file(&name).map_err(left(&name)).err(),
        _ => None,
    }
}

/// Removes the nodes of a pool that has no control file: those of the pool that most of them say that they are of. Nothing
/// tells whether anybody has them open; who does notices that the control file is gone.
fn destroy_nodes(dir: &Path) -> Result<(), Error> {
    // Until here another pool may have been created. From here on none is.
    let _creator = create::take_over(dir)?;
    let pools: Vec<u128> =
        (0..MAX_NODES as u8).filter_map(|id| node::pool(&node::path(dir, NodeId(id)))).collect();
    let count = |pool: &u128| pools.iter().filter(|other| *other == pool).count();
    // Of several with as many, that of the first node.
    let removed = match pools.iter().rev().max_by_key(|pool| count(pool)) {
        Some(&pool) => remove_nodes(dir, MAX_NODES, pool, true),
        None => Err(Error::NoPool { pool: dir.to_path_buf() }),
    };
    create::give_up(dir);
    left_over(dir, removed?)
}

/// An error, if a file was left.
fn left_over(dir: &Path, left: Option<NodeId>) -> Result<(), Error> {
    left.map_or(Ok(()), |file| Err(Error::LeftOver { file: node::path(dir, file) }))
}

/// Destroys the pool of this control file, but for its directory.
fn destroy_pool(dir: &Path, control: &File, force: bool) -> Result<(), Error> {
    let path = dir.join(CONTROL);
    let words = Kind::Regular.header(control, &path).unwrap_or_default();
    let Some(pool_id) = Header::control_pool(&words) else {
        return Err(Error::Foreign { file: path });
    };
    let checked = if force { None } else { Some(Control::load(dir).map_err(not_destroyed)?) };
    // Holding every slot keeps new clients out. With force they are as lost as the others.
    let all = Control::slot_bytes(0..MAX_CLIENTS);
    let alone = lock::hold_within(control, all, lock::PATIENCE)
        .map_err(|error| Error::io(&path, "lock", error))?;
    if alone.is_none() && !force {
        let clients = live_clients(control, MAX_CLIENTS);
        return Err(Error::InUse { pool: dir.to_path_buf(), clients });
    }
    // Whoever held the locks before may have destroyed it. Without force nobody can from here on, nor is
    // another pool made where a control file is.
    check_still_there(dir, control)?;
    let nodes = match &checked {
        Some(checked) => {
            check_nodes(dir, checked).map_err(not_destroyed)?;
            checked.header().geometry.nodes
        }
        // How many there are is no more certain than the rest of a damaged control file.
        None => MAX_NODES,
    };
    let (before, marked) = (present(dir), is_marked(control));
    mark_destruction(control, true).map_err(|error| Error::io(&path, "write to", error))?;
    // Behind the mark, which clients look for when they meet another generation: so the next operation of those that
    // are there fails, and nothing is acknowledged any more that goes with the pool.
    renew_generation(control, &path);
    let left = remove_nodes(dir, nodes, pool_id, force).map_err(|why| {
        let now = present(dir);
        if now != before {
            let removed = before.minus(now).into_iter().map(|id| node::path(dir, id)).collect();
            return Error::PartlyDestroyed { why: Box::new(why), removed };
        }
        // If the first removal failed already, the pool is as it was. (The way to an error must not
        // end in another.)
        if !marked {
            drop(mark_destruction(control, false));
        }
        why
    })?;
    // With force somebody else may have been quicker, and another pool be there by now.
    check_still_there(dir, control)?;
    fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
    left_over(dir, left).inspect_err(|_| drop(remove_directory(dir)))
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

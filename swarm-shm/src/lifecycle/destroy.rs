//! Destroying a pool.
//!
//! **Invariant:** without force, everything is checked before anything is removed; and only files
//! that identify themselves as this pool's are removed, or that say nothing in such a file's place.
//!
//! The control file is removed last. It says what the other files are, so after an interrupted
//! destruction the next one still knows what to remove. Were it first, the rest would be a
//! directory of large files that no command recognizes. But a control file beside too few nodes
//! looks like a pool that lost them, and the error would ask its owner to restore them. So it is
//! marked before the first node is removed: from then on the pool reports that it is half
//! destroyed.
//!
//! If the control file is gone anyway, force removes files that identify themselves as a pool's
//! nodes. One that was emptied beside such nodes says no more than one that is gone: it is removed
//! first, and the rest is that case. Files of a creator that died half-way are no pool, and need no
//! force.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use swarm_core::layout::MAX_CLIENTS;
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::clients::list::live_clients;
use crate::error::Error;
use crate::files::control::{
    CONTROL, Control, REPAIRED, has_nodes, is_marked, mark_destruction, open_control,
    renew_generation,
};
use crate::files::header::{FileRole, HEADER_WORDS, Header};
use crate::files::node;
use crate::files::range_lock;
use crate::lifecycle::create::{self, is_at};
use crate::lifecycle::replace::new_path;
use crate::pool::Pool;

/// The directory of a destroyed pool, if it still exists.
#[derive(Debug)]
#[non_exhaustive]
pub struct DirectoryLeft {
    /// The directory, or a link to where it was.
    pub directory: PathBuf,
    /// Why it was left: it contains a file that is not the pool's, or this user may not remove it.
    pub why: io::Error,
}

impl Pool {
    /// Removes the files that are recognizably those of the pool in `dir`, then the directory if
    /// nothing else is in it, and the link to it if `dir` is one. Returns the directory if it
    /// remains. `force` does so under live clients, whose next operation fails. It also removes
    /// damaged files unless they are another pool's, and the nodes of a pool that lost its control
    /// file. Files of a creator that died half-way need no force.
    ///
    /// # Errors
    /// There is no pool, clients use it, or a file that is not the pool's was left in place.
    pub fn destroy(dir: impl AsRef<Path>, force: bool) -> Result<Option<DirectoryLeft>, Error> {
        destroy(dir.as_ref(), force)
    }
}

/// Destroys the pool in `dir`, also one that lost its control file or was never completed, and then
/// the directory. Returns the directory if it remains.
fn destroy(dir: &Path, force: bool) -> Result<Option<DirectoryLeft>, Error> {
    match open_control(dir) {
        Ok(control) => match ControlSays::of(&control) {
            ControlSays::Pool(pool) => destroy_pool(dir, &control, pool, force)?,
            ControlSays::Nothing if has_nodes(dir) => destroy_emptied(dir, &control, force)?,
            _ => return Err(Error::Foreign { file: dir.join(CONTROL) }),
        },
        // No client has ever used it.
        Err(Error::Unfinished { .. }) => create::clear_away(dir)?,
        Err(Error::NoControl { .. }) if force => destroy_nodes(dir)?,
        Err(error) => return Err(error),
    }
    // What an interrupted repair left. (The path to an error must not end in another.)
    drop(fs::remove_file(dir.join(REPAIRED)));
    Ok(remove_directory(dir))
}

/// What a control file's first words say, however much of it is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ControlSays {
    /// It is this pool's.
    Pool(u128),
    /// It was emptied, or cut off before it names its pool.
    Nothing,
    /// It is no control file.
    Another,
}

impl ControlSays {
    fn of(control: &File) -> Self {
        let (mut bytes, mut read) = ([0; HEADER_WORDS * 8], 0);
        while let Ok(more @ 1..) = control.read_at(&mut bytes[read..], read as u64) {
            read += more;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let words = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
        match Header::control_pool(&words) {
            Some(pool) if read >= Header::NAMES_POOL => Self::Pool(pool),
            Some(_) => Self::Nothing,
            None if words == [0; HEADER_WORDS] => Self::Nothing,
            None => Self::Another,
        }
    }
}

/// Removes an emptied control file, which is worth nothing, and the nodes beside it. A process that is
/// interrupted between the two leaves a pool without a control file.
fn destroy_emptied(dir: &Path, control: &File, force: bool) -> Result<(), Error> {
    let path = dir.join(CONTROL);
    if !force {
        return Err(not_destroyed(
            Control::load(dir).err().unwrap_or(Error::Foreign { file: path }),
        ));
    }
    check_still_there(dir, control)?;
    fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
    destroy_nodes(dir)
}

/// Removes the directory and, if `dir` is a link, the link as well.
fn remove_directory(dir: &Path) -> Option<DirectoryLeft> {
    let left = |directory: &Path| {
        let directory = directory.to_path_buf();
        move |why| DirectoryLeft { directory, why }
    };
    // After a trailing `/` the kernel follows a link.
    let name: PathBuf = dir.components().collect();
    let is_link = name.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    // Another process that destroyed the pool at the same time may have been quicker.
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

/// Removes the nodes of a pool without a control file: those of the pool that most of them belong
/// to. As force destroys pools under their clients, nobody is asked whether a client has them open
/// ([`node::PRESENCE`] would show it); one that does notices that the control file is gone.
fn destroy_nodes(dir: &Path) -> Result<(), Error> {
    // Until here another process may have created a pool. From here on none can.
    let _creator = create::take_over(dir)?;
    let pools: Vec<u128> =
        (0..MAX_NODES as u8).filter_map(|id| node::pool(&node::path(dir, NodeId(id)))).collect();
    let count = |pool: &u128| pools.iter().filter(|other| *other == pool).count();
    // On a tie, the pool of the first node.
    let removed = match pools.iter().rev().max_by_key(|pool| count(pool)) {
        Some(&pool) => remove_nodes(dir, MAX_NODES, pool, true),
        None => Err(Error::NoPool { pool: dir.to_path_buf() }),
    };
    create::give_up(dir);
    left_over(dir, removed?)
}

/// Returns an error if a file was left.
fn left_over(dir: &Path, left: Option<NodeId>) -> Result<(), Error> {
    left.map_or(Ok(()), |file| Err(Error::LeftOver { file: node::path(dir, file) }))
}

/// Destroys the pool of this control file, but not its directory.
fn destroy_pool(dir: &Path, control: &File, pool_id: u128, force: bool) -> Result<(), Error> {
    let path = dir.join(CONTROL);
    let checked = if force { None } else { Some(Control::load(dir).map_err(not_destroyed)?) };
    // Holding every slot keeps new clients out. With force they lose the pool like the others.
    let all = Control::slot_bytes(0..MAX_CLIENTS);
    let alone = range_lock::hold_within(control, all, range_lock::PATIENCE)
        .map_err(|error| Error::io(&path, "lock", error))?;
    if alone.is_none() && !force {
        let clients = live_clients(control, MAX_CLIENTS);
        return Err(Error::InUse { pool: dir.to_path_buf(), clients });
    }
    // A previous owner of the locks may have destroyed the pool. Without force no process can from
    // here on, nor is another pool created beside a control file.
    check_still_there(dir, control)?;
    let nodes = match &checked {
        Some(checked) => {
            check_nodes(dir, checked).map_err(not_destroyed)?;
            checked.header().geometry.nodes
        }
        // In a damaged control file the number of nodes is as uncertain as the rest.
        None => MAX_NODES,
    };
    let (before, marked) = (present(dir), is_marked(control));
    mark_destruction(control, true).map_err(|error| Error::io(&path, "write to", error))?;
    // S8: after the mark, which clients look for when they find another generation. So the next
    // operation of each client fails, and no write is acknowledged that goes with the pool.
    renew_generation(control, &path);
    let left = remove_nodes(dir, nodes, pool_id, force).map_err(|why| {
        let now = present(dir);
        if now != before {
            let removed = before.minus(now).into_iter().map(|id| node::path(dir, id)).collect();
            return Error::PartlyDestroyed { why: Box::new(why), removed };
        }
        // If the first removal failed, the pool is unchanged. (The path to an error must not end in
        // another.)
        if !marked {
            drop(mark_destruction(control, false));
        }
        why
    })?;
    // What an interrupted replacement left, if it is recognizably the pool's.
    for id in NodeSet::all(nodes) {
        let is_new = |words: &[u64; HEADER_WORDS]| *words == [0; HEADER_WORDS];
        drop(node::remove(&new_path(dir, id), pool_id, is_new));
    }
    // With force another process may have been quicker, and created another pool by now.
    check_still_there(dir, control)?;
    fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
    left_over(dir, left).inspect_err(|_| drop(remove_directory(dir)))
}

/// Verifies that `control` is still the control file in `dir`: another pool may have replaced it.
fn check_still_there(dir: &Path, control: &File) -> Result<(), Error> {
    let is_there = is_at(control, &dir.join(CONTROL));
    is_there.then_some(()).ok_or_else(|| Error::NoPool { pool: dir.to_path_buf() })
}

/// Verifies that the node files are the pool's and undamaged. Some may be missing: then there is
/// nothing to remove.
fn check_nodes(dir: &Path, control: &Control) -> Result<(), Error> {
    let header = control.header();
    for id in NodeSet::all(header.geometry.nodes) {
        let expected = header.of(FileRole::Node(id));
        node::check(&node::path(dir, id), &expected, control.is_half_destroyed())?;
    }
    Ok(())
}

/// Removes the nodes' files. Returns the first that was left, because it is not recognizably the
/// pool's.
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

/// Returns the nodes that have a file or link.
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
        // Another process has destroyed it meanwhile.
        Error::NoPool { .. } => why,
        why => Error::NotDestroyed { why: Box::new(why) },
    }
}

//! Destroying a pool.
//!
//! The control file goes last, so that a pool whose destruction was cut short is still a pool and
//! can be destroyed again. Only files that say themselves that they are this pool's are removed.

use std::fs;
use std::io;
use std::path::Path;

use swarm_core::fabric::{MAX_NODES, NodeId};
use swarm_core::geometry::MAX_CLIENTS;

use crate::attachment::live_clients;
use crate::control::{CONTROL, Control, open_file};
use crate::error::Error;
use crate::header::Header;
use crate::kind::Kind;
use crate::{lock, node};

/// Destroys the pool in `dir`.
pub(crate) fn destroy(dir: &Path, force: bool) -> Result<(), Error> {
    let path = dir.join(CONTROL);
    let control = open_file(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::NoPool { pool: dir.to_path_buf() }
        }
        _ => Error::io(&path, "open", error),
    })?;
    let words = Kind::Regular.header(&control, &path).unwrap_or_default();
    let Some(pool_id) = Header::control_pool(&words) else {
        return Err(Error::Foreign { file: path });
    };
    if !force {
        Header::decode(&words, &path)?;
    }
    // Holding every slot keeps new clients out. With force they are as lost as the others.
    let all = Control::slot_bytes(0..MAX_CLIENTS);
    let alone = lock::try_lock(&control, all).map_err(|e| Error::io(&path, "lock", e))?;
    if !alone && !force {
        let clients = live_clients(&control, MAX_CLIENTS);
        return Err(Error::InUse { pool: dir.to_path_buf(), clients });
    }
    let mut left = None;
    for id in (0..MAX_NODES as u8).map(NodeId) {
        let file = node::path(dir, id);
        let removed = node::remove(&file, pool_id, |words| force && !Header::is_node(words))?;
        if !removed {
            left = left.or(Some(file));
        }
    }
    fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
    // Fails if something else is in there, which then is not the pool's to remove.
    drop(fs::remove_dir(dir));
    left.map_or(Ok(()), |file| Err(Error::LeftOver { file }))
}

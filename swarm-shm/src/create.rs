//! Creating a pool.
//!
//! The invariant: a directory has a `control` file only once the pool in it is complete. Until
//! then the file is called `control.new`, is locked by whoever creates the pool, and names the
//! pool; so what a creator left that died half-way is recognized and cleared away by the next.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::statfs;
use rustix::rand::{GetRandomFlags, getrandom};
use swarm_core::layout::Geometry;
use swarm_core::node::{MAX_NODES, NodeId};

use crate::cgroup::{MemoryLimit, huge_pages, memory_limit};
use crate::clock::wall;
use crate::control::{self, CONTROL, CREATOR, UNFINISHED, has_nodes, open_file};
use crate::error::Error;
use crate::file_system::{FileSystem, nearest, or_here};
use crate::header::{HEADER_WORDS, Header, Member};
use crate::kind::{HUGETLBFS_MAGIC, Kind};
use crate::mapping::Mapping;
use crate::pages::{self, Pages, TMPFS_MAGIC};
use crate::pool::CreateOptions;
use crate::rights::Granted;
use crate::{lock, node};

/// Only the owner may use a file until it is granted to others.
const MODE: u32 = 0o600;

/// Creates a pool, or leaves nothing behind.
pub(crate) fn create(dir: &Path, options: &CreateOptions) -> Result<(), Error> {
    let [low, high, hash_seed] = random(dir)?;
    let geometry = Geometry::new(options.nodes, options.capacity, options.max_clients, hash_seed)?
        .with_slots(options.slots)?;
    let geometry = match options.pointer_bits {
        Some(bits) => geometry.with_pointer_bits(bits)?,
        None => geometry,
    };
    if let Some(paths) = &options.node_paths
        && paths.len() != options.nodes
    {
        return Err(Error::NodePaths { paths: paths.len(), nodes: options.nodes });
    }
    options.numa.check()?;
    let granted = Granted::new(options.rights.as_ref())?;
    if !options.any_file_system {
        for path in
            [dir].into_iter().chain(options.node_paths.iter().flatten().map(PathBuf::as_path))
        {
            FileSystem::at(path).check(path)?;
        }
    }
    let header = Header {
        pool_id: u128::from(low) | (u128::from(high) << 64),
        member: Member::Control,
        geometry,
        created: wall(),
    };
    check_groups(dir, options)?;
    let mut draft = Draft::begin(dir, granted)?;
    draft.fill_control(&header)?;
    for id in (0..options.nodes as u8).map(NodeId) {
        let elsewhere = options.node_paths.as_ref().map(|paths| paths[id.index()].as_path());
        draft.add_node(elsewhere, &header.of(Member::Node(id)), id, options)?;
    }
    draft.finish()
}

/// [`Error::Stopped`] if the creation is to end.
fn goes_on(dir: &Path, options: &CreateOptions) -> Result<(), Error> {
    match options.stop {
        Some(stop) if stop() => Err(Error::Stopped { pool: dir.to_path_buf() }),
        _ => Ok(()),
    }
}

/// Refuses a pool that takes more memory than the control groups of this process leave.
fn check_groups(dir: &Path, options: &CreateOptions) -> Result<(), Error> {
    let (mut memory, mut huge) = (0_u64, BTreeMap::new());
    for node in 0..options.nodes {
        let place = options.node_paths.as_ref().map_or(dir, |paths| &paths[node]);
        // The nearest place above that is there already. Devices have their memory.
        let Some(there) = nearest(place) else { continue };
        match there.f_type {
            TMPFS_MAGIC if !is_device(place) => memory = memory.saturating_add(options.capacity),
            HUGETLBFS_MAGIC => *huge.entry(there.f_bsize as u64).or_insert(0) += options.capacity,
            _ => {}
        }
    }
    let huge = huge.into_iter().map(|(page, needed)| (huge_pages(page), needed));
    for (limit, needed) in huge.chain([(memory_limit(), memory)]) {
        if let Some(MemoryLimit { file: group, limit, free }) = limit
            && needed > free
        {
            return Err(Error::ControlGroup {
                pool: dir.to_path_buf(),
                needed,
                group,
                limit,
                free,
            });
        }
    }
    Ok(())
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
}

/// A pool that is not complete. Dropping it removes what there is of it.
struct Draft<'a> {
    dir: &'a Path,
    made_dir: bool,
    granted: Granted,
    control: File,
    /// Files and links that were made.
    made: Vec<PathBuf>,
    /// Devices that a header was written to.
    devices: Vec<Arc<Mapping>>,
    finished: bool,
}

impl<'a> Draft<'a> {
    /// Marks `dir` as where a pool is being created, and clears away what a creator that died may
    /// have left.
    fn begin(dir: &'a Path, granted: Granted) -> Result<Self, Error> {
        let made_dir = match fs::create_dir(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Error::io(dir, "create", error)),
        };
        match suits(dir).and_then(|()| take_over(dir)) {
            Ok(control) => {
                let (made, devices) = (Vec::new(), Vec::new());
                let finished = false;
                let draft = Self { dir, made_dir, granted, control, made, devices, finished };
                clear_leftovers(dir, &draft.control)?;
                // A pool that lost its control file is no place for another one.
                if has_nodes(dir) {
                    return Err(Error::NoControl { file: dir.join(CONTROL) });
                }
                Ok(draft)
            }
            Err(error) => {
                if made_dir {
                    drop(fs::remove_dir(dir));
                }
                Err(error)
            }
        }
    }

    fn fill_control(&self, header: &Header) -> Result<(), Error> {
        let path = self.dir.join(UNFINISHED);
        // Those who are in before the pool is there find none.
        self.granted.grant(&self.control, &path)?;
        if self.made_dir {
            self.granted.grant_directory(self.dir)?;
        }
        self.control.set_len(0).map_err(|error| Error::io(&path, "empty", error))?;
        let bytes = control::bytes(header.geometry.max_clients);
        Kind::Regular.check_room(&self.control, &path, bytes)?;
        Kind::Regular.reserve(&self.control, &path, bytes, &|| Ok(()))?;
        Mapping::new(&self.control, &path, bytes)?.store(0, &header.encode());
        Ok(())
    }

    fn add_node(
        &mut self,
        elsewhere: Option<&Path>,
        header: &Header,
        id: NodeId,
        options: &CreateOptions,
    ) -> Result<(), Error> {
        let name = node::path(self.dir, id);
        if name.symlink_metadata().is_ok() {
            return Err(Error::Occupied { file: name });
        }
        let path = match elsewhere {
            Some(path) => std::path::absolute(path).map_err(|e| Error::io(path, "find", e))?,
            None => name.clone(),
        };
        let (file, created) = make(&path)?;
        if created {
            self.made.push(path.clone());
        }
        if path != name {
            symlink(&path, &name).map_err(|error| Error::io(&name, "create", error))?;
            self.made.push(name);
        }
        if created {
            self.granted.grant(&file, &path)?;
        } else if options.rights.is_some() {
            return Err(Error::DeviceRights { file: path });
        }
        let capacity = header.geometry.capacity;
        let kind = Kind::of(&file, &path)?;
        kind.check_capacity(&path, capacity)?;
        kind.check_room(&file, &path, capacity)?;
        let goes_on = || goes_on(self.dir, options);
        if kind == Kind::Regular {
            let mapping = place(&file, &path, capacity, options)?;
            if options.pages == Pages::Huge
                && let Some(mapping) = mapping
            {
                pages::begin(&mapping, &goes_on)?;
            }
        }
        kind.reserve(&file, &path, capacity, &goes_on)?;
        let length = kind.length(&file, &path)?;
        if !kind.fits(length, capacity) {
            return Err(Error::Length { file: path, found: length, expected: capacity });
        }
        let mapping = Mapping::new(&file, &path, capacity)?;
        if kind == Kind::Device {
            if Header::is_node(&mapping.load(0)) {
                return Err(Error::Occupied { file: path });
            }
            mapping.clear();
            self.devices.push(Arc::clone(&mapping));
        }
        mapping.store(0, &header.encode());
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        let (from, to) = (self.dir.join(UNFINISHED), self.dir.join(CONTROL));
        fs::rename(&from, &to).map_err(|error| Error::io(&from, "rename", error))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for device in &self.devices {
            device.store(0, &[0; HEADER_WORDS]);
        }
        for path in &self.made {
            discard(path);
        }
        discard(&self.dir.join(UNFINISHED));
        if self.made_dir {
            drop(fs::remove_dir(self.dir));
        }
    }
}

/// Removes the nodes of a creator that died and left this control file.
fn clear_leftovers(dir: &Path, control: &File) -> Result<(), Error> {
    let words = Kind::Regular.header(control, &dir.join(UNFINISHED)).unwrap_or_default();
    let Some(pool_id) = Header::control_pool(&words) else { return Ok(()) };
    for id in (0..MAX_NODES as u8).map(NodeId) {
        // A file without a header yet is that creator's as well: nobody else puts one here.
        node::remove(&node::path(dir, id), pool_id, |words| *words == [0; HEADER_WORDS])?;
    }
    Ok(())
}

/// Removes what a creator that died left in `dir`, but for the directory.
pub(crate) fn clear_away(dir: &Path) -> Result<(), Error> {
    let control = take_over(dir)?;
    clear_leftovers(dir, &control)?;
    give_up(dir);
    Ok(())
}

/// Makes way for other creators in `dir`: whoever has [taken it over](take_over) and makes no pool there.
pub(crate) fn give_up(dir: &Path) {
    discard(&dir.join(UNFINISHED));
}

/// Opens and locks the unfinished control file in `dir`, so that nobody else creates a pool there.
pub(crate) fn take_over(dir: &Path) -> Result<File, Error> {
    let path = dir.join(UNFINISHED);
    let pool = || dir.to_path_buf();
    let exists = || dir.join(CONTROL).symlink_metadata().is_ok();
    if exists() {
        return Err(Error::Exists { pool: pool() });
    }
    let control = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(&path)
        .map_err(|error| Error::io(&path, "create", error))?;
    let locked = lock::try_lock(&control, CREATOR);
    if !locked.map_err(|error| Error::io(&path, "lock", error))? {
        return Err(Error::BeingCreated { pool: pool() });
    }
    let ours = is_at(&control, &path);
    if exists() {
        if ours {
            discard(&path);
        }
        return Err(Error::Exists { pool: pool() });
    }
    // Another creator gave up and removed the file between the opening and the lock.
    if ours { Ok(control) } else { Err(Error::BeingCreated { pool: pool() }) }
}

/// Refuses a directory that cannot hold a control file.
fn suits(dir: &Path) -> Result<(), Error> {
    if statfs(or_here(dir)).is_ok_and(|system| system.f_type == HUGETLBFS_MAGIC) {
        let reason = "hugetlbfs has no small files, and a pool's directory holds one; make the pool in another \
                      directory, such as one in /dev/shm, and say where each node's memory lies here (--node-path)";
        return Err(Error::unsuited(dir, reason));
    }
    Ok(())
}

/// Opens a device, or creates a file. Says whether it is a file.
fn make(path: &Path) -> Result<(File, bool), Error> {
    let is_device = is_device(path);
    let opened = if is_device {
        open_file(path)
    } else {
        fs::OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)
    };
    opened.map(|file| (file, !is_device)).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Occupied { file: path.to_path_buf() },
        _ => Error::io(path, "create", error),
    })
}

/// Gives `file` its length and says where its pages are to lie, before it has any. Yields all of it, if it could get so long: if
/// not, reserving will tell why.
fn place(
    file: &File,
    path: &Path,
    bytes: u64,
    options: &CreateOptions,
) -> Result<Option<Arc<Mapping>>, Error> {
    if file.set_len(bytes).is_err() {
        return Ok(None);
    }
    let mapping = Mapping::new(file, path, bytes)?;
    options.numa.apply(&mapping)?;
    Ok(Some(mapping))
}

/// Whether `path` leads to `file`.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let ours = file.metadata().map(|found| (found.dev(), found.ino()));
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

/// Removes a file as far as that works: the way to an error must not end in another.
fn discard(path: &Path) {
    drop(fs::remove_file(path));
}

fn random(dir: &Path) -> Result<[u64; 3], Error> {
    let mut bytes = [0_u8; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io(dir, "draw random numbers for", error)),
        }
    }
    let (words, _) = bytes.as_chunks::<8>();
    Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

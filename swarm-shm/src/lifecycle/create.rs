//! Creating a pool.
//!
//! **Invariant:** a directory has a `control` file only once the pool in it is complete. Until then
//! the file is called `control.new`, its creator holds a lock on it, and it names the pool. So the
//! files of a creator that died half-way are recognized, and the next creator removes them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::statfs;
use rustix::rand::{GetRandomFlags, getrandom};
use swarm_core::layout::{Geometry, SLOTS};
use swarm_core::node::{MAX_NODES, NodeId};

use crate::cgroup::{MemoryLimit, huge_pages, memory_limit};
use crate::clock::wall;
use crate::error::Error;
use crate::files::backing::{Backing, HUGETLBFS_MAGIC};
use crate::files::control::{self, CONTROL, CREATOR, UNFINISHED, has_nodes, open_file};
use crate::files::header::{FileRole, HEADER_WORDS, Header};
use crate::files::mapping::Mapping;
use crate::files::node;
use crate::files::numa::Numa;
use crate::files::pages::{self, Pages, TMPFS_MAGIC};
use crate::files::range_lock;
use crate::lifecycle::file_system::{FileSystem, nearest, or_here};
use crate::lifecycle::rights::{Granted, Rights};
use crate::pool::{OpenOptions, Pool};

/// Only the owner may use a file until rights are granted.
const MODE: u32 = 0o600;

/// The parameters of a new pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each node's memory, reserved at creation.
    pub capacity: u64,
    /// The maximum number of clients at a time.
    pub max_clients: usize,
    /// [Stamp slots in use](Geometry::slots): 6, or fewer.
    pub slots: usize,
    /// For tests: [bits of a pointer](Geometry::with_pointer_bits), if not as many as it needs.
    pub pointer_bits: Option<u32>,
    /// Where the nodes' memory lies, if not in the pool's directory: for each node the path of a
    /// file to create (on another file system, for example) or of an existing DAX device. The
    /// pool's directory then holds links.
    pub node_paths: Option<Vec<PathBuf>>,
    /// How large the memory's pages are, for all processes that open the pool. Huge pages are
    /// quicker to get at creation than later.
    pub pages: Pages,
    /// On which NUMA nodes the memory lies, for all processes that open the pool. It is reserved
    /// there.
    pub numa: Numa,
    /// Who may use the pool besides this user. All of it is granted, or no pool is created. A
    /// directory that existed before keeps its own rights.
    pub rights: Option<Rights>,
    /// Allows file systems whose mapped files are copies, such as NFS or FUSE.
    pub any_file_system: bool,
    /// Asked before each step of the creation, of some 100 ms at most. Once it returns true, the
    /// creation ends in [`Error::Stopped`]. For programs that a signal ends, which would otherwise
    /// leave half a pool.
    pub stop: Option<fn() -> bool>,
}

impl Default for CreateOptions {
    /// Three nodes of 256 MiB, for 64 clients, in huge pages if the kernel has them.
    fn default() -> Self {
        Self {
            nodes: 3,
            capacity: 256 << 20,
            max_clients: 64,
            slots: SLOTS,
            pointer_bits: None,
            node_paths: None,
            pages: Pages::Huge,
            numa: Numa::Default,
            rights: None,
            any_file_system: false,
            stop: None,
        }
    }
}

impl Pool {
    /// Creates a pool in `dir`, which is created if it does not exist, and opens it.
    ///
    /// # Errors
    /// A pool exists there, the options contradict each other, or there is no room. Nothing is left
    /// behind.
    pub fn create(dir: impl AsRef<Path>, options: &CreateOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        create(dir, options)?;
        Self::open(dir, OpenOptions::default()).inspect_err(|_| drop(Self::destroy(dir, true)))
    }
}

/// Creates a pool, or leaves nothing behind.
fn create(dir: &Path, options: &CreateOptions) -> Result<(), Error> {
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
        member: FileRole::Control,
        geometry,
        created: wall(),
    };
    check_groups(dir, options)?;
    let mut draft = UnfinishedPool::begin(dir, granted)?;
    draft.fill_control(&header)?;
    for id in (0..options.nodes as u8).map(NodeId) {
        let elsewhere = options.node_paths.as_ref().map(|paths| paths[id.index()].as_path());
        draft.add_node(elsewhere, &header.of(FileRole::Node(id)), id, options)?;
    }
    draft.finish()
}

/// Returns [`Error::Stopped`] if what makes files for a pool is to end.
pub(crate) fn goes_on(dir: &Path, stop: Option<fn() -> bool>) -> Result<(), Error> {
    match stop {
        Some(stop) if stop() => Err(Error::Stopped { pool: dir.to_path_buf() }),
        _ => Ok(()),
    }
}

/// Refuses a pool that takes more memory than the control groups of this process leave.
fn check_groups(dir: &Path, options: &CreateOptions) -> Result<(), Error> {
    let (mut memory, mut huge) = (0_u64, BTreeMap::new());
    for node in 0..options.nodes {
        let place = options.node_paths.as_ref().map_or(dir, |paths| &paths[node]);
        // The nearest ancestor that exists. Devices have their memory.
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

/// An incomplete pool. Dropping it removes its files.
struct UnfinishedPool<'a> {
    dir: &'a Path,
    made_dir: bool,
    granted: Granted,
    control: File,
    /// Files and links that were created.
    made: Vec<PathBuf>,
    /// Devices that a header was written to.
    devices: Vec<Arc<Mapping>>,
    finished: bool,
}

impl<'a> UnfinishedPool<'a> {
    /// Marks `dir` as the place of a creation, and removes files of a creator that died.
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
        // Users that enter before the pool is complete find none.
        self.granted.grant(&self.control, &path)?;
        if self.made_dir {
            self.granted.grant_directory(self.dir)?;
        }
        self.control.set_len(0).map_err(|error| Error::io(&path, "empty", error))?;
        control::fill(&self.control, &path, header, 0, &[0; MAX_NODES], (0, &[0; MAX_NODES]))
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
        let kind = Backing::of(&file, &path)?;
        let mapping = reserve(&file, &path, header.geometry.capacity, options, &|| {
            goes_on(self.dir, options.stop)
        })?;
        if kind == Backing::Device {
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

impl Drop for UnfinishedPool<'_> {
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
    let words = Backing::Regular.header(control, &dir.join(UNFINISHED)).unwrap_or_default();
    let Some(pool_id) = Header::control_pool(&words) else { return Ok(()) };
    for id in (0..MAX_NODES as u8).map(NodeId) {
        // A file without a header yet is that creator's as well: no other process puts one here.
        node::remove(&node::path(dir, id), pool_id, |words| *words == [0; HEADER_WORDS])?;
    }
    Ok(())
}

/// Removes the files of a creator that died in `dir`, but not the directory.
pub(crate) fn clear_away(dir: &Path) -> Result<(), Error> {
    let control = take_over(dir)?;
    clear_leftovers(dir, &control)?;
    give_up(dir);
    Ok(())
}

/// Lets other creators use `dir`, after [`take_over`], if no pool is created there.
pub(crate) fn give_up(dir: &Path) {
    discard(&dir.join(UNFINISHED));
}

/// Opens and locks the unfinished control file in `dir`, so that no other process creates a pool
/// there.
pub(crate) fn take_over(dir: &Path) -> Result<File, Error> {
    let path = dir.join(UNFINISHED);
    let pool = || dir.to_path_buf();
    let exists = || dir.join(CONTROL).symlink_metadata().is_ok();
    if exists() {
        return Err(Error::Exists { pool: pool() });
    }
    // A creator that died may have left it. Through a link another user might have it stand for any
    // file, which would be emptied.
    let control = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => Error::Occupied { file: path.clone() },
            _ => Error::io(&path, "create", error),
        })?;
    let locked = range_lock::try_lock(&control, CREATOR);
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

/// Opens a device, or creates a file. Returns whether it is a file.
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

/// Gives a node's file its memory, and maps it.
pub(crate) fn reserve(
    file: &File,
    path: &Path,
    capacity: u64,
    options: &CreateOptions,
    goes_on: &dyn Fn() -> Result<(), Error>,
) -> Result<Arc<Mapping>, Error> {
    let kind = Backing::of(file, path)?;
    kind.check_capacity(path, capacity)?;
    kind.check_room(file, path, capacity)?;
    if kind == Backing::Regular {
        let mapping = place(file, path, capacity, options)?;
        if options.pages == Pages::Huge
            && let Some(mapping) = mapping
        {
            pages::begin(&mapping, goes_on)?;
        }
    }
    kind.reserve(file, path, capacity, goes_on)?;
    let found = kind.length(file, path)?;
    if !kind.fits(found, capacity) {
        return Err(Error::Length { file: path.to_path_buf(), found, expected: capacity });
    }
    Mapping::new(file, path, capacity)
}

/// Gives `file` its length and sets the NUMA policy of its pages, before it has any. Returns its
/// mapping, or `None` if the file cannot get this long: then reserving returns the reason.
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

/// Returns whether `path` leads to `file`.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let ours = file.metadata().map(|found| (found.dev(), found.ino()));
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

/// Removes a file if possible: the path to an error must not end in another.
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

//! What can be wrong with a pool.

use std::io;
use std::path::{Path, PathBuf};

use swarm_core::layout::BadGeometry;
use swarm_core::node::NodeId;

/// Why something could not be done with a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pool cannot have the size or the number of nodes or clients that was asked for.
    #[error("{0}")]
    Geometry(#[from] BadGeometry),
    /// There is a pool here already.
    #[error("{}: there is a pool here already; choose another directory, or destroy it first", pool.display())]
    Exists {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// Another process is creating a pool here.
    #[error("{}: another process is creating a pool here right now; wait for it and open the pool", pool.display())]
    BeingCreated {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The process that created a pool here died half-way.
    #[error("{}: the creation of a pool here was cut short; create it again, or remove what is left (swarm \
             destroy)", pool.display())]
    Unfinished {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// A new pool's node would overwrite something.
    #[error("{}: is there already and would be overwritten; move it away or choose another place", file.display())]
    Occupied {
        /// The file or device.
        file: PathBuf,
    },
    /// The number of paths for nodes is not the number of nodes.
    #[error("give as many paths as there are memory nodes: {nodes}, not {paths}")]
    NodePaths {
        /// How many paths.
        paths: usize,
        /// How many nodes.
        nodes: usize,
    },
    /// The file cannot hold a node's memory.
    #[error("{}: cannot be used: {reason}", file.display())]
    Unsuited {
        /// The file or device.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The file system has no room for a node's memory.
    #[error("{}: the file system is full: {needed} bytes are needed here; free some space or create \
             the pool with a smaller capacity", file.display())]
    Full {
        /// The file.
        file: PathBuf,
        /// Bytes of the file.
        needed: u64,
    },
    /// A file may not be as large as that.
    #[error("{}: {needed} bytes are more than a file of this process may have: {limit}; raise the limit (ulimit -f), or \
             create the pool with a smaller capacity", file.display())]
    FileSize {
        /// The file.
        file: PathBuf,
        /// Bytes that it is to have.
        needed: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// A control group has no room for the pool's memory.
    #[error("{}: the pool takes {needed} bytes of memory, and the limit of {limit} bytes in {} leaves {free}: the \
             kernel would end a process; raise it, end what else runs in that control group, or create a smaller pool",
             pool.display(), group.display())]
    ControlGroup {
        /// The pool's directory.
        pool: PathBuf,
        /// Bytes that it takes.
        needed: u64,
        /// The file that the limit stands in.
        group: PathBuf,
        /// The limit, bytes.
        limit: u64,
        /// Bytes that are left of it.
        free: u64,
    },
    /// The file would be another host's as well, or a server's.
    #[error("{}: lies on {name}, where what is mapped is a copy: a client on another host, or on the other side, would \
             not see what is written here; choose a directory in /dev/shm or on a local disk, or force it if this host \
             alone uses the pool (--force)", file.display())]
    SharedFileSystem {
        /// The pool's directory, or a node's file.
        file: PathBuf,
        /// What it lies on.
        name: &'static str,
    },
    /// The files cannot have such a mode.
    #[error(
        "a pool's files have modes in which their owner reads and writes and nobody runs anything, such as 600, 660 or \
             666; {mode:o} is none"
    )]
    Mode {
        /// The mode that was asked for.
        mode: u32,
    },
    /// There is no such group.
    #[error("there is no group {group:?} on this host; `getent group` lists those that there are")]
    NoGroup {
        /// Its name.
        group: String,
    },
    /// The files cannot be given to a group.
    #[error("{}: cannot be given to group {group}: {source}; be a member of the group, or root. Nothing is left of the \
             pool", file.display())]
    Group {
        /// The file.
        file: PathBuf,
        /// The group's number.
        group: u32,
        /// What the operating system said.
        source: io::Error,
    },
    /// A device has the rights that its administrator gave it.
    #[error("{}: is a device, whose mode and group are not changed by a pool; see to them by themselves, and leave out \
             mode and group", file.display())]
    DeviceRights {
        /// The device.
        file: PathBuf,
    },
    /// Memory of that kind comes in larger pieces.
    #[error("the capacity must be a multiple of {unit} bytes in {}: {capacity} is none, {} is", place.display(),
            capacity.next_multiple_of(*unit))]
    CapacityUnit {
        /// Where the memory was to lie.
        place: PathBuf,
        /// The capacity, bytes.
        capacity: u64,
        /// What it must be a multiple of, bytes.
        unit: u64,
    },
    /// The creation was [told](crate::CreateOptions::stop) to end.
    #[error("{}: the creation of the pool was interrupted; nothing is left of it", pool.display())]
    Stopped {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The process has as many files open as it may.
    #[error("{}: cannot {action}: this process has as many files open as it may; close some, or raise the limit \
             (ulimit -n)", file.display())]
    Descriptors {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
    },
    /// This machine has no such NUMA node, or this process may have no memory there.
    #[error(
        "this process can have memory on the NUMA nodes {nodes:?}, not on {node}; choose one of these"
    )]
    NoNumaNode {
        /// The node that was asked for.
        node: u32,
        /// Those that there are.
        nodes: Vec<u32>,
    },
    /// The kernel took no NUMA policy.
    #[error(
        "the kernel takes no NUMA policy: {source}; it was built without, or a container's rules \
             forbid `get_mempolicy` or `mbind`; leave it to the kernel"
    )]
    NumaRefused {
        /// What the operating system said.
        source: io::Error,
    },
    /// There is no pool.
    #[error("{}: there is no pool here; check the path, or create one", pool.display())]
    NoPool {
        /// Where it was looked for.
        pool: PathBuf,
    },
    /// There are memory nodes, but no control file.
    #[error("{}: is missing, though the files of memory nodes lie beside it; bring it back, or remove what is \
             left of the pool (swarm destroy --force)", file.display())]
    NoControl {
        /// The control file.
        file: PathBuf,
    },
    /// A memory node's file is missing.
    #[error("{}: the file of {node} is missing; bring it back, or open the pool degraded to go on \
             with the others", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
    },
    /// The files of a majority of the nodes are missing, damaged or another's.
    #[error("{}: majority gone: the files of {} of {nodes} memory nodes are missing or cannot be used; bring \
             them back: {}", pool.display(), whys.len(), list(whys))]
    MajorityGone {
        /// The pool's directory.
        pool: PathBuf,
        /// How many nodes there are.
        nodes: usize,
        /// What is wrong with each of those files.
        whys: Vec<Error>,
    },
    /// The file is shorter or longer than it was created.
    #[error("{}: its length is {found} where {expected} is right, in bytes: it was truncated or \
             replaced; bring the right file back", file.display())]
    Length {
        /// The file.
        file: PathBuf,
        /// Its length, bytes.
        found: u64,
        /// What it should be, bytes.
        expected: u64,
    },
    /// The file is not one of a pool at all.
    #[error("{}: is no file of a pool; bring the right file back", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The file has a layout that this program does not know.
    #[error("{}: has layout version {found}, this program knows {known}; use the program that \
             made the pool, or a newer one", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its layout version.
        found: u64,
        /// The layout version that this program reads and writes.
        known: u64,
    },
    /// The pool uses something that this program does not know.
    #[error("{}: the pool uses features that this program does not know (bits {unknown:#x}); use the \
             program that made the pool, or a newer one", file.display())]
    Features {
        /// The file that says so.
        file: PathBuf,
        /// A bit for each that is not known.
        unknown: u64,
    },
    /// The file's header is damaged.
    #[error("{}: its header is damaged: {what}; bring back an undamaged copy", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The node belongs to another pool.
    #[error("{}: belongs to pool {found:032x}, not to this pool, {expected:032x}; bring the right \
             file back", file.display())]
    OtherPool {
        /// The file.
        file: PathBuf,
        /// The pool that it belongs to.
        found: u128,
        /// The pool that was opened.
        expected: u128,
    },
    /// The file is another node's.
    #[error("{}: is the file of {found}, where {expected} was looked for; put the files back in \
             order", file.display())]
    WrongNode {
        /// The file.
        file: PathBuf,
        /// The node whose file it is.
        found: NodeId,
        /// The node that was looked for.
        expected: NodeId,
    },
    /// The process may not use the file.
    #[error("{}: no permission to read and write; run as the pool's owner, or have access \
             granted", file.display())]
    Permission {
        /// The file.
        file: PathBuf,
    },
    /// Every client slot is held.
    #[error("{}: every client slot of {limit} is held by a live client; close one, or create the \
             pool for more clients", pool.display())]
    Slots {
        /// The pool's directory.
        pool: PathBuf,
        /// How many slots there are.
        limit: usize,
    },
    /// The pool has given out every incarnation.
    #[error("{}: the pool has given out all of its client incarnations; copy its content to a new \
             pool", pool.display())]
    Incarnations {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// Live clients use the pool.
    #[error("{}: clients are using the pool, in slots {clients:?}; end them first, or use force", pool.display())]
    InUse {
        /// The pool's directory.
        pool: PathBuf,
        /// The slots that they hold.
        clients: Vec<usize>,
    },
    /// The pool was destroyed, or replaced by another one, while it was open.
    #[error("{}: the pool was destroyed after it was opened; open the one that is there now, if any", pool.display())]
    Gone {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The pool's destruction was begun and cut short.
    #[error("{}: the pool is half destroyed: its destruction was begun and cut short; destroy it \
             again to remove the rest", pool.display())]
    HalfDestroyed {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// A pool was not destroyed, because something about it is not as it should be.
    #[error("{why}. Nothing was removed; to remove what is left of the pool, use force")]
    NotDestroyed {
        /// What is not as it should be.
        why: Box<Error>,
    },
    /// Some of a pool's files could not be removed.
    #[error(
        "{why}. Removed so far: {}; the rest is there, and the pool cannot be opened any more: see to it, and \
             destroy it again",
        names(removed)
    )]
    PartlyDestroyed {
        /// What went wrong.
        why: Box<Error>,
        /// The files that were removed.
        removed: Vec<PathBuf>,
    },
    /// A destroyed pool's directory held something that is not the pool's.
    #[error("{}: is not recognizably this pool's and was left in place; the rest of the pool is \
             gone, so remove it by hand if it is not needed", file.display())]
    LeftOver {
        /// The first such file.
        file: PathBuf,
    },
    /// Nobody is in a client slot.
    #[error("{}: there is no client {slot} (of {limit} slots); `swarm info` lists those that are \
             there", pool.display())]
    NoClient {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
        /// How many slots there are.
        limit: usize,
    },
    /// A process was to end itself.
    #[error("{}: client {slot} is this process's own; drop it instead", pool.display())]
    OwnClient {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
    },
    /// A client's process cannot be seen from here.
    #[error("{}: client {slot} is process {process} of pid namespace {namespace}, which cannot be \
             seen from here; evict it in its container, or as root on the host outside of all \
             containers", pool.display())]
    Elsewhere {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
        /// What the process calls itself.
        process: u32,
        /// The kernel's number for its pid namespace; 0 if it is not known.
        namespace: u32,
    },
    /// A client's process may not be looked at or ended.
    #[error("{}: client {slot} is process {process}, which this user may not end; do it as the \
             user that it runs as, or as root", pool.display())]
    NotAllowed {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
        /// The process.
        process: u32,
    },
    /// A client has not said yet which process it is.
    #[error("{}: client {slot} is just coming or going; look again", pool.display())]
    Nameless {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
    },
    /// A client was killed and is still there.
    #[error("{}: client {slot}, processes {processes:?}, was sent SIGKILL and still holds its slot; \
             the kernel ends it when it comes back from the device that it waits for", pool.display())]
    DoesNotEnd {
        /// The pool's directory.
        pool: PathBuf,
        /// The slot.
        slot: usize,
        /// Its processes.
        processes: Vec<u32>,
    },
    /// The operating system refused something.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Several errors, one after the other.
fn list(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

/// Several files, one after the other.
fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The error for a refused system call.
    pub(crate) fn io(file: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        let (file, source) = (file.to_path_buf(), source.into());
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { file },
            _ if source.raw_os_error() == Some(libc::EMFILE) => Self::Descriptors { file, action },
            _ => Self::Io { file, action, source },
        }
    }

    pub(crate) fn unsuited(file: &Path, reason: impl Into<String>) -> Self {
        Self::Unsuited { file: file.to_path_buf(), reason: reason.into() }
    }
}

//! Errors of pools.

use std::io;
use std::path::{Path, PathBuf};

use swarm_core::layout::BadGeometry;
use swarm_core::node::NodeId;

/// Why an operation on a pool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pool cannot have the requested size or number of nodes or clients.
    #[error("{0}")]
    Geometry(#[from] BadGeometry),
    /// A pool already exists here.
    #[error("{}: a pool already exists here; choose another directory, or destroy it first", pool.display())]
    Exists {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// Another process is creating a pool here.
    #[error("{}: another process is creating a pool here; wait for it and open the pool", pool.display())]
    BeingCreated {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The process that created a pool here died half-way.
    #[error("{}: the creation of a pool here was interrupted; create it again, or remove its files (swarm \
             destroy)", pool.display())]
    Unfinished {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// A new pool's node would overwrite a file or a pool's device.
    #[error("{}: already exists and would be overwritten; move it away or choose another place", file.display())]
    Occupied {
        /// The file or device.
        file: PathBuf,
    },
    /// The number of paths for nodes is not the number of nodes.
    #[error("{paths} paths were given for {nodes} memory nodes; give one path for each node")]
    NodePaths {
        /// Number of paths.
        paths: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// The file cannot hold a node's memory.
    #[error("{}: cannot be used: {reason}", file.display())]
    Unsuited {
        /// The file or device.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file system has no room for a node's memory.
    #[error("{}: the file system is full: the file needs {needed} bytes; free some space or create \
             the pool with a smaller capacity", file.display())]
    Full {
        /// The file.
        file: PathBuf,
        /// Bytes of the file.
        needed: u64,
    },
    /// The kernel has no huge pages left for a node's memory.
    #[error("{}: there are too few free huge pages: the file needs {pages} of {page} bytes; have the kernel reserve more \
             (nr_hugepages or nr_overcommit_hugepages below /sys/kernel/mm/hugepages), or create the pool with a smaller \
             capacity", file.display())]
    HugePages {
        /// The file.
        file: PathBuf,
        /// Pages of the file.
        pages: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// The file would exceed this process's limit on file sizes.
    #[error("{}: {needed} bytes exceed this process's limit on file sizes, {limit} bytes; raise the limit (ulimit -f), or \
             create the pool with a smaller capacity", file.display())]
    FileSize {
        /// The file.
        file: PathBuf,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// A control group has no room for the pool's memory.
    #[error("{}: the pool takes {needed} bytes of memory, and the limit of {limit} bytes in {} leaves {free} bytes: the \
             kernel would kill a process; raise the limit, end other processes of that control group, or create a smaller pool",
             pool.display(), group.display())]
    ControlGroup {
        /// The pool's directory.
        pool: PathBuf,
        /// Bytes that it takes.
        needed: u64,
        /// The file with the limit.
        group: PathBuf,
        /// The limit, bytes.
        limit: u64,
        /// Bytes that are left of it.
        free: u64,
    },
    /// The file system is shared with other hosts: each has its own copy of a mapped file.
    #[error("{}: lies on {name}, where a mapped file is a copy: a client on another host, or on the server, would \
             not see what is written here; choose a directory in /dev/shm or on a local disk, or use --force if only \
             this host uses the pool", file.display())]
    SharedFileSystem {
        /// The pool's directory, or a node's file.
        file: PathBuf,
        /// The file system.
        name: &'static str,
    },
    /// The files cannot have this mode.
    #[error(
        "mode {mode:o} is not allowed: the owner must be able to read and write, and no user to execute; choose a mode \
             such as 600, 660 or 666"
    )]
    Mode {
        /// The mode that was asked for.
        mode: u32,
    },
    /// There is no such group.
    #[error("there is no group {group:?} on this host; choose one that `getent group` lists")]
    NoGroup {
        /// Its name.
        group: String,
    },
    /// The files cannot be given to a group.
    #[error("{}: cannot be given to group {group}: {source}; run as a member of the group, or as root; no pool was \
             created", file.display())]
    Group {
        /// The file.
        file: PathBuf,
        /// The group's number.
        group: u32,
        /// The operating system's error.
        source: io::Error,
    },
    /// A pool does not change the rights of a device.
    #[error("{}: is a device, and a pool does not change the mode and group of devices; set them on the device, and leave \
             out mode and group", file.display())]
    DeviceRights {
        /// The device.
        file: PathBuf,
    },
    /// The backing memory has larger units.
    #[error("the capacity must be a multiple of {unit} bytes in {}: {capacity} is not, {} is", place.display(),
            capacity.next_multiple_of(*unit))]
    CapacityUnit {
        /// The file or directory of the memory.
        place: PathBuf,
        /// The capacity, bytes.
        capacity: u64,
        /// What it must be a multiple of, bytes.
        unit: u64,
    },
    /// The creation was [stopped](crate::CreateOptions::stop).
    #[error("{}: the creation of the pool was stopped; its files were removed; create it again", pool.display())]
    Stopped {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The process has reached its limit of open files.
    #[error("{}: cannot {action}: this process has reached its limit of open files; close some, or raise the limit \
             (ulimit -n)", file.display())]
    Descriptors {
        /// The file.
        file: PathBuf,
        /// What failed.
        action: &'static str,
    },
    /// This machine has no such NUMA node, or this process may not have memory there.
    #[error("this process cannot have memory on NUMA node {node}; choose one of {nodes:?}")]
    NoNumaNode {
        /// The node that was requested.
        node: u32,
        /// The nodes on which this process may have memory.
        nodes: Vec<u32>,
    },
    /// The kernel refused a NUMA policy.
    #[error(
        "the kernel refused a NUMA policy: {source}: it was built without NUMA, or a container's rules \
             forbid `get_mempolicy` or `mbind`; leave out the NUMA policy"
    )]
    NumaRefused {
        /// The operating system's error.
        source: io::Error,
    },
    /// There is no pool.
    #[error("{}: there is no pool here; check the path, or create one", pool.display())]
    NoPool {
        /// The directory.
        pool: PathBuf,
    },
    /// There are memory nodes, but no control file.
    #[error("{}: is missing, but the files of memory nodes are there; make it anew from them (swarm repair), or \
             remove the rest of the pool (swarm destroy --force)", file.display())]
    NoControl {
        /// The control file.
        file: PathBuf,
    },
    /// A memory node's file is missing.
    #[error("{}: the file of {node} is missing; restore it, replace the node (swarm replace), or open the \
             pool degraded to go on with the others", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
    },
    /// The files of a majority of the nodes are missing, damaged or another's.
    #[error("{}: majority gone: the files of {} of {nodes} memory nodes are missing or cannot be used; restore \
             them: {}", pool.display(), whys.len(), list(whys))]
    MajorityGone {
        /// The pool's directory.
        pool: PathBuf,
        /// The pool's number of nodes.
        nodes: usize,
        /// Each such file's error.
        whys: Vec<Error>,
    },
    /// The file is shorter or longer than when it was created.
    #[error("{}: its length is {found} bytes, not {expected} bytes: it was truncated or \
             replaced; restore the original file{}", file.display(), or_repair(file))]
    Length {
        /// The file.
        file: PathBuf,
        /// Its length, bytes.
        found: u64,
        /// Its original length, bytes.
        expected: u64,
    },
    /// The pool was opened to read only.
    #[error("{}: the pool was opened to read only, but a client writes; open it for writing as well", pool.display())]
    ReadOnly {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The file's memory was lost while this process had it mapped, and its length does not show why.
    #[error("{}: its memory failed under this process (SIGBUS): the file was cut short and grew again, its file system has no room for \
             space that it reserved, or the machine's memory is damaged; check the system's log, and restore an intact file", file.display())]
    MemoryLost {
        /// The file.
        file: PathBuf,
    },
    /// The file is not a pool's.
    #[error("{}: is no file of a pool; restore the original file{}", file.display(), or_repair(file))]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The file has a layout that this program does not know.
    #[error("{}: has layout version {found}, but this program knows version {known}; use the program that \
             created the pool, or a newer one", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its layout version.
        found: u64,
        /// The layout version that this program reads and writes.
        known: u64,
    },
    /// The pool uses features that this program does not know.
    #[error("{}: the pool uses features that this program does not know (bits {unknown:#x}); use the \
             program that created the pool, or a newer one", file.display())]
    Features {
        /// The file with the feature bits.
        file: PathBuf,
        /// A bit for each unknown feature.
        unknown: u64,
    },
    /// The file's header is damaged.
    #[error("{}: its header is damaged: {what}; restore an intact copy{}", file.display(), or_repair(file))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is damaged.
        what: String,
    },
    /// The node belongs to another pool.
    #[error("{}: belongs to pool {found:032x}, not to this pool, {expected:032x}; restore the original \
             file", file.display())]
    OtherPool {
        /// The file.
        file: PathBuf,
        /// The pool that it belongs to.
        found: u128,
        /// The pool that was opened.
        expected: u128,
    },
    /// The file is that of another node.
    #[error("{}: is the file of {found}, not of {expected}; restore the files to their original \
             names", file.display())]
    WrongNode {
        /// The file.
        file: PathBuf,
        /// The node whose file it is.
        found: NodeId,
        /// The node that was expected.
        expected: NodeId,
    },
    /// The file is a copy that was made before the node was last used.
    #[error("{}: is an older copy of the file of {node}: its event count is {found}, that of the current file at least \
             {known}; restore the current file, replace the node (swarm replace), or open the pool degraded to go on \
             with the others", file.display())]
    Older {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
        /// The file's event count.
        found: u64,
        /// The least event count of the node's current file.
        known: u64,
    },
    /// The control file is older than the node's file.
    #[error("{}: the file of {node} is newer than the control file: its event count is {found}, that in the control file \
             {known}; restore files of one point in time, make the control file anew (swarm repair), or open the pool degraded \
             to go on with the others", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
        /// The file's event count.
        found: u64,
        /// The event count in the control file.
        known: u64,
    },
    /// The control file is a copy that was made before most of the nodes were last used.
    #[error("{}: is an older copy of the control file, or damaged: the files of {} of {nodes} memory nodes were used since; restore \
             the current control file, make it anew from the nodes' files (swarm repair), or restore all files of one earlier point \
             in time: {}", file.display(), whys.len(), list(whys))]
    OlderControl {
        /// The control file.
        file: PathBuf,
        /// The pool's number of nodes.
        nodes: usize,
        /// Each such file's error.
        whys: Vec<Error>,
    },
    /// The process may not use the file.
    #[error("{}: no permission to read and write; run as the pool's owner, or let the owner grant \
             access", file.display())]
    Permission {
        /// The file.
        file: PathBuf,
    },
    /// All client slots are in use.
    #[error("{}: every client slot of {limit} is in use by a live client; close a client, or create a \
             pool for more clients", pool.display())]
    Slots {
        /// The pool's directory.
        pool: PathBuf,
        /// The pool's number of client slots.
        limit: usize,
    },
    /// The pool has given out every incarnation.
    #[error("{}: the pool has given out all of its client incarnations; copy its contents to a new \
             pool", pool.display())]
    Incarnations {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// A client's incarnation cannot be recorded at a majority of the nodes.
    #[error("{}: cannot give a client a number of its own: a majority of the memory nodes has to record it, and their \
             files were cut short, or their headers are damaged; restore intact files", pool.display())]
    Unrecorded {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// Live clients use the pool.
    #[error("{}: clients are using the pool, in client slots {clients:?}; end them first, or use force", pool.display())]
    InUse {
        /// The pool's directory.
        pool: PathBuf,
        /// Their client slots.
        clients: Vec<usize>,
    },
    /// Processes have the pool open whose control file is to be made anew.
    #[error("{}: the pool is open in {}: its control file can be made anew only while no process has it open; end them first. \
             Nothing was changed", pool.display(), openers(processes))]
    Open {
        /// The pool's directory.
        pool: PathBuf,
        /// Those that can be seen from here.
        processes: Vec<u32>,
    },
    /// Another file has taken the node's place since this one was its own.
    #[error("{}: is a former file of {node}, which was replaced since: it is of life {found}, the current one of life {current}; \
             restore the current file, open the pool degraded to go on with the others, or replace the node again (swarm replace)",
            file.display())]
    FormerLife {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
        /// The file's life.
        found: u32,
        /// The life of the current file.
        current: u32,
    },
    /// The file was to take the place of a lost one, and its filling never ended.
    #[error("{}: was to take the place of {node} and was never filled; replace the node again (swarm replace), or open the pool \
             degraded to go on with the others", file.display())]
    Unfilled {
        /// The file.
        file: PathBuf,
        /// The node.
        node: NodeId,
    },
    /// A pool has no node of this number, or none that the others could fill.
    #[error("{}: {node} cannot be replaced: {reason}. Nothing was changed", pool.display())]
    NotReplaceable {
        /// The pool's directory.
        pool: PathBuf,
        /// The node.
        node: NodeId,
        /// The reason.
        reason: String,
    },
    /// The node is being replaced, or its replacement was interrupted: the pool goes on without it.
    #[error("{}: {node} is being replaced, or its replacement was interrupted: the pool goes on without it until it is filled \
             (swarm info shows how far that is; swarm replace begins anew)", pool.display())]
    NotVoting {
        /// The pool's directory.
        pool: PathBuf,
        /// The node.
        node: NodeId,
    },
    /// Another process replaces the same node.
    #[error("{}: {node} is being replaced by {}; wait for it, or end it and replace the node again", pool.display(),
            openers(processes))]
    BeingReplaced {
        /// The pool's directory.
        pool: PathBuf,
        /// The node.
        node: NodeId,
        /// Those processes that can be seen from here.
        processes: Vec<u32>,
    },
    /// Another process changes the pool's configuration and does not go on.
    #[error("{}: the configuration is being changed by {}, which does not go on; continue or end it", pool.display(),
            openers(processes))]
    BeingConfigured {
        /// The pool's directory.
        pool: PathBuf,
        /// Those processes that can be seen from here.
        processes: Vec<u32>,
    },
    /// Another process makes the pool's control file anew.
    #[error("{}: another process repairs the pool; wait for it and open the pool", pool.display())]
    BeingRepaired {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The control file that is there is another pool's, and whole.
    #[error("{}: is the control file of pool {found:032x}, but the memory nodes' files belong to {expected:032x}; restore the \
             original file, or move this one away and repair the pool again. Nothing was changed", file.display())]
    OtherControl {
        /// The control file.
        file: PathBuf,
        /// The pool that it belongs to.
        found: u128,
        /// The nodes' pool.
        expected: u128,
    },
    /// The owner of a control file that was made anew cannot be that of the nodes' files.
    #[error("{}: cannot be given to user {user} and group {group}, who own the files of the memory nodes: {source}; repair the pool as \
             that user, or as root. Nothing was changed", file.display())]
    Owner {
        /// The file.
        file: PathBuf,
        /// The user's number.
        user: u32,
        /// The group's number.
        group: u32,
        /// The operating system's error.
        source: io::Error,
    },
    /// The pool was destroyed, or replaced by another one, while it was open.
    #[error("{}: the pool was destroyed while it was open; open the pool that is there now, if any", pool.display())]
    Gone {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// The pool's destruction was interrupted.
    #[error("{}: the pool is half destroyed: its destruction was interrupted; destroy it \
             again to remove the rest", pool.display())]
    HalfDestroyed {
        /// The pool's directory.
        pool: PathBuf,
    },
    /// A pool was not destroyed, because one of its files has a fault.
    #[error("{why}. Nothing was removed; to remove the pool anyway, use force")]
    NotDestroyed {
        /// The fault.
        why: Box<Error>,
    },
    /// Some of a pool's files could not be removed.
    #[error(
        "{why}. Removed so far: {}; the pool cannot be opened any more: remove the cause, and \
             destroy it again",
        names(removed)
    )]
    PartlyDestroyed {
        /// The cause.
        why: Box<Error>,
        /// The files that were removed.
        removed: Vec<PathBuf>,
    },
    /// A destroyed pool's directory contained a file that is not the pool's.
    #[error("{}: is not recognizably this pool's and was left in place; the rest of the pool was \
             removed; remove this file by hand if it is not needed", file.display())]
    LeftOver {
        /// The first such file.
        file: PathBuf,
    },
    /// A client slot has no owner.
    #[error("{}: there is no client {slot} (of {limit} client slots); `swarm info` lists the \
             clients", pool.display())]
    NoClient {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
        /// The pool's number of client slots.
        limit: usize,
    },
    /// A process tried to evict itself.
    #[error("{}: client {slot} belongs to this process; drop it instead", pool.display())]
    OwnClient {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
    },
    /// A client's process cannot be seen from here.
    #[error("{}: client {slot} is process {process} of pid namespace {namespace}, which cannot be \
             seen from here; evict it in its container, or as root on the host outside all \
             containers", pool.display())]
    Elsewhere {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
        /// Its process id in its own namespace.
        process: u32,
        /// The kernel's number for its pid namespace; 0 if unknown.
        namespace: u32,
    },
    /// This user may not examine or end a client's process.
    #[error("{}: client {slot} is process {process}, which this user may not end; evict it as the \
             user that runs it, or as root", pool.display())]
    NotAllowed {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
        /// The process.
        process: u32,
    },
    /// A client has not stored its process id yet, or has removed it.
    #[error("{}: client {slot} is attaching or leaving; try again", pool.display())]
    Nameless {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
    },
    /// A client was killed and has not ended.
    #[error("{}: client {slot}, processes {processes:?}, was sent SIGKILL and still holds its client slot; \
             the kernel ends it when the device that it waits for answers or, if it is frozen, when it is thawed", pool.display())]
    DoesNotEnd {
        /// The pool's directory.
        pool: PathBuf,
        /// The client slot.
        slot: usize,
        /// Its processes.
        processes: Vec<u32>,
    },
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What failed.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Lists several errors.
fn list(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns what else can be done about a control file.
fn or_repair(file: &Path) -> &'static str {
    if file.ends_with("control") {
        ", or make it anew from the nodes' files (swarm repair)"
    } else {
        ""
    }
}

/// Lists processes.
fn openers(processes: &[u32]) -> String {
    match processes {
        [] => "processes that cannot be seen from here (another user's, or in another container)"
            .into(),
        [one] => format!("process {one}"),
        _ => format!("processes {processes:?}"),
    }
}

/// Lists several files.
fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// Returns the error for a failed system call.
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

//! An open pool.

use std::path::{self, Path, PathBuf};
use std::sync::Arc;

use swarm_core::layout::{Geometry, SLOTS};
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::attachment::{Attachment, Held, live_clients};
use crate::clock::{Line, PoolClock};
use crate::control::Control;
use crate::destroy::DirectoryLeft;
use crate::error::Error;
use crate::fabric::ShmFabric;
use crate::file_system::FileSystem;
use crate::header::Member;
use crate::holder::Name;
use crate::mapping::Mapping;
use crate::numa::Numa;
use crate::pages::{self, Pages};
use crate::rights::Rights;
use crate::switch::NodeSwitch;
use crate::sync::Ordering;
use crate::{create, destroy, node};

/// What a new pool is to be like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each node's memory, reserved at once.
    pub capacity: u64,
    /// The most clients at a time.
    pub max_clients: usize,
    /// [Stamp slots in use](Geometry::slots): 6, or fewer.
    pub slots: usize,
    /// For tests: [bits of a pointer](Geometry::with_pointer_bits), if not as many as it needs.
    pub pointer_bits: Option<u32>,
    /// Where the nodes' memory lies, if not in the pool's directory: a path for each node, of a
    /// file to create (on another file system, say) or of a DAX device that is there. The pool's
    /// directory then holds links.
    pub node_paths: Option<Vec<PathBuf>>,
    /// How large the memory's pages are, for all who open the pool. It is quicker to have huge ones from the
    /// beginning than to get them later.
    pub pages: Pages,
    /// On which NUMA nodes the memory lies, for all who open the pool. It is reserved there.
    pub numa: Numa,
    /// Whom the pool is for, besides this user. All of it is granted, or there is no pool. A directory that was there keeps
    /// its own.
    pub rights: Option<Rights>,
    /// Also on a file system whose mapped files are copies, such as NFS or FUSE.
    pub any_file_system: bool,
    /// Asked before each step of the creation, of some 100 ms at most: once it says so, the creation ends in [`Error::Stopped`].
    /// For programs that a signal ends, which would leave half a pool.
    pub stop: Option<fn() -> bool>,
}

impl Default for CreateOptions {
    /// Three nodes of 256 MiB, for 64 clients, in huge pages where they can be had.
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

/// How to open a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Go on without nodes whose files are missing, damaged, cut short or another's, as long as a majority is there:
    /// [`Pool::absent_nodes`] says which.
    pub degraded: bool,
    /// What is done about the memory's pages. [`Pages::Touched`], the default, takes no time, and is what a pool needs
    /// that was created with [`Pages::Huge`], as it is unless somebody chose otherwise.
    pub pages: Pages,
    /// On which NUMA nodes memory is to lie that comes from now on, whoever touches it. What lies elsewhere is moved there, if this
    /// process alone has it mapped: all of the pool, if it is opened with [`Pages::Huge`] and nobody else has it open.
    /// [`Numa::Interleave`] moves nothing, as all nodes are right: choose it at creation.
    pub numa: Numa,
}

/// A node that an opening of a pool goes on without.
#[derive(Debug)]
#[non_exhaustive]
pub struct AbsentNode {
    /// Which one.
    pub node: NodeId,
    /// What is wrong with its file.
    pub why: Error,
}

/// An open pool: a directory with a control file and one file for each memory node, all mapped
/// into this process. Cheap to clone, and shared between threads; each client takes a
/// [`fabric`](Self::fabric), a [`clock`](Self::clock) and an [`attachment`](Self::attach) of its
/// own. A child that the process forks may go on with its copy, and take what its own clients need.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    control: Control,
    nodes: [Option<Arc<Mapping>>; MAX_NODES],
    absent: Vec<AbsentNode>,
    clock: Line,
    held: Held,
}

impl Pool {
    /// Creates a pool in `dir`, which is created if it is not there, and opens it.
    ///
    /// # Errors
    /// There is one already, the options contradict each other, or there is no room. Nothing is
    /// left behind.
    pub fn create(dir: impl AsRef<Path>, options: &CreateOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        create::create(dir, options)?;
        Self::open(dir, OpenOptions::default()).inspect_err(|_| drop(Self::destroy(dir, true)))
    }

    /// Opens the pool in `dir`. Everything about its files is verified first; a pool that cannot
    /// be opened is left as it was.
    ///
    /// # Errors
    /// There is no pool, or one of its files is missing, damaged or another's; with
    /// [`degraded`](OpenOptions::degraded), those of a majority of the nodes are, or the control file.
    pub fn open(dir: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        // The directory must be found again when a client attaches, wherever the process is then.
        let dir = path::absolute(dir).map_err(|error| Error::io(dir, "find", error))?;
        options.numa.check()?;
        let control = Control::open(&dir)?;
        let (nodes, absent) = map_nodes(&control, options)?;
        let clock = Line::of(&control)?;
        let pool =
            Self { inner: Arc::new(Inner { control, nodes, absent, clock, held: Held::new() }) };
        if options.pages == Pages::Huge {
            pool.populate();
        }
        // Behind the pages: it moves those that this process has.
        pool.inner.nodes.iter().flatten().try_for_each(|mapping| options.numa.apply(mapping))?;
        Ok(pool)
    }

    /// Removes the pool in `dir`: the files that are recognizably the pool's, and the directory if
    /// nothing else is in it, with the link to it if `dir` is one. Yields the directory if it stays. `force` does so under
    /// live clients, whose next operation fails, and removes damaged files as well unless they are another pool's, or the nodes of a
    /// pool that has lost its control file. What a creator left that died half-way takes no force.
    ///
    /// # Errors
    /// There is no pool, clients use it, or something that is not the pool's was left in place.
    pub fn destroy(dir: impl AsRef<Path>, force: bool) -> Result<Option<DirectoryLeft>, Error> {
        destroy::destroy(dir.as_ref(), force)
    }

    /// What lies where in the nodes.
    pub fn geometry(&self) -> Geometry {
        self.inner.control.header().geometry
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        self.inner.control.dir()
    }

    /// The pool's name for ever: random, from its creation.
    pub fn pool_id(&self) -> u128 {
        self.inner.control.header().pool_id
    }

    /// When the pool was created, in wall-clock nanoseconds since 1970.
    pub fn created(&self) -> u64 {
        self.inner.control.header().created
    }

    /// The name of a file system that nodes' files lie on and on which what was reserved may be missing when memory is touched, if there is
    /// one: a process ends with SIGBUS then. For telling people.
    pub fn copy_on_write(&self) -> Option<&'static str> {
        let all = NodeSet::all(self.geometry().nodes);
        all.into_iter().find_map(|id| match FileSystem::at(&node::path(self.path(), id)) {
            FileSystem::CopyOnWrite(name) => Some(name),
            FileSystem::Shared(_) | FileSystem::Local => None,
        })
    }

    /// The nodes that this opening goes on without, as it is [degraded](OpenOptions::degraded), and what was wrong with their
    /// files. In the order of their numbers.
    pub fn absent_nodes(&self) -> &[AbsentNode] {
        &self.inner.absent
    }

    /// Takes the lowest free client slot.
    ///
    /// # Errors
    /// All slots are held, or the pool was destroyed, or its destruction was begun.
    pub fn attach(&self) -> Result<Attachment, Error> {
        Attachment::new(self)
    }

    /// The client slots that have a live holder.
    pub fn live_clients(&self) -> Vec<usize> {
        live_clients(self.inner.control.file(), self.geometry().max_clients)
    }

    /// The process id that the last holder of a client slot had where it ran. For display only:
    /// the number may mean another process here, or none.
    pub fn client_process(&self, slot: usize) -> Option<u32> {
        if slot >= self.geometry().max_clients {
            return None;
        }
        let word = self.inner.control.slot(slot).load(Ordering::Relaxed);
        Name::decode(word).map(|name| name.process)
    }

    /// Access to the nodes for one client.
    pub fn fabric(&self) -> ShmFabric {
        ShmFabric::new(self)
    }

    /// Does at once what opening it with [`Pages::Huge`] does, which says what it costs: for processes that measure, or
    /// that stay and have a pool that was created with small pages.
    pub fn populate(&self) {
        self.inner.nodes.iter().flatten().for_each(|mapping| pages::populate(mapping));
    }

    /// The clock that all processes share, for one client.
    pub fn clock(&self) -> PoolClock {
        PoolClock::new(self.inner.clock, self.created())
    }

    /// The switch by which `node`, one of the pool's, is made to fail.
    ///
    /// # Panics
    /// There is no such node.
    pub fn switch(&self, node: NodeId) -> NodeSwitch {
        assert!(node.index() < self.geometry().nodes, "the pool has no {node}");
        NodeSwitch::new(&self.inner.control, node)
    }

    /// The slots that this opening of the pool holds.
    pub(crate) fn held(&self) -> &Held {
        &self.inner.held
    }

    pub(crate) fn control(&self) -> &Control {
        &self.inner.control
    }

    /// A node's memory, if there is such a node and its file was there.
    pub(crate) fn mapping(&self, node: usize) -> Option<&Arc<Mapping>> {
        self.inner.nodes.get(node)?.as_ref()
    }
}

type Nodes = ([Option<Arc<Mapping>>; MAX_NODES], Vec<AbsentNode>);

fn map_nodes(control: &Control, options: OpenOptions) -> Result<Nodes, Error> {
    let all = NodeSet::all(control.header().geometry.nodes);
    let mut nodes = [const { None }; MAX_NODES];
    let mut absent = Vec::new();
    for node in all {
        match map_node(control, node) {
            Ok(mapping) => nodes[node.index()] = Some(mapping),
            Err(why) if is_the_files(&why) => absent.push(AbsentNode { node, why }),
            Err(why) => return Err(why),
        }
    }
    if 2 * absent.len() > all.len() {
        let whys = absent.into_iter().map(|absent| absent.why).collect();
        return Err(Error::MajorityGone {
            pool: control.dir().to_path_buf(),
            nodes: all.len(),
            whys,
        });
    }
    if !options.degraded && !absent.is_empty() {
        return Err(absent.swap_remove(0).why);
    }
    Ok((nodes, absent))
}

fn map_node(control: &Control, node: NodeId) -> Result<Arc<Mapping>, Error> {
    let path = node::path(control.dir(), node);
    let Some(file) = node::open(&path)? else { return Err(Error::Missing { file: path, node }) };
    node::map(&file, &path, &control.header().of(Member::Node(node)))
}

/// Whether it is the node's file that something is wrong with. All else is this process's or this program's: it has no rights, no
/// descriptors left, or does not know the pool's layout, and others would go on with a node that it passes over for good.
fn is_the_files(why: &Error) -> bool {
    matches!(
        why,
        Error::Missing { .. }
            | Error::Length { .. }
            | Error::Foreign { .. }
            | Error::Damaged { .. }
            | Error::OtherPool { .. }
            | Error::WrongNode { .. }
            | Error::Unsuited { .. }
    )
}

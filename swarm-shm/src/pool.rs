//! An open pool.

use std::fs::File;
use std::path::{self, Path};
use std::sync::Arc;

use swarm_core::fabric::Lost;
use swarm_core::layout::Geometry;
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::clock::{Line, PoolClock};
use crate::error::Error;
use crate::events::{self, Standing};
use crate::files::configuration::{NodeState, own_life};
use crate::files::control::{self, CONTROL, Control, GENERATION};
use crate::files::header::{EVENTS, FileRole, OTHERS_EVENTS};
use crate::files::mapping::{Access, Mapping};
use crate::files::node;
use crate::files::numa::Numa;
use crate::files::pages::{self, Pages};
use crate::files::switch::NodeSwitch;
use crate::held::Held;
use crate::processes::stopped::{EvictStopped, Evictor};
use crate::words::epochs;
use crate::words::sync::{Ordering, fence};

/// How to open a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Goes on without nodes whose files are missing, damaged, cut short or another's, as long as a
    /// majority is there. [`Pool::absent_nodes`] lists them.
    pub degraded: bool,
    /// What is done about the memory's pages. [`Pages::Touched`], the default, takes no time. It
    /// suffices for a pool that was created with [`Pages::Huge`], the default there.
    pub pages: Pages,
    /// On which NUMA nodes memory lies that is allocated from now on, by any process. Memory that
    /// lies elsewhere is moved there if this process alone has it mapped: all of the pool, if it is
    /// opened with [`Pages::Huge`] and no other process has it open. [`Numa::Interleave`] moves
    /// nothing, as all nodes are right: choose it at creation.
    pub numa: Numa,
    /// Leaves SIGBUS to this program. Otherwise the first opening installs a handler for the whole
    /// process, and passes signals that do not concern pools on to the previous handler. If a file
    /// of the pool is cut short, or its memory fails, the kernel ends the process by that signal.
    /// With the handler a node is down instead ([`Pool::lost_nodes`]), and a client whose control
    /// file is cut short ends in an error. A program that installs its own handler later must call
    /// the previous one, or set this option.
    pub leave_sigbus: bool,
    /// Opens the pool to read only: for users without rights to write the files, or with a
    /// read-only mount. Such an opening takes no client slot and changes nothing; only a [read
    /// fabric](Pool::read_fabric) can be had of it.
    pub read_only: bool,
    /// Lets this opening's clients end others that were stopped for long enough in the middle of an
    /// operation: with SIGKILL, and only when a client lacks memory that comes back once they are
    /// gone. Without it they are named in the error of the write that is refused, and `swarm evict`
    /// ends them. Ends no process that this user may not end, and none in another pid namespace.
    /// A process under a debugger is stopped, too.
    pub evict_stopped: Option<EvictStopped>,
}

/// A node that this opening of a pool goes on without.
#[derive(Debug)]
#[non_exhaustive]
pub struct AbsentNode {
    /// Which one.
    pub node: NodeId,
    /// What is wrong with its file.
    pub why: Error,
}

/// An open pool: a directory with a control file and one file for each memory node, all mapped into
/// this process. Cheap to clone, and shared between threads; each client takes its own
/// [`fabric`](Self::fabric), [`clock`](Self::clock) and [client slot](Self::attach). A child that
/// the process forks may go on with its copy, and take what its own clients need.
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
    evictor: Option<Evictor>,
    options: OpenOptions,
    /// The openings of the nodes' files that say that this pool is open (S17): none if it is opened
    /// to read only.
    _present: Vec<File>,
}

impl Pool {
    /// Opens the pool in `dir`. Verifies all of its files first; a pool that cannot be opened is
    /// left unchanged.
    ///
    /// # Errors
    /// There is no pool, or one of its files is missing, damaged or another's. With
    /// [`degraded`](OpenOptions::degraded): the files of a majority of the nodes are, or the
    /// control file is.
    pub fn open(dir: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        // Absolute: attaching a client opens it again, whatever the working directory is then.
        let dir = path::absolute(dir).map_err(|error| Error::io(dir, "find", error))?;
        options.numa.check()?;
        let access = if options.read_only { Access::Read } else { Access::Write };
        let control = Control::open(&dir, access, !options.leave_sigbus)?;
        let Nodes { mapped: nodes, absent, present } = map_nodes(&control, options)?;
        let clock = Line::of(&control)?;
        let evictor = options.evict_stopped.map(Evictor::new);
        let (held, _present) = (Held::new(), present);
        let inner = Inner { control, nodes, absent, clock, held, evictor, options, _present };
        let pool = Self { inner: Arc::new(inner) };
        if options.pages == Pages::Huge && !options.read_only {
            pool.populate();
        }
        // After populating: it moves pages that this process has.
        pool.inner.nodes.iter().flatten().try_for_each(|mapping| options.numa.apply(mapping))?;
        pool.control().check()?;
        Ok(pool)
    }

    /// Opens the pool that is now in the directory of this one, with the options that this one was
    /// opened with: after a fork, or where it was destroyed and another one made.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reopen(&self) -> Result<Self, Error> {
        Self::open(self.path(), self.inner.options)
    }

    /// Opens the pool without `node`, for a process that alone has it open: `files` are those of its
    /// nodes that are there, exclusively locked (S17). The locks end with the opening.
    pub(crate) fn open_alone(
        control: Control,
        files: Vec<(NodeId, File)>,
        (node, why): (NodeId, Error),
    ) -> Result<Self, Error> {
        let (mut mapped, mut absent) = ([const { None }; MAX_NODES], Vec::new());
        for id in NodeSet::all(control.header().geometry.nodes) {
            if id == node {
                continue;
            }
            let path = node::path(control.dir(), id);
            let file = files.iter().find(|(other, _)| *other == id).map(|(_, file)| file);
            let found = file.ok_or_else(|| Error::Missing { file: path.clone(), node: id });
            match found.and_then(|file| map_current(&control, id, file, &path, Access::Write, true))
            {
                Ok(mapping) => mapped[id.index()] = Some(mapping),
                Err(why) if is_the_files(&why) => absent.push(AbsentNode { node: id, why }),
                Err(why) => return Err(why),
            }
        }
        absent.push(AbsentNode { node, why });
        absent.sort_by_key(|absent| absent.node);
        check_majority(&control, &mut absent)?;
        let clock = Line::of(&control)?;
        let _present = files.into_iter().map(|(_, file)| file).collect();
        let (held, evictor) = (Held::new(), None);
        let options = OpenOptions { degraded: true, ..OpenOptions::default() };
        let inner =
            Inner { control, options, nodes: mapped, absent, clock, held, evictor, _present };
        let pool = Self { inner: Arc::new(inner) };
        pool.control().check()?;
        Ok(pool)
    }

    /// Returns the number of the pool's configuration: how often a node was replaced.
    pub fn configuration(&self) -> u64 {
        self.control().configuration()
    }

    /// Returns how often each node was replaced.
    pub fn lives(&self) -> Vec<u32> {
        self.control().lives()[..self.geometry().nodes].to_vec()
    }

    /// Returns the layout of the nodes' memory.
    pub fn geometry(&self) -> Geometry {
        self.inner.control.header().geometry
    }

    /// Returns the pool's directory.
    pub fn path(&self) -> &Path {
        self.inner.control.dir()
    }

    /// Returns the pool's permanent id: random, drawn at creation.
    pub fn pool_id(&self) -> u128 {
        self.inner.control.header().pool_id
    }

    /// Returns when the pool was created, in wall-clock nanoseconds since 1970.
    pub fn created(&self) -> u64 {
        self.inner.control.header().created
    }

    /// Returns the nodes that this [degraded](OpenOptions::degraded) opening goes on without, and
    /// what was wrong with their files. Sorted by node number.
    pub fn absent_nodes(&self) -> &[AbsentNode] {
        &self.inner.absent
    }

    /// Returns the nodes that are down for this process for good, because it found their memory
    /// gone: a file was cut short under it, or its memory failed. Another process notices when it
    /// touches that memory. A process that opens the pool anew goes on without them if
    /// [`degraded`](OpenOptions::degraded).
    pub fn lost_nodes(&self) -> NodeSet {
        let all = NodeSet::all(self.geometry().nodes);
        all.holding(|id| self.mapping(id.index()).is_some_and(|mapping| mapping.is_lost()))
    }

    /// Returns whether the pool was opened to [read only](OpenOptions::read_only).
    pub fn is_read_only(&self) -> bool {
        self.control().is_read_only()
    }

    /// Returns the generation: how often cached locations were invalidated. A reader that is in no
    /// epoch table asks before its first READ and after its last.
    pub fn generation(&self) -> u64 {
        epochs::generation(&self.control().mapping().words()[control::EPOCH + GENERATION])
    }

    /// Returns what happened to the pool since it was opened, if anything did. One system call,
    /// `fstat`.
    pub fn lost(&self) -> Option<Lost> {
        let control = self.control();
        if control.says_destroyed() {
            return Some(Lost::Destroyed);
        }
        let is_another = || !control.is_as_configured() || self.is_replaced();
        control.fate().or_else(|| is_another().then_some(Lost::Removed))
    }

    /// Does at once what opening with [`Pages::Huge`] does, at the cost given there. For processes
    /// that measure, or that run long on a pool that was created with small pages.
    pub fn populate(&self) {
        if self.is_read_only() {
            return;
        }
        self.inner.nodes.iter().flatten().for_each(|mapping| pages::populate(mapping));
    }

    /// Returns the clock that all processes share, for one client.
    pub fn clock(&self) -> PoolClock {
        PoolClock::new(self.inner.clock, self.created())
    }

    /// Returns the switch that makes `node`, one of the pool's, fail.
    ///
    /// # Panics
    /// There is no such node, or the pool was opened to [read only](OpenOptions::read_only).
    pub fn switch(&self, node: NodeId) -> NodeSwitch {
        assert!(!self.is_read_only(), "the pool was opened to read alone");
        assert!(node.index() < self.geometry().nodes, "the pool has no {node}");
        NodeSwitch::new(&self.inner.control, node)
    }

    /// Returns the client slots that this opening of the pool holds.
    pub(crate) fn held(&self) -> &Held {
        &self.inner.held
    }

    /// Returns what ends stopped clients, if this opening may.
    pub(crate) fn evictor(&self) -> Option<&Evictor> {
        self.inner.evictor.as_ref()
    }

    pub(crate) fn control(&self) -> &Control {
        &self.inner.control
    }

    /// Raises the [event counts](crate::events) of the nodes that this opening has, so that copies
    /// of their files are recognized (S10). Returns the first node whose file here is no longer the
    /// current one. Makes no system call.
    pub(crate) fn raise_events(&self) -> Option<(NodeId, Standing)> {
        let control = self.control();
        let mut counts = [0; MAX_NODES];
        // All of them, whatever is wrong with one.
        let all = NodeSet::all(self.geometry().nodes);
        let other = all.into_iter().fold(None, |first, node| {
            let Some(mapping) = self.mapping(node.index()) else { return first };
            // S11: zeros in place of lost memory are no count: that node is down, not an older
            // copy.
            let is_lost = || mapping.is_lost() || control.mapping().is_lost();
            if is_lost() {
                return first;
            }
            let header = &mapping.words()[EVENTS];
            let standing = events::raise_unless(control.events(node), header, is_lost);
            if standing == Standing::Current {
                let count = header.load(Ordering::Acquire);
                // S11: the pages in place of lost memory have counts that no file has.
                fence(Ordering::SeqCst);
                counts[node.index()] = if is_lost() { 0 } else { count };
            }
            let is_other = standing != Standing::Current && !is_lost();
            first.or_else(|| is_other.then_some((node, standing)))
        });
        self.spread_events(counts);
        other
    }

    /// Stores in each node's header what the others' event counts are, 0 if unknown. So a node's
    /// file that is an older copy is recognized by the other nodes, if the control file is lost
    /// (S16).
    fn spread_events(&self, counts: [u64; MAX_NODES]) {
        for mapping in (0..MAX_NODES).filter_map(|node| self.mapping(node)) {
            for (word, count) in mapping.words()[OTHERS_EVENTS..].iter().zip(counts) {
                // S16: only grows, as the counts do. Release: after the count, which is in that
                // node's own header by now.
                word.fetch_max(count, Ordering::Release);
            }
        }
    }

    /// Whether a node's file is another one by now than the one that this opening has mapped: clients of the other one raise the
    /// count before the first word that they change. Loads only.
    fn is_replaced(&self) -> bool {
        let control = self.control();
        NodeSet::all(self.geometry().nodes).into_iter().any(|node| {
            self.mapping(node.index()).is_some_and(|mapping| {
                let header = &mapping.words()[EVENTS];
                let standing = events::standing(control.events(node), header);
                standing != Standing::Current && !mapping.is_lost() && !control.mapping().is_lost()
            })
        })
    }

    /// The same, with an error for such a node.
    pub(crate) fn check_events(&self) -> Result<(), Error> {
        let other = self.raise_events();
        other.map_or(Ok(()), |(node, standing)| is_current(self.control(), node, standing))
    }

    /// Returns a node's memory, if there is such a node and its file was there.
    pub(crate) fn mapping(&self, node: usize) -> Option<&Arc<Mapping>> {
        self.inner.nodes.get(node)?.as_ref()
    }
}

/// The nodes of an opening.
struct Nodes {
    mapped: [Option<Arc<Mapping>>; MAX_NODES],
    absent: Vec<AbsentNode>,
    /// See [`Inner`].
    present: Vec<File>,
}

fn map_nodes(control: &Control, options: OpenOptions) -> Result<Nodes, Error> {
    let all = NodeSet::all(control.header().geometry.nodes);
    let mut mapped = [const { None }; MAX_NODES];
    let (mut absent, mut present) = (Vec::new(), Vec::new());
    for node in all {
        match map_node(control, node, options) {
            Ok((mapping, file)) => {
                mapped[node.index()] = Some(mapping);
                present.extend((!options.read_only).then_some(file));
            }
            Err(why) if is_the_files(&why) => absent.push(AbsentNode { node, why }),
            Err(why) => return Err(why),
        }
    }
    check_majority(control, &mut absent)?;
    if !options.degraded && !absent.is_empty() {
        return Err(absent.swap_remove(0).why);
    }
    Ok(Nodes { mapped, absent, present })
}

/// Returns an error with what is wrong with each absent node if these are a majority.
fn check_majority(control: &Control, absent: &mut Vec<AbsentNode>) -> Result<(), Error> {
    let (pool, nodes) = (control.dir().to_path_buf(), control.header().geometry.nodes);
    if 2 * absent.len() <= nodes {
        return Ok(());
    }
    let newer = absent.iter().filter(|absent| matches!(absent.why, Error::Newer { .. })).count();
    let whys = absent.drain(..).map(|absent| absent.why).collect();
    // One older control file is likelier than that many newer node files.
    if 2 * newer > nodes {
        return Err(Error::OlderControl { file: pool.join(CONTROL), nodes, whys });
    }
    Err(Error::MajorityGone { pool, nodes, whys })
}

/// Maps a node's file, and returns the opening that says that it is in use.
fn map_node(
    control: &Control,
    node: NodeId,
    options: OpenOptions,
) -> Result<(Arc<Mapping>, File), Error> {
    let path = node::path(control.dir(), node);
    let access = if options.read_only { Access::Read } else { Access::Write };
    let Some(file) = node::open(&path, access)? else {
        return Err(Error::Missing { file: path, node });
    };
    if !options.read_only && !node::enter(&file, &path)? {
        return Err(Error::BeingRepaired { pool: control.dir().to_path_buf() });
    }
    let mapping = map_current(control, node, &file, &path, access, !options.leave_sigbus)?;
    Ok((mapping, file))
}

/// Maps a node's file, which must be the current one.
fn map_current(
    control: &Control,
    node: NodeId,
    file: &File,
    path: &Path,
    access: Access,
    guarded: bool,
) -> Result<Arc<Mapping>, Error> {
    let role = control.header().of(FileRole::Node(node));
    let mapping = node::map(file, path, &role, access, guarded)?;
    let standing = events::standing(control.events(node), &mapping.words()[EVENTS]);
    let ((found, state), current) = (own_life(&mapping), control.lives()[node.index()]);
    mapping.check(file, path)?;
    control.check()?;
    // H3: whatever its event count is.
    let file = path.to_path_buf();
    if found < current {
        return Err(Error::FormerLife { file, node, found, current });
    }
    if state != NodeState::Votes {
        return Err(Error::Unfilled { file, node });
    }
    is_current(control, node, standing)?;
    Ok(mapping)
}

/// Returns an error if a node's file is not the current one.
fn is_current(control: &Control, node: NodeId, standing: Standing) -> Result<(), Error> {
    let file = node::path(control.dir(), node);
    match standing {
        Standing::Current => Ok(()),
        Standing::Older { found, known } => Err(Error::Older { file, node, found, known }),
        Standing::Newer { found, known } => Err(Error::Newer { file, node, found, known }),
    }
}

/// S9: returns whether the fault lies in the node's file. Any other error is this process's or
/// program's: it lacks rights or descriptors, or does not know the pool's layout. Other processes
/// would go on with a node that this one leaves out for good.
pub(crate) fn is_the_files(why: &Error) -> bool {
    matches!(
        why,
        Error::Missing { .. }
            | Error::Length { .. }
            | Error::MemoryLost { .. }
            | Error::Foreign { .. }
            | Error::Damaged { .. }
            | Error::OtherPool { .. }
            | Error::WrongNode { .. }
            | Error::Older { .. }
            | Error::Newer { .. }
            | Error::FormerLife { .. }
            | Error::Unfilled { .. }
            | Error::Unsuited { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::create::CreateOptions;

    /// A node whose file is cut short is down. Its event count is gone too, which makes it no older
    /// copy: a client that took it for one would end.
    #[test]
    fn a_node_that_is_cut_short_is_no_older_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let slot = pool.attach().expect("a slot");
        assert_eq!(pool.raise_events(), None);
        let file =
            File::options().write(true).open(pool.path().join("node-1")).expect("it is there");
        file.set_len(0).expect("it is this user's");
        for _ in 0..2 {
            assert_eq!(pool.raise_events(), None);
        }
        assert_eq!(pool.lost_nodes().into_iter().collect::<Vec<_>>(), [NodeId(1)]);
        drop(slot);
        assert!(pool.check_events().is_ok() && pool.attach().is_ok());
    }
}

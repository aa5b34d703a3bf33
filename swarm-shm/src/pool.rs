//! An open pool.

use std::path::{self, Path};
use std::sync::Arc;

use swarm_core::fabric::Lost;
use swarm_core::layout::Geometry;
use swarm_core::node::{Configuration, MAX_NODES, NodeId, NodeSet};

use crate::clock::{Line, PoolClock};
use crate::error::Error;
use crate::events::{self, Standing};
use crate::exchange::Exchange;
use crate::files::control::{self, Control, GENERATION};
use crate::files::header::{EVENTS, OTHERS_EVENTS};
use crate::files::mapping::Access;
use crate::files::numa::Numa;
use crate::files::pages::{self, Pages};
use crate::files::range_lock;
use crate::files::switch::NodeSwitch;
use crate::held::Held;
use crate::members::{AbsentNode, How, Members, is_current};
use crate::processes::stopped::{EvictStopped, Evictor};
use crate::words::epochs;
use crate::words::sync::{Ordering, fence};

/// How often a configuration is taken up that another thread takes up at the same time.
const TRIES: usize = 100;

/// How to open a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Goes on without nodes whose files are missing, damaged, cut short or another's, as long as a
    /// majority is there. [`Pool::absent_nodes`] lists them. Each opening goes on without a node
    /// that is being replaced, until that votes.
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
    members: Exchange<Members>,
    absent: Vec<AbsentNode>,
    clock: Line,
    held: Held,
    evictor: Option<Evictor>,
    options: OpenOptions,
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
        let how = options.how();
        let control = Control::open(&dir, how.access, how.guarded)?;
        let (members, absent) = Members::open(&control, how, options.degraded)?;
        let clock = Line::of(&control)?;
        let evictor = options.evict_stopped.map(Evictor::new);
        let (held, members) = (Held::new(), Exchange::new(members));
        let inner = Inner { control, members, absent, clock, held, evictor, options };
        let pool = Self { inner: Arc::new(inner) };
        if options.pages == Pages::Huge && !options.read_only {
            pool.populate();
        }
        // After populating: it moves pages that this process has.
        pool.members().mappings().try_for_each(|(_, mapping)| options.numa.apply(mapping))?;
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

    /// Returns the pool's configuration, as it stands now: how often each node was replaced, and
    /// which are being replaced.
    pub fn configuration(&self) -> Configuration {
        self.control().configuration()
    }

    /// Returns how far the filling of a node is that is being replaced: how many of the index's
    /// first buckets were gone over, and how many there are. For display.
    pub fn filled(&self, node: NodeId) -> (u32, u32) {
        self.control().filled(node)
    }

    /// Returns whether a process is at work that replaces `node`.
    pub fn is_being_filled(&self, node: NodeId) -> bool {
        let filler = Control::filler_bytes(node);
        range_lock::is_locked(self.control().file(), filler).unwrap_or(false)
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
        let members = self.members();
        members.mappings().filter(|(_, mapping)| mapping.is_lost()).map(|(node, _)| node).collect()
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
        let is_another = || !control.has_its_features() || self.is_replaced();
        control.fate().or_else(|| is_another().then_some(Lost::Removed))
    }

    /// Does at once what opening with [`Pages::Huge`] does, at the cost given there. For processes
    /// that measure, or that run long on a pool that was created with small pages.
    pub fn populate(&self) {
        if self.is_read_only() {
            return;
        }
        self.members().mappings().for_each(|(_, mapping)| pages::populate(mapping));
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

    /// Returns the nodes, by the configuration that this opening took up last.
    pub(crate) fn members(&self) -> Arc<Members> {
        self.inner.members.get()
    }

    /// Takes up the pool's configuration, and returns the nodes by it. Maps what is new.
    pub(crate) fn take_up(&self) -> Arc<Members> {
        for _ in 0..TRIES {
            let members = self.members();
            let Some(next) = members.taken_up(self.control(), self.inner.options.how()) else {
                return members;
            };
            let next = Arc::new(next);
            // Another thread that was first has taken up this one, or a later one.
            if self.inner.members.exchange(&members, Arc::clone(&next)) {
                return next;
            }
        }
        self.members()
    }

    /// Raises the [event counts](crate::events) of the nodes that this opening has, so that copies
    /// of their files are recognized (S10). Returns the first node whose file here is no longer the
    /// current one. Makes no system call.
    pub(crate) fn raise_events(&self) -> Option<(NodeId, Standing)> {
        let (control, members) = (self.control(), self.members());
        let (mut counts, mut other) = ([0; MAX_NODES], None);
        // All of them, whatever is wrong with one.
        for (node, mapping) in members.mappings() {
            // S11: zeros in place of lost memory are no count: that node is down, not an older
            // copy.
            let is_lost = || mapping.is_lost() || control.mapping().is_lost();
            // H9: nor is a file of a former life.
            if is_lost() || !members.is_as_configured(control, node) {
                continue;
            }
            let header = &mapping.words()[EVENTS];
            let standing = events::raise_unless(control.events(node), header, is_lost);
            if standing == Standing::Current {
                let count = header.load(Ordering::Acquire);
                // S11: the pages in place of lost memory have counts that no file has.
                fence(Ordering::SeqCst);
                counts[node.index()] = if is_lost() { 0 } else { count };
            } else {
                let found = members.checked_standing(control, node, standing);
                other = other.or(found.map(|standing| (node, standing)));
            }
        }
        spread_events(&members, counts);
        other
    }

    /// Whether a node's file is another one by now than the one that this opening has mapped,
    /// though the node was not replaced: clients of the other one raise the count before the first
    /// word that they change. Loads only.
    fn is_replaced(&self) -> bool {
        let (control, members) = (self.control(), self.members());
        members.mappings().any(|(node, _)| {
            let standing = members.standing(control, node);
            standing.is_some_and(|standing| standing != Standing::Current)
        })
    }

    /// The same, with an error for such a node.
    pub(crate) fn check_events(&self) -> Result<(), Error> {
        let other = self.raise_events();
        other.map_or(Ok(()), |(node, standing)| is_current(self.control(), node, standing))
    }
}

impl OpenOptions {
    fn how(&self) -> How {
        let access = if self.read_only { Access::Read } else { Access::Write };
        How { access, guarded: !self.leave_sigbus }
    }
}

/// Stores in each node's header what the others' event counts are, 0 if unknown. So a node's file
/// that is an older copy is recognized by the other nodes, if the control file is lost (S16).
fn spread_events(members: &Members, counts: [u64; MAX_NODES]) {
    for (_, mapping) in members.mappings() {
        for (word, count) in mapping.words()[OTHERS_EVENTS..].iter().zip(counts) {
            // S16: only grows, as the counts do. Release: after the count, which is in that node's
            // own header by now.
            word.fetch_max(count, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

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

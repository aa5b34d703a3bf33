//! Replacing a node: a new file takes the place of one that is lost, while clients work.
//!
//! This is the part that is the fabric's: the new file, and where the
//! [configuration](crate::files::configuration) is decided. What the new node has to hold is put
//! there in between by a client that knows what is in the pool, over two fabrics: a client's own, which
//! answers for the node that it is down, and [`Replacement::join`]'s, which posts to the new node
//! alone.
//!
//! **Invariant (H4):** one process at a time changes the configuration: it holds a lock on bytes of
//! the control file. It stores each change in the headers of a majority of nodes first, and then
//! in the control file, by which everybody goes. The new file is in the node's place, says that it
//! votes, and knows what the others' headers do, before the control file says that it votes.
//!
//! # The two changes
//!
//! *The node is filling, in its next life.* The others' headers say the life; then the control file
//! says it, and an event count above that of any former file. From here on no opening takes a former
//! file, and nobody raises its count.
//!
//! *It votes.* All that it has to hold is there.
//!
//! 1. The new file gets its header: what the others' headers know by then. It is synced.
//! 2. It is renamed to the node's place. It still says that it does not vote.
//! 3. It says that it votes, and the others' headers say the configuration.
//! 4. The control file says so.
//!
//! # If it is interrupted
//!
//! A process that is killed leaves a pool that its clients use as before, or without the node, or it
//! is done. Its locks end with it, and the next replacement begins anew, in another life and with
//! another file. A file that says that it votes while the control file does not, is whole; if that
//! control file is lost it may be taken for the node that it was to be, which lagged since: no memory
//! was zeroed without it (E8).

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use swarm_core::node::{Configuration, NodeId, NodeSet};

use crate::error::Error;
use crate::fabric::shm_fabric::ShmFabric;
use crate::files::backing::Backing;
use crate::files::configuration::{NodeState, decode_life, life_word, store_lives};
use crate::files::control::Control;
use crate::files::header::{
    CONFIGURATION, EVENTS, FileRole, HEADER_WORDS, Header, INCARNATIONS, LIFE, OTHERS_EVENTS,
    incarnations, incarnations_end,
};
use crate::files::mapping::{Access, Mapping};
use crate::files::node;
use crate::files::range_lock;
use crate::fork::{Origin, OwnFile};
use crate::lifecycle::create::{CreateOptions, goes_on, is_at, reserve};
use crate::lifecycle::file_system::FileSystem;
use crate::lifecycle::repair::{grant, sync_directory};
use crate::members::Members;
use crate::pool::Pool;
use crate::processes::process;
use crate::words::sync::{Ordering, fence};

/// How long to wait for another process that changes the configuration. It takes milliseconds.
const DECIDING: Duration = Duration::from_secs(1);

/// How a node is replaced.
#[derive(Clone, Debug, Default)]
pub struct ReplaceOptions {
    /// Where the new memory lies, if not in the pool's directory: a file that is created. The
    /// pool's directory then holds a link.
    pub path: Option<PathBuf>,
    /// Asked before each step of reserving the memory, of some 100 ms at most. Once it returns true,
    /// the replacement ends in [`Error::Stopped`], and the pool is as it was.
    pub stop: Option<fn() -> bool>,
}

/// A node's replacement that has begun: no other process replaces the same node until it ends. If it
/// is dropped before the new node votes, the new file is removed.
#[derive(Debug)]
pub struct Replacement {
    pool: Pool,
    node: NodeId,
    new: NewFile,
    /// The opening of the control file that its locks belong to.
    control: OwnFile,
}

/// The new node's file.
#[derive(Debug)]
struct NewFile {
    place: Unfinished,
    file: File,
    mapping: Arc<Mapping>,
}

/// What is removed unless it is kept.
#[derive(Debug)]
struct Unfinished {
    /// Its name in the pool's directory, until it takes the node's place.
    name: PathBuf,
    /// Where it lies, if that is a link.
    target: Option<PathBuf>,
    kept: Cell<bool>,
    /// Whose it is: a forked child that drops a copy removes nothing of its parent's.
    origin: Origin,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept.get() && !self.origin.is_elsewhere() {
            // The path to an error must not end in another.
            self.target.iter().chain([&self.name]).for_each(|path| drop(fs::remove_file(path)));
        }
    }
}

impl Pool {
    /// Begins to replace `node`, which may be lost, damaged, or well: what it holds is not read.
    /// Makes a new file for it. Nothing of the pool is changed before
    /// [`decide`](Replacement::decide) is called.
    ///
    /// # Errors
    /// Another process replaces the same node. There is no such node, or no other one that knows
    /// what was there. What is in the node's place is no file of this pool's, or a device. There is
    /// no room for the new file. The pool was opened to read only. Nothing was changed.
    pub fn replace(&self, node: NodeId, options: &ReplaceOptions) -> Result<Replacement, Error> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { pool: self.path().to_path_buf() });
        }
        // Refuses a node that cannot be replaced as things are.
        self.configuration().replacing(node).map_err(|refused| Error::NotReplaceable {
            pool: self.path().to_path_buf(),
            node,
            reason: refused.to_string(),
        })?;
        let refused = |error| Error::io(self.path(), "register fork handlers for", error);
        let control = OwnFile::open(|| self.control().reopen(), refused)?;
        let bytes = Control::filler_bytes(node);
        let taken = range_lock::lock_within(&control, bytes.clone(), range_lock::PATIENCE);
        if !taken.map_err(|error| Error::io(self.path(), "lock a node of", error))? {
            let processes = process::holders(&control, &bytes).unwrap_or_default();
            return Err(Error::BeingReplaced { pool: self.path().to_path_buf(), node, processes });
        }
        self.control().check_alive()?;
        // H1: what the new node has to hold is at f + 1 of the others.
        let members = self.take_up();
        let others = members.mappings().filter(|(id, other)| *id != node && !other.is_lost());
        check_majority(self, node, others.count())?;
        check_place(self.control(), node)?;
        clear_leftover(self, node);
        let new = make(self, node, options)?;
        Ok(Replacement { pool: self.clone(), node, new, control })
    }
}

impl Replacement {
    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the node that is replaced.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns access to the new node alone, in the life in which the configuration says that it is
    /// filling. Nobody else posts to it.
    pub fn join(&self, life: u32) -> ShmFabric {
        // H3: a file that is opened by hand is one that does not vote.
        let word = life_word(life, NodeState::Filling);
        self.new.mapping.words()[LIFE].store(word, Ordering::Release);
        ShmFabric::of_one(self.pool.geometry().nodes, self.node, &self.new.mapping)
    }

    /// Stores how far the filling is, for a process that looks at the pool.
    pub fn note_filled(&self, done: u64, all: u64) {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        self.pool.control().set_filled(self.node, (small(done), small(all)));
    }

    /// Decides `next`, if it follows the configuration that stands, and returns whether it does.
    /// `next` says something else of this node alone: that it is filling, or that it votes. In the
    /// latter case all that the node has to hold must be there.
    ///
    /// # Errors
    /// A file could not be written or renamed, or too few nodes are there. Another process is
    /// stopped while it changes the configuration. It is open whether it was decided: what the
    /// control file says is so.
    pub fn decide(&self, next: &Configuration) -> Result<bool, Error> {
        let (control, dir) = (self.pool.control(), self.pool.path());
        let bytes = Control::decision_bytes();
        let held = range_lock::hold_within(&self.control, bytes.clone(), DECIDING);
        // H4: one at a time.
        let Some(_held) = held.map_err(|error| Error::io(dir, "lock", error))? else {
            let processes = process::holders(&self.control, &bytes).unwrap_or_default();
            return Err(Error::BeingConfigured { pool: dir.to_path_buf(), processes });
        };
        control.check_alive()?;
        if !next.follows(&control.configuration()) {
            return Ok(false);
        }
        let change = Change { replacement: self, members: self.pool.take_up(), next };
        match next.state(self.node) {
            NodeState::Filling => GONE.iter().try_for_each(|step| step(&change))?,
            NodeState::Votes => VOTES.iter().try_for_each(|step| step(&change))?,
        }
        control.check()?;
        Ok(true)
    }
}

/// A change of the configuration, by a process that holds the lock.
struct Change<'r> {
    replacement: &'r Replacement,
    /// The nodes by the configuration that stands.
    members: Arc<Members>,
    next: &'r Configuration,
}

type Step = fn(&Change<'_>) -> Result<(), Error>;

/// The steps by which a node is gone.
const GONE: [Step; 2] = [|change| change.store_at_others(), |change| change.store_in_control()];

/// The steps by which the new node votes.
const VOTES: [Step; 5] = [
    |change| change.describe(),
    |change| change.put_in_place(),
    |change| change.mark_as_voting(),
    |change| change.store_at_others(),
    |change| change.store_in_control(),
];

impl Change<'_> {
    /// The other nodes that vote and are there.
    fn others(&self) -> impl Iterator<Item = (NodeId, &Arc<Mapping>)> {
        let others = self.members.mappings().filter(|(id, _)| *id != self.replacement.node);
        others.filter(|(_, other)| !other.is_lost())
    }

    /// Gives the new file its header, as far as it is not its own life's.
    fn describe(&self) -> Result<(), Error> {
        let Replacement { node, new: NewFile { place, file, mapping }, pool, .. } =
            self.replacement;
        let words = mapping.words();
        // S16, H9: behind the life, which the control file has said since. An end that counts this
        // node's former file was recorded at f of the others before that, and any f + 1 of them
        // include one.
        fence(Ordering::SeqCst);
        let ends =
            self.others().map(|(_, other)| other.words()[INCARNATIONS].load(Ordering::Relaxed));
        let ends: Vec<u64> = ends.filter_map(incarnations_end).collect();
        check_majority(pool, *node, ends.len())?;
        let end = ends.into_iter().max().unwrap_or(0);
        words[INCARNATIONS].store(incarnations(end), Ordering::Relaxed);
        for (id, other) in self.others() {
            let count = other.words()[EVENTS].load(Ordering::Acquire);
            words[OTHERS_EVENTS + id.index()].store(count, Ordering::Relaxed);
        }
        // S10: what the control file has said since the node is gone.
        let count = pool.control().events(*node).load(Ordering::Acquire) >> 1;
        words[OTHERS_EVENTS + node.index()].store(count, Ordering::Relaxed);
        words[EVENTS].store(count, Ordering::Relaxed);
        words[CONFIGURATION].store(self.next.number(), Ordering::Relaxed);
        store_lives(mapping, self.next.lives());
        let path = place.target.as_ref().unwrap_or(&place.name);
        mapping.check(file, path)?;
        file.sync_all().map_err(|error| Error::io(path, "sync", error))
    }

    fn put_in_place(&self) -> Result<(), Error> {
        let Replacement { node, new: NewFile { place, .. }, pool, .. } = self.replacement;
        let to = node::path(pool.path(), *node);
        fs::rename(&place.name, &to).map_err(|error| Error::io(&place.name, "rename", error))?;
        place.kept.set(true);
        sync_directory(pool.path())
    }

    /// H3: in its own header before any other says so.
    fn mark_as_voting(&self) -> Result<(), Error> {
        let Replacement { node, new: NewFile { mapping, .. }, pool, .. } = self.replacement;
        let word = life_word(self.next.life(*node), NodeState::Votes);
        mapping.words()[LIFE].store(word, Ordering::Release);
        sync(pool, *node, mapping)
    }

    /// Stores the configuration in the headers of a majority.
    fn store_at_others(&self) -> Result<(), Error> {
        let Replacement { node, pool, .. } = self.replacement;
        check_majority(pool, *node, self.others().count())?;
        let count = pool.control().events(*node).load(Ordering::Acquire) >> 1;
        for (_, other) in self.others() {
            let words = other.words();
            // A former file that is put back is an older copy to a process that reads no lives, too.
            words[OTHERS_EVENTS + node.index()].fetch_max(count, Ordering::Release);
            store_lives(other, self.next.lives());
            words[CONFIGURATION].store(self.next.number(), Ordering::Release);
        }
        // H3: on a disk, too, before the control file says so: else a power failure may leave headers
        // that lag behind it, and a repair that goes by headers alone takes the former file.
        self.others().try_for_each(|(id, other)| sync(pool, id, other))?;
        // H3: a majority has it, and none of them is lost.
        check_majority(pool, *node, self.others().count())
    }

    fn store_in_control(&self) -> Result<(), Error> {
        let Replacement { node, pool, .. } = self.replacement;
        let control = pool.control();
        control.check_alive()?;
        let is_gone = self.next.state(*node) == NodeState::Filling;
        control.decide(*node, self.next);
        if is_gone {
            // H9: behind the life, so that nobody takes the former file for an older copy.
            let counts = self.others().map(|(_, other)| {
                other.words()[OTHERS_EVENTS + node.index()].load(Ordering::Acquire)
            });
            control.void_events(*node, counts.max().unwrap_or(0));
        }
        Ok(())
    }
}

/// Returns an error if so many others of `node` are no majority.
fn check_majority(pool: &Pool, node: NodeId, others: usize) -> Result<(), Error> {
    let nodes = pool.geometry().nodes;
    if 2 * others > nodes {
        return Ok(());
    }
    let reason =
        format!("{others} other nodes of {nodes} are there and whole, which is no majority");
    Err(Error::NotReplaceable { pool: pool.path().to_path_buf(), node, reason })
}

fn sync(pool: &Pool, node: NodeId, mapping: &Mapping) -> Result<(), Error> {
    let path = node::path(pool.path(), node);
    mapping.sync_header().map_err(|error| Error::io(&path, "sync", error))
}

/// Refuses to replace what is no file of the pool's. A link is replaced, and what it leads to stays.
fn check_place(control: &Control, node: NodeId) -> Result<(), Error> {
    let path = node::path(control.dir(), node);
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if found.is_symlink() || found.is_file() && found.len() == 0 {
        return Ok(());
    }
    let file = node::open(&path, Access::Write)?;
    let words = file.filter(|_| found.is_file());
    let words = words.and_then(|file| Backing::Regular.header(&file, &path)).unwrap_or_default();
    let is_its = Header::is_node_of(&words, control.header().pool_id);
    if is_its { Ok(()) } else { Err(Error::Occupied { file: path }) }
}

/// Returns the name of a node's new file until it takes the node's place.
pub(crate) fn new_path(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(format!("node-{}.new", node.0))
}

/// Removes what a replacement left that was killed. Nobody has it open: no opening looks at it.
fn clear_leftover(pool: &Pool, node: NodeId) {
    let name = new_path(pool.path(), node);
    // What it leads to is removed if it says that it was to be this node, and is none that votes.
    let is_in_use = |target: &Path| {
        let open = |id| node::open(&node::path(pool.path(), id), Access::Read).ok().flatten();
        let mut all = NodeSet::all(pool.geometry().nodes);
        all.any(|id| open(id).is_some_and(|file| is_at(&file, target)))
    };
    if let Ok(target) = fs::read_link(&name)
        && let Ok(Some(file)) = node::open(&target, Access::Read)
        && file.metadata().is_ok_and(|found| found.is_file())
    {
        let words = Backing::Regular.header(&file, &target).unwrap_or_default();
        let is_its = Header::is_node_of(&words, pool.pool_id()) && words[5] == u64::from(node.0);
        let is_filling = decode_life(words[LIFE]).1 == NodeState::Filling;
        if words == [0; HEADER_WORDS] || is_its && (is_filling || !is_in_use(&target)) {
            drop(fs::remove_file(&target));
        }
    }
    drop(fs::remove_file(&name));
}

/// Makes the new node's file: all zeros but its header, which says that it does not vote.
fn make(pool: &Pool, node: NodeId, options: &ReplaceOptions) -> Result<NewFile, Error> {
    let name = new_path(pool.path(), node);
    let absolute = |path: &PathBuf| path::absolute(path).map_err(|e| Error::io(path, "find", e));
    let target = options.path.as_ref().map(absolute).transpose()?;
    let path = target.clone().unwrap_or_else(|| name.clone());
    // The pool's own directory was accepted when it was created.
    target.iter().try_for_each(|path| FileSystem::at(path).check(path))?;
    if fs::metadata(&path).is_ok_and(|found| found.file_type().is_char_device()) {
        let reason = "it is a device, and a node is replaced by a new file only";
        return Err(Error::unsuited(&path, reason));
    }
    let mut opened = fs::OpenOptions::new();
    opened.read(true).write(true).create_new(true).mode(0o600);
    let file = opened.open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Occupied { file: path.clone() },
        _ => Error::io(&path, "create", error),
    })?;
    let place = Unfinished { name, target, kept: Cell::new(false), origin: Origin::current() };
    // A link from a node's place to itself would lead nowhere.
    let is_place = |id| {
        let place = node::path(pool.path(), id);
        place.symlink_metadata().is_ok_and(|found| found.is_file()) && is_at(&file, &place)
    };
    if NodeSet::all(pool.geometry().nodes).any(is_place) {
        let reason = "it is a node's own place in the pool's directory; leave the path out";
        return Err(Error::unsuited(&path, reason));
    }
    if place.target.is_some() {
        symlink(&path, &place.name).map_err(|error| Error::io(&place.name, "create", error))?;
    }
    let members = pool.take_up();
    let others = members.mappings().filter(|(id, _)| *id != node);
    let open = |(id, _)| node::open(&node::path(pool.path(), id), Access::Read).ok().flatten();
    let models: Vec<File> = others.filter_map(open).collect();
    grant(&file, &path, &models)?;
    let create = CreateOptions { stop: options.stop, ..CreateOptions::default() };
    let goes_on = || goes_on(pool.path(), options.stop);
    let header = pool.control().header().of(FileRole::Node(node));
    let plain = reserve(&file, &path, header.geometry.capacity, &create, &goes_on)?;
    // H3: it says that it does not vote before it says what it is.
    plain.store(LIFE, &[life_word(0, NodeState::Filling)]);
    let mut words = header.encode();
    words[LIFE] = life_word(0, NodeState::Filling);
    plain.store(0, &words);
    let mapping = node::map(&file, &path, &header, Access::Write, true)?;
    Ok(NewFile { place, file, mapping })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use swarm_core::fabric::{Fabric, Verb};
    use swarm_core::node::Address;

    use super::*;
    use crate::pool::OpenOptions;
    use crate::words::chain::FIRST_WORD;

    const LOST: NodeId = NodeId(1);

    fn pool_of(nodes: usize) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let options = CreateOptions { nodes, capacity: 4 << 20, ..CreateOptions::default() };
        drop(Pool::create(&path, &options).expect("a pool"));
        (dir, path)
    }

    /// A pool that clients have used.
    fn worn() -> (tempfile::TempDir, PathBuf) {
        let (dir, path) = pool_of(3);
        used(&path, OpenOptions::default());
        (dir, path)
    }

    fn degraded() -> OpenOptions {
        OpenOptions { degraded: true, ..OpenOptions::default() }
    }

    /// A client attaches and leaves. Returns its incarnation.
    fn used(dir: &Path, options: OpenOptions) -> u64 {
        let pool = Pool::open(dir, options).expect("a pool");
        pool.attach().expect("a slot").session().incarnation.0
    }

    fn replace(dir: &Path, node: u8, options: &ReplaceOptions) -> Result<Replacement, Error> {
        Pool::open(dir, degraded())?.replace(NodeId(node), options)
    }

    fn begun(dir: &Path) -> Replacement {
        replace(dir, LOST.0, &ReplaceOptions::default()).expect("a replacement")
    }

    fn refused(dir: &Path, node: u8, options: &ReplaceOptions) -> Error {
        replace(dir, node, options).map(drop).expect_err("it cannot be replaced")
    }

    /// The node is gone: returns its life.
    fn gone(replacement: &Replacement) -> u32 {
        let gone = replacement.pool.configuration().replacing(LOST).expect("two others");
        assert!(replacement.decide(&gone).expect("decided"));
        gone.life(LOST)
    }

    /// It votes. Nothing is filled, as there is nothing.
    fn votes(replacement: &Replacement, life: u32) {
        drop(replacement.join(life));
        let votes = replacement.pool.configuration().voting(LOST, life).expect("it is filling");
        assert!(replacement.decide(&votes).expect("decided"));
    }

    fn replaced(dir: &Path) {
        let replacement = begun(dir);
        let life = gone(&replacement);
        votes(&replacement, life);
    }

    /// The life of each node, and the number of the configuration.
    fn configuration(pool: &Pool) -> ([u32; 3], u64) {
        let now = pool.configuration();
        ([0, 1, 2].map(|node| now.life(NodeId(node))), now.number())
    }

    /// A process that is killed removes nothing.
    fn killed(replacement: Replacement) {
        replacement.new.place.kept.set(true);
    }

    /// Why the only node that is left out is.
    fn left_out(pool: &Pool) -> &Error {
        let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
        assert_eq!(absent.node, LOST);
        &absent.why
    }

    /// A former file that is put back is refused by its name, whether or not there is a control file
    /// that knows of another one.
    #[test]
    fn a_former_file_votes_no_more() {
        let (dir, path) = worn();
        let place = node::path(&path, LOST);
        let former = dir.path().join("former");
        fs::copy(&place, &former).expect("copied");
        replaced(&path);
        let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
        assert_eq!(configuration(&pool), ([0, 1, 0], 2));
        drop(pool);
        let newer = dir.path().join("newer");
        fs::copy(&place, &newer).expect("copied");
        fs::copy(&former, &place).expect("put back");
        let why = Pool::open(&path, OpenOptions::default()).expect_err("a former file");
        assert!(matches!(why, Error::FormerLife { node: LOST, found: 0, current: 1, .. }), "{why}");
        let pool = Pool::open(&path, degraded()).expect("a majority");
        assert!(matches!(left_out(&pool), Error::FormerLife { .. }), "{}", left_out(&pool));
        drop(pool);
        fs::remove_file(path.join("control")).expect("a file");
        let pool = Pool::repair(&path, false).expect("a majority").pool;
        assert!(matches!(left_out(&pool), Error::FormerLife { .. }), "{}", left_out(&pool));
        assert_eq!(configuration(&pool), ([0, 1, 0], 2));
        drop(pool);
        fs::copy(&newer, &place).expect("put back");
        assert!(Pool::open(&path, OpenOptions::default()).is_ok(), "it is the current one");
    }

    /// Its event count alone says that a former file is an older copy, to a process that reads no lives.
    #[test]
    fn a_former_file_has_a_lower_event_count() {
        let (_dir, path) = worn();
        let count = |path: &Path| {
            let mut bytes = [0; 8];
            let file = File::open(path).expect("a file");
            file.read_exact_at(&mut bytes, EVENTS as u64 * 8).expect("it is longer");
            u64::from_le_bytes(bytes)
        };
        let former = count(&node::path(&path, LOST));
        assert!(former > 0);
        replaced(&path);
        // What the control file may have announced is one more.
        assert!(count(&node::path(&path, LOST)) > former + 1);
    }

    /// SIGKILL after each step: the pool opens as before, or without the node, or is done; the
    /// former file never votes beside what knows of the new one; and the next replacement begins
    /// anew, in another life.
    #[test]
    fn a_replacement_that_was_killed_after_any_step_is_taken_up_again() {
        let steps = GONE.len() + VOTES.len();
        for step in 0..=steps {
            let (dir, path) = worn();
            let former = dir.path().join("former");
            fs::copy(node::path(&path, LOST), &former).expect("copied");
            let replacement = begun(&path);
            let steps_of = |steps: &[Step], next: &Configuration| {
                let members = replacement.pool.take_up();
                let change = Change { replacement: &replacement, members, next };
                steps.iter().try_for_each(|step| step(&change)).expect("steps");
            };
            let next = replacement.pool.configuration().replacing(LOST).expect("two others");
            steps_of(&GONE[..step.min(GONE.len())], &next);
            if step > GONE.len() {
                drop(replacement.join(next.life(LOST)));
                steps_of(&VOTES[..step - GONE.len()], &next.voting(LOST, 1).expect("filling"));
            }
            killed(replacement);
            let is_gone = (GONE.len()..steps).contains(&step);
            let pool = Pool::open(&path, OpenOptions::default()).expect("nothing is amiss");
            assert_eq!(pool.absent_nodes().len(), usize::from(is_gone), "{step}");
            drop(pool);
            if is_gone {
                fs::copy(&former, node::path(&path, LOST)).expect("put back");
                let pool = Pool::open(&path, OpenOptions::default()).expect("without it");
                assert!(matches!(left_out(&pool), Error::NotVoting { node: LOST, .. }));
            }
            used(&path, degraded());
            replaced(&path);
            assert!(!new_path(&path, LOST).exists());
            let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
            let expected = match step {
                0..2 => (1, 2),
                _ if is_gone => (2, 3),
                _ => (2, 4),
            };
            let (lives, number) = configuration(&pool);
            assert_eq!((lives[1], number), expected, "{step}");
            drop(pool);
            fs::copy(&former, node::path(&path, LOST)).expect("put back");
            let why = Pool::open(&path, OpenOptions::default()).expect_err("a former file");
            assert!(matches!(why, Error::FormerLife { .. }), "{why}");
        }
    }

    /// A file that is not filled has all headers that a node has. It does not vote, whichever process puts it
    /// into the node's place.
    #[test]
    fn a_file_that_is_not_filled_does_not_vote() {
        let (_dir, path) = worn();
        killed(begun(&path));
        fs::rename(new_path(&path, LOST), node::path(&path, LOST)).expect("renamed by hand");
        let why = Pool::open(&path, OpenOptions::default()).expect_err("it is empty");
        assert!(matches!(why, Error::Unfilled { node: LOST, .. }), "{why}");
        replaced(&path);
        drop(Pool::open(&path, OpenOptions::default()).expect("all are there"));
    }

    /// Two that replace one node would remove each other's files.
    #[test]
    fn one_process_at_a_time_replaces_a_node() {
        let (_dir, path) = worn();
        let replacement = begun(&path);
        let why = refused(&path, LOST.0, &ReplaceOptions::default());
        let Error::BeingReplaced { processes, .. } = &why else { panic!("{why}") };
        assert_eq!(*processes, [std::process::id()]);
        assert!(replacement.pool.is_being_filled(LOST));
        drop(replacement);
        assert!(!new_path(&path, LOST).exists(), "it was given up");
        replaced(&path);
    }

    /// Two that decide at a time would write one configuration over the other.
    #[test]
    fn one_process_at_a_time_decides() {
        let (_dir, path) = worn();
        let replacement = begun(&path);
        let next = replacement.pool.configuration().replacing(LOST).expect("two others");
        let another = replacement.pool.control().reopen().expect("it is there");
        let held = range_lock::hold_within(&another, Control::decision_bytes(), Duration::ZERO);
        let held = held.expect("asked");
        assert!(held.is_some());
        let why = replacement.decide(&next).expect_err("another one decides");
        assert!(matches!(why, Error::BeingConfigured { .. }), "{why}");
        assert_eq!(configuration(&replacement.pool), ([0; 3], 0));
        drop(held);
        assert!(replacement.decide(&next).expect("decided"));
        assert!(!replacement.decide(&next).expect("answered"), "it was decided before");
    }

    /// A client that worked meanwhile took the new file's count for that of another pool, and its
    /// chains went to the file that nobody reads any more.
    #[test]
    fn a_client_that_has_the_pool_open_goes_on_with_the_new_file() {
        let (_dir, path) = worn();
        let pool = Pool::open(&path, OpenOptions::default()).expect("a pool");
        let fabric = pool.fabric();
        let at = Address(FIRST_WORD + 100);
        let write = |word: u64| {
            let verb = Verb::Write { at, head: &[word], tail: &[] };
            fabric.post(LOST, &[verb]).into_inner().is_ok()
        };
        assert!(write(1));
        let replacement = begun(&path);
        let life = gone(&replacement);
        // Whatever it knows: nothing is wrong with the pool.
        assert_eq!((pool.lost(), pool.raise_events()), (None, None));
        assert!(write(2), "it does not know of it");
        fabric.reconfigure();
        assert!(!write(3), "the node is gone");
        assert_eq!((pool.lost(), pool.raise_events()), (None, None));
        votes(&replacement, life);
        assert_eq!((pool.lost(), pool.raise_events()), (None, None));
        fabric.reconfigure();
        assert!(write(4), "the node is back");
        let found = replacement.new.mapping.words()[at.0 as usize].load(Ordering::Relaxed);
        assert_eq!(found, 4, "in the new file");
        assert_eq!((pool.lost(), pool.raise_events()), (None, None));
        assert!(pool.attach().is_ok());
    }

    /// What one node alone knows of the others, and of incarnations, the new node knows: with one
    /// that was away it may be all that is left.
    #[test]
    fn what_the_lost_nodes_majority_recorded_is_at_the_new_nodes() {
        let (dir, path) = pool_of(3);
        let [first, away] = ["first", "away"].map(|name| dir.path().join(name));
        // Only nodes 0 and 1 learn of any client.
        fs::rename(node::path(&path, NodeId(2)), &away).expect("away");
        let last = used(&path, degraded());
        fs::copy(node::path(&path, NodeId(0)), &first).expect("copied");
        let last = last.max(used(&path, degraded()));
        fs::rename(&away, node::path(&path, NodeId(2))).expect("back");
        fs::remove_file(node::path(&path, LOST)).expect("lost");
        replaced(&path);
        // An older copy of node 0: only the lost node, and so the new one, knows of its last client.
        fs::copy(node::path(&path, NodeId(0)), dir.path().join("newest")).expect("copied");
        fs::copy(&first, node::path(&path, NodeId(0))).expect("put back");
        fs::remove_file(path.join("control")).expect("a file");
        let pool = Pool::repair(&path, false).expect("a majority").pool;
        let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
        assert!(matches!(absent.why, Error::Older { node: NodeId(0), .. }), "{}", absent.why);
        let next = pool.attach().expect("a slot").session().incarnation.0;
        assert!(next > last, "{next} after {last}");
    }

    #[test]
    fn what_is_no_file_of_the_pools_is_not_replaced() {
        let (dir, path) = worn();
        for node in [3, 200] {
            let why = refused(&path, node, &ReplaceOptions::default());
            assert!(matches!(why, Error::NotReplaceable { .. }), "{why}");
        }
        let place = node::path(&path, LOST);
        let former = fs::read(&place).expect("a file");
        fs::write(&place, "somebody's notes").expect("written");
        let why = refused(&path, 1, &ReplaceOptions::default());
        assert!(matches!(why, Error::Occupied { .. }), "{why}");
        assert_eq!(fs::read(&place).expect("a file"), b"somebody's notes");
        fs::write(&place, b"").expect("emptied");
        for other in ["node-1", "node-0"] {
            fs::remove_file(&place).unwrap_or_default();
            let options = ReplaceOptions { path: Some(path.join(other)), ..Default::default() };
            let why = refused(&path, 1, &options);
            assert!(matches!(why, Error::Unsuited { .. } | Error::Occupied { .. }), "{why}");
            assert!(!place.exists() && path.join("node-0").exists());
        }
        // A majority is needed without it.
        fs::write(&place, former).expect("as it was");
        fs::rename(path.join("node-2"), dir.path().join("away")).expect("away");
        let why = refused(&path, 1, &ReplaceOptions::default());
        assert!(matches!(why, Error::NotReplaceable { .. }), "{why}");
        assert!(!new_path(&path, LOST).exists());
        let (_dir, alone) = pool_of(1);
        let why = refused(&alone, 0, &ReplaceOptions::default());
        assert!(matches!(why, Error::NotReplaceable { .. }), "{why}");
        assert!(Pool::open(&alone, OpenOptions::default()).is_ok());
    }

    /// The pool's directory holds a link then. What a link led to before is left alone; what an
    /// interrupted replacement left is removed wherever it lies.
    #[test]
    fn the_new_memory_may_lie_elsewhere() {
        let (dir, path) = worn();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        for (place, life) in [(&first, 1), (&second, 2)] {
            let options = ReplaceOptions { path: Some(place.clone()), ..Default::default() };
            killed(replace(&path, LOST.0, &options).expect("begun"));
            let replacement = replace(&path, LOST.0, &options).expect("begun anew");
            assert_eq!(gone(&replacement), life);
            votes(&replacement, life);
            assert_eq!(fs::read_link(node::path(&path, LOST)).expect("a link"), *place);
            let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
            assert_eq!(configuration(&pool).0, [0, life, 0]);
        }
        assert!(first.exists(), "a former file is whoever's it was");
        replaced(&path);
        assert!(node::path(&path, LOST).symlink_metadata().expect("a file").is_file());
        killed(begun(&path));
        assert!(new_path(&path, LOST).exists());
        Pool::destroy(&path, false).expect("destroyed");
        assert!(!path.exists());
    }
}

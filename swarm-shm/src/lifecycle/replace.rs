//! Replacing a node: a new file takes the place of one that is lost, with nobody else attached.
//!
//! This is the part that is the fabric's: the files, which processes may have them open, and the
//! [configuration](crate::files::configuration). What the new node has to hold is put there in
//! between by a client that knows what is in the pool, over two fabrics: [`Replacement::pool`]'s, which
//! answers for the node that it is down, and [`Replacement::joining`], which posts to the new node
//! alone.
//!
//! **Invariant (H4):** from before the first look at the others until the new node votes, no
//! process but this one has the pool open. The locks are those of a repair (S17). So no operation
//! is under way that began before, and none begins that could still count on the lost node (fact 1
//! of H1); the memory that the fill reads is not used again meanwhile.
//!
//! # If it is interrupted
//!
//! The new file has a name that no opening looks at until the last step, and says that it does not
//! vote until all that it has to hold is there. Each step of [`Replacement::finish`] leaves a pool
//! that opens as before, or degraded, without the node; the next replacement begins anew.
//!
//! 1. The new file gets its header: what the others' headers know, and that it votes, in the next
//!    life. It is synced.
//! 2. The others' headers say that life, and an event count above that of any former file (S16). They
//!    are synced.
//! 3. The control file says them. From here on a former file is refused.
//! 4. The new file is renamed to the node's place.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;

use swarm_core::node::{NodeId, NodeSet};

use crate::error::Error;
use crate::fabric::shm_fabric::ShmFabric;
use crate::files::backing::Backing;
use crate::files::configuration::{Lives, NodeState, decode_life, life_said, life_word, say_lives};
use crate::files::control::Control;
use crate::files::header::{
    CONFIGURATION, EVENTS, FileRole, HEADER_WORDS, Header, INCARNATIONS, LIFE, OTHERS_EVENTS,
    incarnations, incarnations_end,
};
use crate::files::mapping::{Access, Mapping};
use crate::files::node;
use crate::lifecycle::create::{CreateOptions, goes_on, is_at, reserve};
use crate::lifecycle::file_system::FileSystem;
use crate::lifecycle::repair::{Alone, grant, sync_directory};
use crate::pool::Pool;
use crate::words::sync::Ordering;

/// By how much the new file's event count is above any that a former one may have.
const RAISE: u64 = 2;

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

/// A node's replacement that has begun: nobody else can open the pool until it ends. If it is
/// dropped before it is [finished](Self::finish), the pool is as it was.
#[derive(Debug)]
pub struct Replacement {
    pool: Pool,
    node: NodeId,
    new: NewFile,
    /// The life of each node, and the number of the configuration, once it is finished.
    lives: Lives,
    configuration: u64,
    /// The new file's event count.
    count: u64,
}

/// The new node's file, which is removed unless it is kept.
#[derive(Debug)]
struct NewFile {
    /// Its name in the pool's directory, until it takes the node's place.
    name: PathBuf,
    /// Where it lies, if that is a link.
    target: Option<PathBuf>,
    file: Option<File>,
    mapping: Option<Arc<Mapping>>,
    kept: bool,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            // The path to an error must not end in another.
            self.target.iter().chain([&self.name]).for_each(|path| drop(fs::remove_file(path)));
        }
    }
}

impl Pool {
    /// Begins to replace `node` of the pool in `dir`: makes a new file for it, and keeps others
    /// from opening the pool. The node may be lost, damaged, or well; what it holds is not read.
    ///
    /// Next, put all that the new node has to hold there (the store's `fill` does), and
    /// [finish](Replacement::finish). A replacement that was interrupted at any point leaves the
    /// pool without the node at worst, and the next one begins anew.
    ///
    /// # Errors
    /// Processes have the pool open. The control file, or a majority of all nodes without this one,
    /// is missing or damaged. What is in the node's place is no file of this pool's, or a device.
    /// There is no room for the new file. Nothing was changed.
    pub fn replace(
        dir: impl AsRef<Path>,
        node: NodeId,
        options: &ReplaceOptions,
    ) -> Result<Replacement, Error> {
        let dir = dir.as_ref();
        let dir = path::absolute(dir).map_err(|error| Error::io(dir, "find", error))?;
        let control = Control::open(&dir, Access::Write, true)?;
        check_node(&control, node)?;
        let locked = control.reopen()?;
        let alone = Alone::with(&dir, Some(&locked)).map_err(|error| match error {
            Error::Open { pool, processes } => Error::OpenElsewhere { pool, processes },
            error => error,
        })?;
        // H4: these locks keep others from opening the pool; the slots are for the one that fills.
        let files = alone.into_nodes();
        // Another repair, replacement or destruction may have ended before the locks were taken.
        control.check_alive()?;
        check_place(&control, node)?;
        let former = files.iter().find(|(id, _)| *id == node);
        let former_count = former.map_or(0, |(_, file)| count_of(&control, node, file));
        let why = Error::Unfilled { file: node::path(&dir, node), node };
        let pool = Self::open_alone(control, files, (node, why))?;
        let (lives, configuration) = next_configuration(&pool, node)?;
        let known = others(&pool)
            .map(|(_, other)| other.words()[OTHERS_EVENTS + node.index()].load(Ordering::Acquire))
            .fold(former_count, u64::max)
            .max(pool.control().events(node).load(Ordering::Acquire) >> 1);
        let count = known.saturating_add(RAISE);
        clear_leftover(&pool, node);
        let new = make(&pool, node, lives[node.index()], options)?;
        Ok(Replacement { pool, node, new, lives, configuration, count })
    }
}

impl Replacement {
    /// Returns the pool without the node, for one client of this process. Nobody else can open it.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the node that is replaced.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns access to the new node alone.
    pub fn joining(&self) -> ShmFabric {
        ShmFabric::of_one(self.pool.geometry().nodes, self.node, self.mapping())
    }

    /// Lets the new node vote. All that it has to hold must be there, and no client of this process
    /// may be at work.
    ///
    /// # Errors
    /// A file could not be written or renamed, or its memory is gone. The pool is as it was, or it
    /// opens degraded, without the node.
    pub fn finish(mut self) -> Result<(), Error> {
        STEPS.iter().try_for_each(|step| step(&mut self))
    }

    fn mapping(&self) -> &Arc<Mapping> {
        self.new.mapping.as_ref().expect("it is mapped before anybody has the replacement")
    }

    /// Step 1.
    fn describe(&mut self) -> Result<(), Error> {
        let pool = &self.pool;
        let new = self.mapping();
        let words = new.words();
        // S16: an end that was recorded at a majority is at one of any f + 1 of the others.
        let ends =
            others(pool).map(|(_, other)| other.words()[INCARNATIONS].load(Ordering::Relaxed));
        let ends: Vec<u64> = ends.filter_map(incarnations_end).collect();
        if 2 * ends.len() <= pool.geometry().nodes {
            return Err(Error::Unrecorded { pool: pool.path().to_path_buf() });
        }
        let end = ends.into_iter().max().unwrap_or(0);
        words[INCARNATIONS].store(incarnations(end), Ordering::Relaxed);
        for (id, other) in others(pool) {
            let count = other.words()[EVENTS].load(Ordering::Acquire);
            words[OTHERS_EVENTS + id.index()].store(count, Ordering::Relaxed);
        }
        words[OTHERS_EVENTS + self.node.index()].store(self.count, Ordering::Relaxed);
        words[EVENTS].store(self.count, Ordering::Relaxed);
        words[CONFIGURATION].store(self.configuration, Ordering::Relaxed);
        say_lives(new, &self.lives);
        // H3: last, and in the file before any other says so.
        let life = self.lives[self.node.index()];
        words[LIFE].store(life_word(life, NodeState::Votes), Ordering::Release);
        let file = self.new.file.as_ref().expect("it is open as long as it is mapped");
        let path = self.new.target.as_ref().unwrap_or(&self.new.name);
        new.check(file, path)?;
        file.sync_all().map_err(|error| Error::io(path, "sync", error))
    }

    /// Step 2.
    fn tell_others(&mut self) -> Result<(), Error> {
        for (_, other) in others(&self.pool) {
            let words = other.words();
            words[OTHERS_EVENTS + self.node.index()].fetch_max(self.count, Ordering::Release);
            say_lives(other, &self.lives);
            words[CONFIGURATION].store(self.configuration, Ordering::Release);
        }
        // H3: on a disk, too, before the control file says so: else a power failure may leave headers
        // that lag behind it, and a repair that goes by headers alone takes the former file.
        for (id, other) in others(&self.pool).filter(|(_, other)| !other.is_lost()) {
            let path = node::path(self.pool.path(), id);
            other.sync_header().map_err(|error| Error::io(&path, "sync", error))?;
        }
        // H3: a majority says it, and none of them is lost.
        let there = others(&self.pool).filter(|(_, other)| !other.is_lost()).count();
        if 2 * there <= self.pool.geometry().nodes {
            return Err(Error::Unrecorded { pool: self.pool.path().to_path_buf() });
        }
        Ok(())
    }

    /// Step 3.
    fn tell_control(&mut self) -> Result<(), Error> {
        let control = self.pool.control();
        control.check_alive()?;
        let new = (self.lives[self.node.index()], self.count);
        control.replace(self.node, new, self.configuration);
        control.check()
    }

    /// Step 4.
    fn put_in_place(&mut self) -> Result<(), Error> {
        let (dir, name) = (self.pool.path(), &self.new.name);
        let to = node::path(dir, self.node);
        fs::rename(name, &to).map_err(|error| Error::io(name, "rename", error))?;
        self.new.kept = true;
        sync_directory(dir)
    }
}

type Step = fn(&mut Replacement) -> Result<(), Error>;

/// The steps of [`Replacement::finish`].
const STEPS: [Step; 4] = [
    Replacement::describe,
    Replacement::tell_others,
    Replacement::tell_control,
    Replacement::put_in_place,
];

/// The other nodes that are there.
fn others(pool: &Pool) -> impl Iterator<Item = (NodeId, &Arc<Mapping>)> {
    NodeSet::all(pool.geometry().nodes).filter_map(|id| Some((id, pool.mapping(id.index())?)))
}

/// Refuses a node that the pool does not have, or that no others could fill.
fn check_node(control: &Control, node: NodeId) -> Result<(), Error> {
    let (pool, nodes) = (control.dir().to_path_buf(), control.header().geometry.nodes);
    let refused = |reason: String| Err(Error::NotReplaceable { pool: pool.clone(), node, reason });
    match nodes {
        _ if node.index() >= nodes => refused(format!("the pool has nodes 0 to {}", nodes - 1)),
        1 => refused("the pool has no other node that knows what was in it".into()),
        _ => Ok(()),
    }
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

/// Returns the event count of a former file, if it is one.
fn count_of(control: &Control, node: NodeId, file: &File) -> u64 {
    let (path, header) = (node::path(control.dir(), node), control.header());
    let mapped = node::map(file, &path, &header.of(FileRole::Node(node)), Access::Write, true);
    mapped.map_or(0, |mapping| mapping.words()[EVENTS].load(Ordering::Acquire))
}

/// Returns the lives and the number of the configuration in which `node` is replaced: of that node
/// one above whatever any header says, as a replacement may have been killed before the control file
/// said so. Of the others the control file decides.
fn next_configuration(pool: &Pool, node: NodeId) -> Result<(Lives, u64), Error> {
    let mut lives = pool.control().lives();
    let mut number = pool.configuration();
    let life = &mut lives[node.index()];
    for (_, other) in others(pool) {
        number = number.max(other.words()[CONFIGURATION].load(Ordering::Acquire));
        *life = (*life).max(life_said(other, node));
    }
    *life = life.checked_add(1).ok_or_else(|| Error::NotReplaceable {
        pool: pool.path().to_path_buf(),
        node,
        reason: "it was replaced as often as can be counted".into(),
    })?;
    Ok((lives, number.saturating_add(1)))
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
fn make(pool: &Pool, node: NodeId, life: u32, options: &ReplaceOptions) -> Result<NewFile, Error> {
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
    let mut new = NewFile { name, target, file: None, mapping: None, kept: false };
    // A link from a node's place to itself would lead nowhere.
    let is_place = |id| {
        let place = node::path(pool.path(), id);
        place.symlink_metadata().is_ok_and(|found| found.is_file()) && is_at(&file, &place)
    };
    if NodeSet::all(pool.geometry().nodes).any(is_place) {
        let reason = "it is a node's own place in the pool's directory; leave the path out";
        return Err(Error::unsuited(&path, reason));
    }
    if new.target.is_some() {
        symlink(&path, &new.name).map_err(|error| Error::io(&new.name, "create", error))?;
    }
    let open = |(id, _)| node::open(&node::path(pool.path(), id), Access::Read).ok().flatten();
    let models: Vec<File> = others(pool).filter_map(open).collect();
    grant(&file, &path, &models)?;
    let create = CreateOptions { stop: options.stop, ..CreateOptions::default() };
    let goes_on = || goes_on(pool.path(), options.stop);
    let header = pool.control().header().of(FileRole::Node(node));
    let plain = reserve(&file, &path, header.geometry.capacity, &create, &goes_on)?;
    // H3: it says that it does not vote before it says what it is.
    plain.store(LIFE, &[life_word(life, NodeState::Filling)]);
    let mut words = header.encode();
    words[LIFE] = life_word(life, NodeState::Filling);
    plain.store(0, &words);
    new.mapping = Some(node::map(&file, &path, &header, Access::Write, true)?);
    new.file = Some(file);
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pool::OpenOptions;

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

    fn begun(dir: &Path) -> Replacement {
        Pool::replace(dir, LOST, &ReplaceOptions::default()).expect("a replacement")
    }

    fn refused(dir: &Path, node: u8, options: &ReplaceOptions) -> Error {
        Pool::replace(dir, NodeId(node), options).map(drop).expect_err("it cannot be replaced")
    }

    /// Why the only node that is left out is.
    fn left_out(pool: &Pool) -> &Error {
        let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
        assert_eq!(absent.node, LOST);
        &absent.why
    }

    /// A former file that is put back is refused by its name, whether or not there is a control file
    /// that has heard of another one.
    #[test]
    fn a_former_file_votes_no_more() {
        let (dir, path) = worn();
        let place = node::path(&path, LOST);
        let former = dir.path().join("former");
        fs::copy(&place, &former).expect("copied");
        begun(&path).finish().expect("replaced");
        let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
        assert_eq!((pool.lives(), pool.configuration()), (vec![0, 1, 0], 1));
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
        assert_eq!((pool.lives(), pool.configuration()), (vec![0, 1, 0], 1));
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
        begun(&path).finish().expect("replaced");
        // What the control file may have announced is one more.
        assert!(count(&node::path(&path, LOST)) > former + 1);
    }

    /// SIGKILL after each step: the pool opens as before, or without the node, or is done; the
    /// former file never votes beside what knows of the new one; and the next replacement begins
    /// anew, in a life that no file had before.
    #[test]
    fn a_replacement_that_was_killed_after_any_step_is_taken_up_again() {
        for step in 0..=STEPS.len() {
            let (dir, path) = worn();
            let former = dir.path().join("former");
            fs::copy(node::path(&path, LOST), &former).expect("copied");
            let mut replacement = begun(&path);
            STEPS[..step].iter().for_each(|step| step(&mut replacement).expect("a step"));
            // A process that is killed removes nothing.
            replacement.new.kept = true;
            drop(replacement);
            let opened = Pool::open(&path, OpenOptions::default());
            match step {
                0..=2 => drop(opened.expect("it is as before")),
                3 => {
                    let why = opened.expect_err("nobody has the new life yet");
                    assert!(matches!(why, Error::FormerLife { .. }), "{why}");
                    let pool = Pool::open(&path, degraded()).expect("a majority");
                    assert_eq!(pool.absent_nodes().len(), 1);
                }
                _ => {
                    drop(opened.expect("it is done"));
                    fs::copy(&former, node::path(&path, LOST)).expect("put back");
                    assert!(Pool::open(&path, OpenOptions::default()).is_err());
                }
            }
            used(&path, degraded());
            begun(&path).finish().expect("replaced");
            assert!(!new_path(&path, LOST).exists());
            let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
            let lives = if step < 2 { 1 } else { 2 };
            assert_eq!(
                (pool.lives()[1], pool.configuration()),
                (lives, u64::from(lives)),
                "{step}"
            );
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
        let mut replacement = begun(&path);
        replacement.new.kept = true;
        drop(replacement);
        fs::rename(new_path(&path, LOST), node::path(&path, LOST)).expect("renamed by hand");
        let why = Pool::open(&path, OpenOptions::default()).expect_err("it is empty");
        assert!(matches!(why, Error::Unfilled { node: LOST, .. }), "{why}");
        begun(&path).finish().expect("replaced");
        drop(Pool::open(&path, OpenOptions::default()).expect("all are there"));
    }

    /// A process that has the pool open has the lost node's memory as well, or may go on without it by a
    /// majority of its own.
    #[test]
    fn a_replacement_waits_for_processes_that_have_the_pool_open() {
        let (_dir, path) = worn();
        for options in [OpenOptions::default(), degraded()] {
            let pool = Pool::open(&path, options).expect("a pool");
            let why = refused(&path, 1, &ReplaceOptions::default());
            let Error::OpenElsewhere { processes, .. } = &why else { panic!("{why}") };
            assert_eq!(*processes, [std::process::id()]);
            drop(pool);
            drop(fs::remove_file(node::path(&path, LOST)));
        }
        let replacement = begun(&path);
        let why = Pool::open(&path, degraded()).expect_err("it is being replaced");
        assert!(matches!(why, Error::BeingRepaired { .. }), "{why}");
        let why = refused(&path, 1, &ReplaceOptions::default());
        assert!(matches!(why, Error::OpenElsewhere { .. }), "{why}");
        drop(replacement);
        assert!(!new_path(&path, LOST).exists(), "it was given up");
        drop(Pool::open(&path, degraded()).expect("a majority"));
        begun(&path).finish().expect("replaced");
        drop(Pool::open(&path, OpenOptions::default()).expect("all are there"));
    }

    /// What one node alone knows of the others, and of incarnations, the new node knows: with one
    /// that was away it may be all that is left.
    #[test]
    fn what_the_lost_nodes_majority_recorded_is_at_the_new_nodes() {
        let (dir, path) = pool_of(3);
        let [first, away] = ["first", "away"].map(|name| dir.path().join(name));
        // Nobody but nodes 0 and 1 hears of any client.
        fs::rename(node::path(&path, NodeId(2)), &away).expect("away");
        let last = used(&path, degraded());
        fs::copy(node::path(&path, NodeId(0)), &first).expect("copied");
        let last = last.max(used(&path, degraded()));
        fs::rename(&away, node::path(&path, NodeId(2))).expect("back");
        fs::remove_file(node::path(&path, LOST)).expect("lost");
        begun(&path).finish().expect("replaced");
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
        assert!(matches!(why, Error::MajorityGone { .. }), "{why}");
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
            let mut killed = Pool::replace(&path, LOST, &options).expect("begun");
            killed.new.kept = true;
            drop(killed);
            let replacement = Pool::replace(&path, LOST, &options).expect("begun anew");
            replacement.finish().expect("replaced");
            assert_eq!(fs::read_link(node::path(&path, LOST)).expect("a link"), *place);
            let pool = Pool::open(&path, OpenOptions::default()).expect("all are there");
            assert_eq!(pool.lives(), [0, life, 0]);
        }
        assert!(first.exists(), "a former file is whoever's it was");
        begun(&path).finish().expect("replaced");
        assert!(node::path(&path, LOST).symlink_metadata().expect("a file").is_file());
        let mut killed = begun(&path);
        killed.new.kept = true;
        drop(killed);
        assert!(new_path(&path, LOST).exists());
        Pool::destroy(&path, false).expect("destroyed");
        assert!(!path.exists());
    }
}

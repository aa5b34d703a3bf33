//! Repairing a pool: making a lost or damaged control file anew, from the headers of the nodes.
//!
//! Nothing that was acknowledged is in the control file alone: keys and values are in the nodes.
//! What clients need of it besides the header comes from the nodes' headers: the incarnations that
//! were given out (S16), and which files are current. Epochs, generations, client slots and the
//! clock's line concern clients that are attached, and there are none; no epoch or generation is
//! stored anywhere else, so that both begin anew.
//!
//! **Invariant (S17):** while a control file is made anew, and until it is in its place, no process
//! has any of the nodes open that the pool goes on with. Each opening that may write holds a shared
//! lock on the files that it has mapped, however the pool's directory and control file are called
//! by then; a repair holds exclusive ones. So a client of a removed control file, running or
//! stopped, is named, and a process that is not named has no file of the repaired pool mapped.
//!
//! Which files are current: a node's own event count is at least what each other node says of it
//! (`events`). An older copy, a damaged file and another pool's file are left out. If no majority
//! is left, nothing is changed.
//!
//! # If it is interrupted
//!
//! Each step leaves a pool that opens, or that can be repaired again:
//!
//! 1. The new file is written beside the old one, and synced. It has a name that no other command
//!    looks at, and the next repair begins it anew.
//! 2. Each node's event count is raised by two, above whatever the lost control file may say, so
//!    that a process that still reads by that one gets the error that the files are another's
//!    (S10). The next repair finds a count that is larger than others say, which is no fault.
//! 3. Each node receives the others' counts, which their headers have by now. The headers are
//!    synced: a control file that is on the disk says nothing that they do not.
//! 4. The new file takes the place of the one that was judged, and of no other: the pool opens.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{self, Path};
use std::sync::Arc;

use rustix::fs::{Gid, RenameFlags, Uid, fchown, renameat_with};
use rustix::io::Errno;
use swarm_core::layout::MAX_CLIENTS;
use swarm_core::node::{MAX_NODES, NodeId, NodeSet};

use crate::clients::list::live_clients;
use crate::error::Error;
use crate::events;
use crate::files::backing::Backing;
use crate::files::configuration::{Lives, NodeState, own_life, recorded_life};
use crate::files::control::{self, CONTROL, Control, REPAIRED, open_file};
use crate::files::header::{
    CONFIGURATION, EVENTS, FileRole, Header, INCARNATIONS, OTHERS_EVENTS, incarnations,
    incarnations_end,
};
use crate::files::mapping::{Access, Mapping};
use crate::files::node::{self, PRESENCE};
use crate::files::range_lock::{self, PATIENCE};
use crate::lifecycle::create::is_at;
use crate::members::is_the_files;
use crate::pool::{OpenOptions, Pool};
use crate::processes::process;
use crate::words::sync::Ordering;

/// By how much an event count is raised: a lost control file may say one more than the header.
const RAISE: u64 = 2;

/// How often a repair begins again because another one has just ended.
const TRIES: usize = 4;

/// What a repair did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// The pool, open, without the [nodes](Pool::absent_nodes) that were left out.
    pub pool: Pool,
    /// Whether the control file was made anew. It was left as it is if it is whole.
    pub made_anew: bool,
    /// What was wrong with the control file, if anything was found.
    pub fault: Option<Error>,
}

impl Pool {
    /// Makes the control file of the pool in `dir` anew if it is missing, cut short, damaged or an
    /// older copy, from the headers of a majority of the nodes. Keys and values are not touched.
    /// Does nothing if the control file is whole; with `force` it is made anew all the same, and
    /// what it says is ignored. A repair that is interrupted at any point is taken up by the next
    /// one.
    ///
    /// # Errors
    /// Processes have the pool open. The files of a majority of the nodes are missing, damaged,
    /// another pool's, or older copies than the other nodes know of. The pool's destruction has
    /// begun, or its creation was never completed. The control file is another pool's. This user
    /// may not write the files, or not give the new one to their owner. Nothing was changed then.
    pub fn repair(dir: impl AsRef<Path>, force: bool) -> Result<Repaired, Error> {
        let dir = dir.as_ref();
        let dir = path::absolute(dir).map_err(|error| Error::io(dir, "find", error))?;
        let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
        for _ in 0..TRIES {
            let former = open_former(&dir)?;
            let fault = match Self::open(&dir, degraded) {
                Ok(pool) if !force => return Ok(Repaired { pool, made_anew: false, fault: None }),
                Ok(_) => None,
                Err(fault) if may_be_the_control_files(&fault, &dir) => Some(fault),
                Err(other) => return Err(other),
            };
            if make_anew(&dir, former.as_ref(), force)? {
                return Ok(Repaired { pool: Self::open(&dir, degraded)?, made_anew: true, fault });
            }
        }
        Err(Error::BeingRepaired { pool: dir })
    }
}

/// Opens the control file in `dir`, if there is one.
fn open_former(dir: &Path) -> Result<Option<File>, Error> {
    let path = dir.join(CONTROL);
    match open_file(&path) {
        Ok(file) => Ok(Some(file)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            io::ErrorKind::IsADirectory => Err(Error::Foreign { file: path }),
            _ => Err(Error::io(&path, "open", error)),
        },
    }
}

/// Returns whether a control file that is made anew may help against why a pool cannot be opened.
fn may_be_the_control_files(fault: &Error, dir: &Path) -> bool {
    match fault {
        Error::NoControl { .. } | Error::OlderControl { .. } | Error::MajorityGone { .. } => true,
        Error::Length { file, .. }
        | Error::Foreign { file }
        | Error::Damaged { file, .. }
        | Error::MemoryLost { file }
        // If a majority of the nodes has a version that is known, it is the pool's.
        | Error::Version { file, .. } => *file == dir.join(CONTROL),
        _ => false,
    }
}

/// Makes the control file anew in place of `former`. Returns `false` if another one is in that place
/// by now, and changes nothing.
fn make_anew(dir: &Path, former: Option<&File>, force: bool) -> Result<bool, Error> {
    let alone = Alone::with(dir, former)?;
    // Another repair may have ended before the locks were taken.
    let to = dir.join(CONTROL);
    if !is_as_judged(former, &to) {
        return Ok(false);
    }
    let nodes = CurrentNodes::among(dir, &alone, &FormerControl::of(former, &to, force))?;
    let path = dir.join(REPAIRED);
    let made = write(&path, &nodes).and_then(|()| {
        nodes.raise_events()?;
        put_in_place(dir, &path, former)
    });
    if !matches!(made, Ok(true)) {
        // The path to an error must not end in another.
        drop(fs::remove_file(&path));
    }
    made
}

/// What the control file that is replaced says.
struct FormerControl {
    /// Its header, if that is whole.
    header: Option<Header>,
    /// The least event count of each node's current file, by it; 0 if it is ignored.
    events: [u64; MAX_NODES],
    /// The life of each node, by it.
    lives: Lives,
}

impl FormerControl {
    fn of(former: Option<&File>, path: &Path, force: bool) -> Self {
        let header = former.and_then(|file| {
            let words = Backing::Regular.header(file, path)?;
            Header::decode(&words, path).ok().filter(|header| header.member == FileRole::Control)
        });
        let trusted = former.filter(|_| header.is_some() && !force);
        let events = trusted.and_then(control::events_of).unwrap_or_default().map(events::least);
        let lives = trusted.and_then(control::lives_of).unwrap_or_default();
        Self { header, events, lives }
    }
}

/// S17: the nodes' files, none of which another process has open, and the control file without
/// clients, until this is dropped.
struct Alone<'a> {
    control: Option<&'a File>,
    nodes: Vec<(NodeId, File)>,
}

impl<'a> Alone<'a> {
    /// Locks all files of the pool. Returns an error that names the processes that have it open.
    fn with(dir: &Path, control: Option<&'a File>) -> Result<Self, Error> {
        let mut alone = Self { control: None, nodes: Vec::new() };
        let refused = |path: &Path| {
            let path = path.to_path_buf();
            move |error: io::Error| Error::io(&path, "lock", error)
        };
        let open = |processes| Error::Open { pool: dir.to_path_buf(), processes };
        for id in (0..MAX_NODES as u8).map(NodeId) {
            let path = node::path(dir, id);
            let file = match node::open(&path, Access::Write) {
                Ok(Some(file)) => file,
                Ok(None) | Err(Error::Foreign { .. }) => continue,
                Err(error) => return Err(error),
            };
            let locked = range_lock::lock_within(&file, PRESENCE, PATIENCE);
            if !locked.map_err(refused(&path))? {
                return Err(open(process::holders(&file, &PRESENCE).unwrap_or_default()));
            }
            alone.nodes.push((id, file));
        }
        // Also keeps out a process that destroys the pool.
        if let Some(file) = control {
            let all = Control::slot_bytes(0..MAX_CLIENTS);
            let locked = range_lock::lock_within(file, all, PATIENCE);
            if !locked.map_err(refused(&dir.join(CONTROL)))? {
                return Err(open(owners(file)));
            }
            alone.control = Some(file);
        }
        Ok(alone)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // If one fails, the lock ends with the opening.
        if let Some(control) = self.control {
            drop(range_lock::unlock(control, Control::slot_bytes(0..MAX_CLIENTS)));
        }
        for (_, file) in &self.nodes {
            drop(range_lock::unlock(file, PRESENCE));
        }
    }
}

/// Returns the processes that own client slots of a control file, as far as they can be seen.
fn owners(control: &File) -> Vec<u32> {
    let slots = live_clients(control, MAX_CLIENTS).into_iter();
    let mut owners: Vec<u32> = slots
        .flat_map(|slot| {
            process::holders(control, &Control::slot_bytes(slot..slot + 1)).unwrap_or_default()
        })
        .collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// A node that the pool goes on with.
struct CurrentNode<'a> {
    id: NodeId,
    file: &'a File,
    mapping: Arc<Mapping>,
    /// Its event count.
    count: u64,
}

/// The nodes that the pool goes on with: a majority.
struct CurrentNodes<'a> {
    dir: &'a Path,
    /// The control file's.
    header: Header,
    nodes: Vec<CurrentNode<'a>>,
    /// For each node, the largest event count that any file says of it.
    known: [u64; MAX_NODES],
    /// The last incarnation that may have been given out.
    incarnation: u64,
    /// The number of the configuration, and the life of each node in it.
    configuration: (u64, Lives),
}

impl<'a> CurrentNodes<'a> {
    /// Finds the pool that most files belong to, and which of its nodes are current.
    fn among(dir: &'a Path, alone: &'a Alone<'_>, former: &FormerControl) -> Result<Self, Error> {
        let header = agreed(dir, &alone.nodes)?;
        let (mut nodes, mut whys) = (Vec::new(), Vec::new());
        for id in NodeSet::all(header.geometry.nodes) {
            match map(dir, &alone.nodes, &header, id) {
                Ok(node) => nodes.push(node),
                Err(why) if is_the_files(&why) => whys.push(why),
                Err(why) => return Err(why),
            }
        }
        let is_majority = |count: usize| 2 * count > header.geometry.nodes;
        if let Some(other) = former.header.filter(|other| other.pool_id != header.pool_id)
            && is_majority(nodes.len())
        {
            let (found, expected) = (other.pool_id, header.pool_id);
            return Err(Error::OtherControl { file: dir.join(CONTROL), found, expected });
        }
        // All files count, the older ones too: what they say of others was true before.
        let word =
            |node: &CurrentNode<'_>, at: usize| node.mapping.words()[at].load(Ordering::Acquire);
        let known: [u64; MAX_NODES] = std::array::from_fn(|other| {
            let reports = nodes.iter().map(|node| word(node, OTHERS_EVENTS + other));
            reports.fold(former.events[other], u64::max)
        });
        // H3: a majority has them.
        let number = nodes.iter().map(|node| word(node, CONFIGURATION)).max().unwrap_or(0);
        let lives = std::array::from_fn(|other| {
            let reports =
                nodes.iter().map(|node| recorded_life(&node.mapping, NodeId(other as u8)));
            reports.fold(former.lives[other], u32::max)
        });
        let ends: Vec<Option<u64>> =
            nodes.iter().map(|node| incarnations_end(word(node, INCARNATIONS))).collect();
        let mut answered = 0;
        let mut incarnation = 0;
        let mut current = Vec::new();
        for (node, end) in nodes.into_iter().zip(ends) {
            let (file, known) = (node::path(dir, node.id), known[node.id.index()]);
            let ((found, state), life) = (own_life(&node.mapping), lives[node.id.index()]);
            if found < life {
                whys.push(Error::FormerLife { file, node: node.id, found, current: life });
                continue;
            }
            // H3: it does not know what the others do.
            if state != NodeState::Votes {
                whys.push(Error::Unfilled { file, node: node.id });
                continue;
            }
            if node.count < known {
                whys.push(Error::Older { file, node: node.id, found: node.count, known });
                continue;
            }
            match end {
                Some(end) => (answered, incarnation) = (answered + 1, incarnation.max(end)),
                None => whys.push(Error::Damaged { file, what: "its end of incarnations".into() }),
            }
            current.push(node);
        }
        // S16: an incarnation that was given out is at most the end of one of them.
        if !is_majority(answered) {
            let (pool, nodes) = (dir.to_path_buf(), header.geometry.nodes);
            return Err(Error::MajorityGone { pool, nodes, whys });
        }
        let configuration = (number, lives);
        Ok(Self { dir, header, nodes: current, known, incarnation, configuration })
    }

    /// Returns the control file's words for the nodes' event counts. A node that was left out is
    /// current again when its file is back that was so before, and no other.
    fn events(&self) -> [u64; MAX_NODES] {
        let mut words = self.known.map(events::last_known);
        words[self.header.geometry.nodes..].fill(0);
        for node in &self.nodes {
            words[node.id.index()] = events::known(node.count.saturating_add(RAISE));
        }
        words
    }

    /// Raises the nodes' event counts, and then stores those of the others at each node.
    fn raise_events(&self) -> Result<(), Error> {
        let raised = |node: &CurrentNode<'_>| node.count.saturating_add(RAISE);
        for node in &self.nodes {
            node.mapping.words()[EVENTS].fetch_max(raised(node), Ordering::AcqRel);
            if incarnations_end(node.mapping.words()[INCARNATIONS].load(Ordering::Relaxed))
                .is_none()
            {
                let end = incarnations(self.incarnation);
                node.mapping.words()[INCARNATIONS].store(end, Ordering::Relaxed);
            }
        }
        // S17: after all counts: no header says more of a node than its own does.
        for node in &self.nodes {
            for other in &self.nodes {
                let word = &node.mapping.words()[OTHERS_EVENTS + other.id.index()];
                word.fetch_max(raised(other), Ordering::Release);
            }
        }
        self.nodes.iter().try_for_each(|node| {
            let path = node::path(self.dir, node.id);
            node.mapping.sync_header().map_err(|error| Error::io(&path, "sync", error))?;
            node.mapping.check(node.file, &path)
        })
    }
}

/// Returns the header of the pool that most of the nodes' files belong to, as its control file has
/// it.
fn agreed(dir: &Path, files: &[(NodeId, File)]) -> Result<Header, Error> {
    let (mut headers, mut whys) = (Vec::new(), Vec::new());
    for (id, file) in files {
        match header(file, &node::path(dir, *id)) {
            Ok(header) => headers.push(header.of(FileRole::Control)),
            Err(why) if is_the_files(&why) => whys.push(why),
            Err(why) => return Err(why),
        }
    }
    let count = |header: &Header| headers.iter().filter(|other| *other == header).count();
    match headers.iter().max_by_key(|header| count(header)) {
        Some(&header) => Ok(header),
        None if files.is_empty() => Err(Error::NoPool { pool: dir.to_path_buf() }),
        None => Err(Error::MajorityGone { pool: dir.to_path_buf(), nodes: files.len(), whys }),
    }
}

/// Returns the header of a node's file.
fn header(file: &File, path: &Path) -> Result<Header, Error> {
    let foreign = || Error::Foreign { file: path.to_path_buf() };
    let words = Backing::of(file, path)?.header(file, path).ok_or_else(foreign)?;
    Header::decode(&words, path).and_then(|header| match header.member {
        FileRole::Node(_) => Ok(header),
        FileRole::Control => Err(foreign()),
    })
}

/// Maps a node's file, which must be this pool's.
fn map<'a>(
    dir: &Path,
    files: &'a [(NodeId, File)],
    header: &Header,
    id: NodeId,
) -> Result<CurrentNode<'a>, Error> {
    let path = node::path(dir, id);
    let Some((_, file)) = files.iter().find(|(node, _)| *node == id) else {
        return Err(Error::Missing { file: path, node: id });
    };
    let mapping = node::map(file, &path, &header.of(FileRole::Node(id)), Access::Write, true)?;
    let count = mapping.words()[EVENTS].load(Ordering::Acquire);
    mapping.check(file, &path)?;
    Ok(CurrentNode { id, file, mapping, count })
}

/// Writes the new control file, and syncs it.
fn write(path: &Path, nodes: &CurrentNodes<'_>) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    // What an interrupted repair left, or a link that another user put there: never written to.
    drop(fs::remove_file(path));
    let file = options.open(path).map_err(|error| Error::io(path, "create", error))?;
    grant(&file, path, nodes.nodes.iter().map(|node| node.file))?;
    let (number, lives) = &nodes.configuration;
    let (incarnation, events) = (nodes.incarnation, nodes.events());
    control::fill(&file, path, &nodes.header, incarnation, &events, (*number, lives))?;
    file.sync_all().map_err(|error| Error::io(path, "sync", error))
}

/// Gives a new file the owner, group and mode of the first of the nodes' files. Devices have rights
/// of their own.
pub(crate) fn grant<'a>(
    file: &File,
    path: &Path,
    nodes: impl IntoIterator<Item = &'a File>,
) -> Result<(), Error> {
    let look = |file: &File| file.metadata().map_err(|error| Error::io(path, "look at", error));
    let mut models = nodes.into_iter().map(look);
    let Some(model) = models.find(|found| found.as_ref().is_ok_and(fs::Metadata::is_file)) else {
        return Ok(());
    };
    let (model, own) = (model?, look(file)?);
    let (user, group) = (model.uid(), model.gid());
    if (own.uid(), own.gid()) != (user, group) {
        fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).map_err(|errno| {
            Error::Owner { file: path.to_path_buf(), user, group, source: errno.into() }
        })?;
    }
    // After the owner: changing that may remove rights.
    let mode = fs::Permissions::from_mode(model.mode() & 0o666);
    file.set_permissions(mode).map_err(|error| Error::io(path, "change the mode of", error))
}

/// Puts the new control file in its place, and syncs the directory. Returns `false` if another file
/// than `former` is in that place by now, or none: a user restored one, or destroyed the pool by
/// force, and maybe created another. Then that stays as it is.
fn put_in_place(dir: &Path, from: &Path, former: Option<&File>) -> Result<bool, Error> {
    let to = dir.join(CONTROL);
    let refused = |error: io::Error| Error::io(from, "rename", error);
    let here = rustix::fs::CWD;
    let flags = former.map_or(RenameFlags::NOREPLACE, |_| RenameFlags::EXCHANGE);
    match (renameat_with(here, from, here, &to, flags), former) {
        (Ok(()), None) => {}
        // What was in that place has the new file's name now.
        (Ok(()), Some(former)) if is_at(former, from) => {
            fs::remove_file(from).map_err(|error| Error::io(from, "remove", error))?;
        }
        // A process that opens the other pool before it is back gets the error that files are
        // another pool's.
        (Ok(()), Some(_)) => {
            fs::rename(from, &to).map_err(refused)?;
            return Ok(false);
        }
        (Err(Errno::EXIST), None) | (Err(Errno::NOENT), Some(_)) => return Ok(false),
        // Some file systems cannot do that.
        (Err(Errno::INVAL | Errno::NOSYS), _) if is_as_judged(former, &to) => {
            fs::rename(from, &to).map_err(refused)?;
        }
        (Err(Errno::INVAL | Errno::NOSYS), _) => return Ok(false),
        (Err(error), _) => return Err(refused(error.into())),
    }
    sync_directory(dir)?;
    Ok(true)
}

/// Syncs a directory: what was renamed in it stays so after a power failure.
pub(crate) fn sync_directory(dir: &Path) -> Result<(), Error> {
    let sync = |dir: File| dir.sync_all();
    File::open(dir).and_then(sync).map_err(|error| Error::io(dir, "sync", error))
}

/// Returns whether `former` is the control file still, or there is none still.
fn is_as_judged(former: Option<&File>, to: &Path) -> bool {
    former.map_or_else(|| to.symlink_metadata().is_err(), |former| is_at(former, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::create::CreateOptions;

    /// Another repair ended after this one had looked, and before it had the locks.
    #[test]
    fn a_repair_that_comes_late_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        drop(Pool::create(&path, &options).expect("a pool"));
        fs::write(dir.path().join("former"), "damaged").expect("written");
        let former = open_file(&dir.path().join("former")).expect("it is there");
        for former in [None, Some(&former)] {
            assert!(!make_anew(&path, former, false).expect("nothing is amiss"));
            drop(Pool::open(&path, OpenOptions::default()).expect("it is as it was"));
        }
    }

    /// While its control file was made anew, a pool was destroyed by force; and another one was
    /// created there, whose control file was replaced.
    #[test]
    fn a_control_file_that_came_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let (to, new) = (dir.join(CONTROL), dir.join(REPAIRED));
        let put = |former: Option<&File>| {
            fs::write(&new, "made anew").expect("written");
            let is_put = put_in_place(dir, &new, former).expect("it can be renamed");
            if !is_put {
                drop(fs::remove_file(&new));
            }
            assert!(!new.exists(), "nothing stays beside it");
            is_put
        };
        fs::write(&to, "damaged").expect("written");
        let former = open_file(&to).expect("it is there");
        fs::remove_file(&to).expect("it is there");
        assert!(!put(Some(&former)) && !to.exists(), "the pool is gone");
        fs::write(&to, "another pool's").expect("written");
        assert!(!put(Some(&former)) && !put(None));
        assert_eq!(fs::read(&to).expect("it is there"), b"another pool's");
        let there = open_file(&to).expect("it is there");
        assert!(put(Some(&there)));
        assert_eq!(fs::read(&to).expect("it is there"), b"made anew");
        fs::remove_file(&to).expect("it is there");
        assert!(put(None));
        assert_eq!(fs::read(&to).expect("it is there"), b"made anew");
    }
}

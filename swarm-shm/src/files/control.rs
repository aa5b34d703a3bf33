//! The control file: what the clients of a pool share besides the nodes' memory.
//!
//! ```text
//! word     0  header
//!         64  incarnation     the last one given out
//!         72  switches        one for each node: 0 up, 1 frozen, 2 down
//!         80  destruction     a magic word once it has begun
//!         96  lives           one for each node: [ life 32 | state 32 ]: see `configuration`
//!        104  events          one for each node: its event count: see `events`
//!        112  filled          one for each node: [ done 32 | all 32 ] of the index's first buckets,
//!                             while it is being replaced: for display
//!        128  calibrations    of the clock: 8 words for each of the last boots
//!        192  wait words      where clients sleep until a key changes: see `waits`
//!        256  client slots    the owner's pid namespace and process id
//!       1280  epoch           how often it advanced
//!       1281  generation      how often cached locations were invalidated
//!       1282  epoch's age     since when the epoch is what it is, as far as any client saw: see
//!                             `epoch_domain`
//!       1283  standstill      zero; not so in the pages in place of a lost control file (`sigbus`)
//!       1536  epoch table     8 words for each client slot: see `epoch_domain`
//!       9728  remote frees    for each client slot of the pool, its queue: see `remote_free`
//!         ..  client pages    from the next page on one of 4 KiB for each client slot: the session
//!                             of its last owner, which is the incarnation that it attached with;
//!                             the rest is unused, meant for its owner's counters and a word to
//!                             wait on: zero until a feature needs them
//! ```
//!
//! **Invariant:** only a lock on the bytes of its word decides which client owns a client slot. The
//! word says where to look for the lock's owner (`process`).

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use swarm_core::fabric::Lost;
use swarm_core::layout::MAX_CLIENTS;
use swarm_core::node::{Configuration, MAX_NODES, NodeId, NodeSet};

use crate::error::Error;
use crate::events;
use crate::files::backing::Backing;
use crate::files::configuration::{Lives, NodeState, decode_life, life_word};
use crate::files::header::{CONFIGURATION, FEATURES, FileRole, HEADER_WORDS, Header};
use crate::files::mapping::{Access, Mapping};
use crate::files::node;
use crate::files::range_lock;
use crate::sigbus::Marks;
use crate::words::epochs;
use crate::words::remote_free;
use crate::words::sync::{Ordering, Word};
use crate::words::waits;

/// The control file's name.
pub(crate) const CONTROL: &str = "control";
/// The name it has until the pool is complete.
pub(crate) const UNFINISHED: &str = "control.new";
/// The name of one that is made anew, until it is complete.
pub(crate) const REPAIRED: &str = "control.repair";
/// The bytes of the unfinished control file that its creator locks.
pub(crate) const CREATOR: Range<u64> = 0..8;
/// First word of the clock's calibrations.
pub(crate) const CALIBRATIONS: Range<usize> = 128..192;

const INCARNATION: usize = 64;
const SWITCHES: usize = 72;
const DESTRUCTION: usize = 80;
/// No damage is likely to produce this word by chance.
const DESTROYED: u64 = u64::from_le_bytes(*b"SWARMend");
const LIVES: usize = 96;
/// Not part of the lives. A process that replaces a node changes those, one at a time, and they
/// decide which file may ever vote again. Every client raises event counts, which tell the current
/// file among those of one life.
const EVENTS: usize = 104;
const FILLED: usize = 112;
/// By how much the event count of a node that is replaced is above any that a former file has: a
/// file may have one more than the control file says.
const RAISE: u64 = 2;
/// How often the words for lives are loaded again.
const TRIES: usize = 100;
/// The first of the words on which clients sleep.
pub(crate) const WAIT_WORDS: usize = 192;
const SLOTS: usize = 256;
/// The word that counts epochs.
pub(crate) const EPOCH: usize = 1280;
/// The word that counts generations, relative to that one.
pub(crate) const GENERATION: usize = 1;
/// Unless zero, holds up every epoch, as a client's word does.
pub(crate) const STANDSTILL: usize = 1283;
/// S11: the pages that replace a control file whose memory is gone. A client with an operation in
/// progress goes on with it, and reuses no memory: the epoch no longer advances, and the first
/// epoch is the earliest. A client that begins an operation finds a generation that never existed,
/// and gets an error that says why (S8).
const LOST: Marks = [(EPOCH + GENERATION, 1 << 63), (STANDSTILL, u64::MAX)];
const EPOCH_TABLE: usize = 1536;
/// Each client's words of the epoch table are in a cache line of their own: it stores there often.
const EPOCH_WORD_STRIDE: usize = 8;
/// What follows has one entry for each client slot of the pool.
const REMOTE_FREE_QUEUES: usize = 9728;
/// Bytes of a client slot's page.
const PAGE: usize = 4096;

const _: () = assert!(SLOTS + MAX_CLIENTS <= EPOCH && STANDSTILL < EPOCH_TABLE);
const _: () = assert!(EPOCH_TABLE + MAX_CLIENTS * EPOCH_WORD_STRIDE <= REMOTE_FREE_QUEUES);
const _: () = assert!(HEADER_WORDS <= INCARNATION && SWITCHES + MAX_NODES <= DESTRUCTION);
const _: () = assert!(DESTRUCTION < LIVES && LIVES + MAX_NODES <= EVENTS);
const _: () = assert!(CALIBRATIONS.end <= WAIT_WORDS && WAIT_WORDS + waits::WORDS <= SLOTS);
const _: () = assert!(EVENTS + MAX_NODES <= FILLED && FILLED + MAX_NODES <= CALIBRATIONS.start);

/// An open control file.
#[derive(Debug)]
pub(crate) struct Control {
    /// The pool's directory.
    dir: PathBuf,
    /// Holds no locks itself; locks belong to separate openings.
    file: File,
    mapping: Arc<Mapping>,
    header: Header,
    access: Access,
    /// Its word for features when it was opened.
    features: u64,
}

impl Control {
    /// Opens the control file of the pool at `dir` and verifies its header. Its mapping is
    /// [guarded](Mapping::guarded) if `guarded`.
    pub(crate) fn open(dir: &Path, access: Access, guarded: bool) -> Result<Self, Error> {
        let mut control = Self::load_for(dir, access)?;
        if guarded {
            let (path, bytes) = (dir.join(CONTROL), control.mapping.bytes() as u64);
            control.mapping = Mapping::guarded(&control.file, &path, bytes, access, LOST)?;
        }
        if control.is_half_destroyed() {
            return Err(Error::HalfDestroyed { pool: dir.to_path_buf() });
        }
        Ok(control)
    }

    /// The same, even if the pool's destruction has begun.
    pub(crate) fn load(dir: &Path) -> Result<Self, Error> {
        Self::load_for(dir, Access::Write)
    }

    fn load_for(dir: &Path, access: Access) -> Result<Self, Error> {
        let path = dir.join(CONTROL);
        let file = open_control_for(dir, access)?;
        let metadata = file.metadata().map_err(|error| Error::io(&path, "look at", error))?;
        if !metadata.is_file() {
            return Err(Error::Foreign { file: path });
        }
        let found = metadata.len();
        let length = |expected| Error::Length { file: path.clone(), found, expected };
        // The header first: it says how long the file is.
        let least = || length(REMOTE_FREE_QUEUES as u64 * 8);
        let words = Backing::Regular.header(&file, &path).ok_or_else(least)?;
        let header = Header::decode(&words, &path)?;
        if header.member != FileRole::Control {
            return Err(Error::Foreign { file: path });
        }
        let bytes = bytes(header.geometry.max_clients);
        if found != bytes {
            return Err(length(bytes));
        }
        let mapping = Mapping::open(&file, &path, bytes, access)?;
        let features = words[FEATURES];
        Ok(Self { dir: dir.to_path_buf(), file, mapping, header, access, features })
    }

    /// Returns whether the pool's destruction has begun.
    pub(crate) fn is_half_destroyed(&self) -> bool {
        is_marked(&self.file)
    }

    /// The same by its mapping, without a system call.
    pub(crate) fn says_destroyed(&self) -> bool {
        // Relaxed: the word publishes nothing else.
        self.mapping.words()[DESTRUCTION].load(Ordering::Relaxed) == DESTROYED
    }

    /// Returns what happened to the file: removed, replaced by another one, or cut short; `None` if
    /// nothing did. One system call, `fstat`; if that fails, the file counts as unchanged.
    pub(crate) fn fate(&self) -> Option<Lost> {
        let file = fstat(&self.file).ok()?;
        let is_short = file.st_size < self.mapping.bytes() as i64;
        (file.st_nlink == 0)
            .then_some(Lost::Removed)
            .or_else(|| (is_short || self.mapping.is_lost()).then_some(Lost::CutShort))
    }

    /// Refuses a control file that was cut short. Call it after loading from it (S11).
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.mapping.check(&self.file, &self.dir.join(CONTROL))
    }

    /// Returns the verified header.
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// Returns the pool's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether it was opened to read only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.access == Access::Read
    }

    /// Returns whether the pool's features are those at its opening.
    pub(crate) fn has_its_features(&self) -> bool {
        self.mapping.load(FEATURES) == [self.features]
    }

    /// Returns the opening that is used to query locks.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the mapping of all words.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the word with the last incarnation given out.
    pub(crate) fn incarnation(&self) -> &Word {
        &self.mapping.words()[INCARNATION]
    }

    /// Returns a node's switch.
    pub(crate) fn switch(mapping: &Mapping, node: NodeId) -> &Word {
        assert!(node.index() < MAX_NODES, "there is no {node}");
        &mapping.words()[SWITCHES + node.index()]
    }

    /// Returns a node's event count.
    pub(crate) fn events(&self, node: NodeId) -> &Word {
        assert!(node.index() < MAX_NODES, "there is no {node}");
        &self.mapping.words()[EVENTS + node.index()]
    }

    /// Returns a node's word for its life and state. Acquire: of a node that votes, what its own
    /// header says is there.
    pub(crate) fn life_word(&self, node: NodeId) -> u64 {
        self.mapping.words()[LIVES + node.index()].load(Ordering::Acquire)
    }

    /// Returns all of these words, as they are at one moment.
    pub(crate) fn life_words(&self) -> [u64; MAX_NODES] {
        let load = || std::array::from_fn(|node| self.life_word(NodeId(node as u8)));
        let mut words = load();
        // A process that changes them again and again begins another generation each time.
        for _ in 0..TRIES {
            let again = load();
            if again == words {
                break;
            }
            words = again;
        }
        words
    }

    /// Returns the configuration.
    pub(crate) fn configuration(&self) -> Configuration {
        let number = self.mapping.words()[CONFIGURATION].load(Ordering::Acquire);
        let words = self.life_words();
        let filling = |node: NodeId| decode_life(words[node.index()]).1 == NodeState::Filling;
        let nodes = self.header.geometry.nodes;
        let filling = NodeSet::all(nodes).holding(filling);
        Configuration::kept(nodes, number, words.map(|word| decode_life(word).0), filling)
    }

    /// Decides what the next configuration says of `node`. The caller is the only one that changes
    /// it.
    pub(crate) fn decide(&self, node: NodeId, next: &Configuration) {
        let words = self.mapping.words();
        let word = life_word(next.life(node), next.state(node));
        // H9: the life before the count. H3: whatever is killed behind it leaves no file that votes.
        words[LIVES + node.index()].store(word, Ordering::Release);
        words[FILLED + node.index()].store(0, Ordering::Relaxed);
        words[CONFIGURATION].store(next.number(), Ordering::Release);
    }

    /// Makes a node's event count one that no former file of it has, or gets: it is above `known`,
    /// too. Returns it.
    pub(crate) fn void_events(&self, node: NodeId, known: u64) -> u64 {
        let word = self.events(node);
        let next = |word: u64| events::known((word >> 1).max(known).saturating_add(RAISE));
        // Others may raise a former file's count until the next word is there, and not behind it.
        let update = |word| Some(next(word));
        let former = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        next(former.unwrap_or_else(|word| word)) >> 1
    }

    /// Returns how far the filling of a node is: first buckets of the index that were gone over, and
    /// all of them.
    pub(crate) fn filled(&self, node: NodeId) -> (u32, u32) {
        let word = self.mapping.words()[FILLED + node.index()].load(Ordering::Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Stores how far it is.
    pub(crate) fn set_filled(&self, node: NodeId, (done, all): (u32, u32)) {
        let word = u64::from(done) << 32 | u64::from(all);
        self.mapping.words()[FILLED + node.index()].store(word, Ordering::Relaxed);
    }

    /// Returns a client slot's word.
    pub(crate) fn slot(&self, slot: usize) -> &Word {
        &self.mapping.words()[SLOTS + slot]
    }

    /// Returns the word with the session of a client slot's last owner; 0 if none has stored it.
    pub(crate) fn session(&self, slot: usize) -> &Word {
        let slots = self.header.geometry.max_clients;
        assert!(slot < slots, "there is no client slot {slot}");
        &self.mapping.words()[(first_page(slots) + slot * PAGE) / 8]
    }

    /// Returns the bytes whose lock decides which client owns each of these client slots.
    pub(crate) fn slot_bytes(slots: Range<usize>) -> Range<u64> {
        (SLOTS + slots.start) as u64 * 8..(SLOTS + slots.end) as u64 * 8
    }

    /// Returns the bytes that are locked while the configuration is changed.
    pub(crate) fn decision_bytes() -> Range<u64> {
        CONFIGURATION as u64 * 8..CONFIGURATION as u64 * 8 + 8
    }

    /// Returns the bytes that are locked while a process replaces this node.
    pub(crate) fn filler_bytes(node: NodeId) -> Range<u64> {
        let word = (LIVES + node.index()) as u64;
        word * 8..word * 8 + 8
    }

    /// Returns the bytes that are locked while the clock is calibrated.
    pub(crate) fn calibration_bytes() -> Range<u64> {
        CALIBRATIONS.start as u64 * 8..CALIBRATIONS.end as u64 * 8
    }

    /// Opens the control file once more, for locks. [`Error::Gone`] if it is no longer there.
    pub(crate) fn reopen(&self) -> Result<File, Error> {
        let path = self.dir.join(CONTROL);
        let gone = || Error::Gone { pool: self.dir.clone() };
        let file = open_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => gone(),
            _ => Error::io(&path, "open", error),
        })?;
        let look =
            |file: &File| file.metadata().map_err(|error| Error::io(&path, "look at", error));
        let (ours, there) = (look(&self.file)?, look(&file)?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            return Err(gone());
        }
        Ok(file)
    }

    /// Returns [`Error::Gone`] if the pool was destroyed, and [`Error::HalfDestroyed`] if its
    /// destruction has begun: nodes' files may be gone already. Returns the fault of the file if it
    /// was cut short.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| Error::io(&self.dir, "look at", error))?;
        if metadata.nlink() == 0 {
            return Err(Error::Gone { pool: self.dir.clone() });
        }
        if self.is_half_destroyed() {
            return Err(Error::HalfDestroyed { pool: self.dir.clone() });
        }
        let (found, expected) = (metadata.len(), self.mapping.bytes() as u64);
        if found < expected {
            return Err(Error::Length { file: self.dir.join(CONTROL), found, expected });
        }
        self.check()
    }
}

/// Returns the index of a client slot's word in the epoch table.
pub(crate) fn epoch_word(slot: usize) -> usize {
    assert!(slot < MAX_CLIENTS, "there is no client slot {slot}");
    EPOCH_TABLE + slot * EPOCH_WORD_STRIDE
}

/// Returns the length of a pool's control file, in bytes.
pub(crate) fn bytes(max_clients: usize) -> u64 {
    (first_page(max_clients) + max_clients * PAGE) as u64
}

/// Returns the byte at which the first client slot's page begins.
fn first_page(max_clients: usize) -> usize {
    (8 * (REMOTE_FREE_QUEUES + max_clients * remote_free::WORDS)).next_multiple_of(PAGE)
}

/// Returns the first word of a client slot's remote-free queue.
pub(crate) fn remote_free_queue(slot: usize) -> usize {
    assert!(slot < MAX_CLIENTS, "there is no client slot {slot}");
    REMOTE_FREE_QUEUES + slot * remote_free::WORDS
}

/// Gives a new control file its length, and stores what a pool's clients need to go on: its header,
/// the last incarnation given out, its word for each node's event count, and the configuration. All
/// else is zero, as in a pool that no client has used: it says what clients do that are attached.
pub(crate) fn fill(
    file: &File,
    path: &Path,
    header: &Header,
    incarnation: u64,
    events: &[u64],
    (configuration, lives): (u64, &Lives),
) -> Result<(), Error> {
    let bytes = bytes(header.geometry.max_clients);
    Backing::Regular.check_room(file, path, bytes)?;
    Backing::Regular.reserve(file, path, bytes, &|| Ok(()))?;
    let mapping = Mapping::new(file, path, bytes)?;
    mapping.store(0, &header.encode());
    mapping.store(INCARNATION, &[incarnation]);
    mapping.store(EVENTS, events);
    mapping.store(CONFIGURATION, &[configuration]);
    mapping.store(LIVES, &lives.map(|life| life_word(life, NodeState::Votes)));
    Ok(())
}

/// Returns a control file's words for the nodes' event counts, if it is that long.
pub(crate) fn events_of(file: &File) -> Option<[u64; MAX_NODES]> {
    words_of(file, EVENTS)
}

/// Returns the life of each node by a control file, if it is that long.
pub(crate) fn lives_of(file: &File) -> Option<Lives> {
    words_of(file, LIVES).map(|words| words.map(|word| decode_life(word).0))
}

fn words_of(file: &File, at: usize) -> Option<[u64; MAX_NODES]> {
    let mut bytes = [0; MAX_NODES * 8];
    file.read_exact_at(&mut bytes, at as u64 * 8).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    Some(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

/// Opens the control file of the pool at `dir`, whatever it contains.
pub(crate) fn open_control(dir: &Path) -> Result<File, Error> {
    open_control_for(dir, Access::Write)
}

fn open_control_for(dir: &Path, access: Access) -> Result<File, Error> {
    let path = dir.join(CONTROL);
    open_file_for(&path, access).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if is_there(&dir.join(UNFINISHED)) => unfinished(dir),
        io::ErrorKind::NotFound if has_nodes(dir) => Error::NoControl { file: path },
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::NoPool { pool: dir.to_path_buf() }
        }
        io::ErrorKind::IsADirectory => Error::Foreign { file: path },
        _ => Error::io(&path, "open", error),
    })
}

/// Returns whether a control file, which may be damaged, says that the pool's destruction has
/// begun.
pub(crate) fn is_marked(control: &File) -> bool {
    let mut word = [0; 8];
    control.read_exact_at(&mut word, DESTRUCTION as u64 * 8).is_ok()
        && u64::from_le_bytes(word) == DESTROYED
}

/// Records in a control file, which may be damaged, whether the pool's destruction has begun.
pub(crate) fn mark_destruction(control: &File, begun: bool) -> io::Result<()> {
    let word = if begun { DESTROYED } else { 0 };
    control.write_all_at(&word.to_le_bytes(), DESTRUCTION as u64 * 8)
}

/// Begins another generation in a control file, which may be damaged or cut short: clients that
/// find it check what happened to their pool (S8).
pub(crate) fn renew_generation(control: &File, path: &Path) {
    let bytes = control.metadata().map_or(0, |metadata| metadata.len());
    if bytes >= REMOTE_FREE_QUEUES as u64 * 8
        && let Ok(mapping) = Mapping::new(control, path, bytes)
    {
        epochs::renew(&mapping.words()[EPOCH + GENERATION]);
    }
}

/// Opens an existing file.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    open_file_for(path, Access::Write)
}

/// The same with this access.
pub(crate) fn open_file_for(path: &Path, access: Access) -> io::Result<File> {
    OpenOptions::new().read(true).write(access == Access::Write).open(path)
}

/// Returns the error for an incomplete pool: it is being created, or its creator has died.
fn unfinished(dir: &Path) -> Error {
    let pool = dir.to_path_buf();
    // A file that may not be opened belongs to another user.
    let is_held = |file: File| range_lock::is_locked(&file, CREATOR).unwrap_or(true);
    if open_file(&dir.join(UNFINISHED)).map_or(true, is_held) {
        return Error::BeingCreated { pool };
    }
    Error::Unfinished { pool }
}

/// Returns whether memory nodes lie in `dir`.
pub(crate) fn has_nodes(dir: &Path) -> bool {
    (0..MAX_NODES as u8).any(|node| node::pool(&node::path(dir, NodeId(node))).is_some())
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

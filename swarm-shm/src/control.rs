//! The control file: what the clients of a pool share besides the nodes' memory.
//!
//! ```text
//! word     0  header
//!         64  incarnation     the last one given out
//!         72  switches        one for each node: 0 up, 1 frozen, 2 down
//!         80  destruction     a magic word once it has begun
//!         96  lives           one for each node: [ life 32 | state 32 ]; set aside: zero until a feature uses them
//!        128  calibrations    of the clock: 8 words for each of the last boots
//!        256  client slots    the holder's pid namespace and process id
//!       1280  epoch           how often it moved on
//!       1281  generation      how often clients were told to forget places
//!       1282  epoch's age     since when the epoch is what it is, as far as anybody saw: see `board`
//!       1536  board           8 words for each client slot: see `board`
//!       9728  replaced        for each client slot of the pool what others have told it: see `mailbox`
//!         ..  client pages    from the next page on one of 4 KiB for each client slot; set aside for what its holder counts
//!                             and for a word to wait on: zero until a feature uses them
//! ```
//!
//! Who holds a client slot is decided by a lock on the bytes of its word and by nothing else; the word
//! says where to look for the lock's holder (`holder`).

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use swarm_core::layout::MAX_CLIENTS;
use swarm_core::node::{MAX_NODES, NodeId};

use crate::epochs;
use crate::error::Error;
use crate::header::{HEADER_WORDS, Header, Member};
use crate::kind::Kind;
use crate::lock;
use crate::mailbox;
use crate::mapping::Mapping;
use crate::node;
use crate::sync::{Ordering, Word};

/// The control file's name.
pub(crate) const CONTROL: &str = "control";
/// The name it has until the pool is complete.
pub(crate) const UNFINISHED: &str = "control.new";
/// The bytes of the unfinished control file that its creator locks.
pub(crate) const CREATOR: Range<u64> = 0..8;
/// First word of the clock's calibrations.
pub(crate) const CALIBRATIONS: Range<usize> = 128..192;

const INCARNATION: usize = 64;
const SWITCHES: usize = 72;
const DESTRUCTION: usize = 80;
/// No damage says by chance that the pool is being destroyed.
const DESTROYED: u64 = u64::from_le_bytes(*b"SWARMend");
/// Set aside.
const LIVES: usize = 96;
const SLOTS: usize = 256;
/// The word that counts epochs.
pub(crate) const EPOCH: usize = 1280;
/// The word that counts generations, from that one.
pub(crate) const GENERATION: usize = 1;
const BOARD: usize = 1536;
/// Each client's words on the board are a cache line of their own: it stores there all the time.
const BOARD_STRIDE: usize = 8;
/// What is behind it is there for the slots that the pool has.
const MAILBOXES: usize = 9728;
/// Bytes of a client slot's page.
const PAGE: usize = 4096;

const _: () = assert!(SLOTS + MAX_CLIENTS <= EPOCH && EPOCH + 3 <= BOARD);
const _: () = assert!(BOARD + MAX_CLIENTS * BOARD_STRIDE <= MAILBOXES);
const _: () = assert!(HEADER_WORDS <= INCARNATION && SWITCHES + MAX_NODES <= DESTRUCTION);
const _: () = assert!(DESTRUCTION < LIVES && LIVES + MAX_NODES <= CALIBRATIONS.start);

/// An open control file.
#[derive(Debug)]
pub(crate) struct Control {
    /// The pool's directory.
    dir: PathBuf,
    /// Holds no locks itself; they belong to openings of their own.
    file: File,
    mapping: Arc<Mapping>,
    header: Header,
}

impl Control {
    /// Opens the control file of the pool at `dir` and verifies its header.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let control = Self::load(dir)?;
        if control.is_half_destroyed() {
            return Err(Error::HalfDestroyed { pool: dir.to_path_buf() });
        }
        Ok(control)
    }

    /// The same, even if the pool's destruction has begun.
    pub(crate) fn load(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(CONTROL);
        let file = open_control(dir)?;
        let metadata = file.metadata().map_err(|error| Error::io(&path, "look at", error))?;
        if !metadata.is_file() {
            return Err(Error::Foreign { file: path });
        }
        let found = metadata.len();
        let length = |expected| Error::Length { file: path.clone(), found, expected };
        // The header first: it says how long the file is.
        let least = || length(MAILBOXES as u64 * 8);
        let words = Kind::Regular.header(&file, &path).ok_or_else(least)?;
        let header = Header::decode(&words, &path)?;
        if header.member != Member::Control {
            return Err(Error::Foreign { file: path });
        }
        let bytes = bytes(header.geometry.max_clients);
        if found != bytes {
            return Err(length(bytes));
        }
        let mapping = Mapping::new(&file, &path, bytes)?;
        Ok(Self { dir: dir.to_path_buf(), file, mapping, header })
    }

    /// Whether the pool's destruction has begun.
    pub(crate) fn is_half_destroyed(&self) -> bool {
        is_marked(&self.file)
    }

    /// The same by its mapping: asks nothing of the system.
    pub(crate) fn says_destroyed(&self) -> bool {
        // Relaxed: the word stands for itself.
        self.mapping.words()[DESTRUCTION].load(Ordering::Relaxed) == DESTROYED
    }

    /// Whether the file was removed, or another put in its place. One system call, `fstat`; where that fails, the file is taken
    /// to be there.
    pub(crate) fn is_removed(&self) -> bool {
        fstat(&self.file).is_ok_and(|file| file.st_nlink == 0)
    }

    /// The verified header.
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// The pool's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The opening that is there for looking at locks.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// All of its words.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The last incarnation given out.
    pub(crate) fn incarnation(&self) -> &Word {
        &self.mapping.words()[INCARNATION]
    }

    /// A node's switch.
    pub(crate) fn switch(mapping: &Mapping, node: NodeId) -> &Word {
        assert!(node.index() < MAX_NODES, "there is no {node}");
        &mapping.words()[SWITCHES + node.index()]
    }

    /// A client slot's word.
    pub(crate) fn slot(&self, slot: usize) -> &Word {
        &self.mapping.words()[SLOTS + slot]
    }

    /// The bytes whose lock decides who holds a client slot.
    pub(crate) fn slot_bytes(slots: Range<usize>) -> Range<u64> {
        (SLOTS + slots.start) as u64 * 8..(SLOTS + slots.end) as u64 * 8
    }

    /// The bytes that are locked while the clock is calibrated.
    pub(crate) fn calibration_bytes() -> Range<u64> {
        CALIBRATIONS.start as u64 * 8..CALIBRATIONS.end as u64 * 8
    }

    /// Opens the control file once more, for locks. [`Error::Gone`] if it is not there any more.
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

    /// [`Error::Gone`] if the pool was destroyed, [`Error::HalfDestroyed`] if that was begun: nodes' files may
    /// have gone already.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|error| Error::io(&self.dir, "look at", error))?;
        if metadata.nlink() == 0 {
            return Err(Error::Gone { pool: self.dir.clone() });
        }
        if self.is_half_destroyed() {
            return Err(Error::HalfDestroyed { pool: self.dir.clone() });
        }
        Ok(())
    }
}

/// A client slot's word on the board.
pub(crate) fn board(slot: usize) -> usize {
    assert!(slot < MAX_CLIENTS, "there is no client slot {slot}");
    BOARD + slot * BOARD_STRIDE
}

/// The length of a pool's control file, in bytes.
pub(crate) fn bytes(max_clients: usize) -> u64 {
    let pages = (8 * (MAILBOXES + max_clients * mailbox::WORDS)).next_multiple_of(PAGE);
    (pages + max_clients * PAGE) as u64
}

/// The first word of a client slot's mailbox.
pub(crate) fn mailbox(slot: usize) -> usize {
    assert!(slot < MAX_CLIENTS, "there is no client slot {slot}");
    MAILBOXES + slot * mailbox::WORDS
}

/// Opens the control file of the pool at `dir`, whatever it says.
pub(crate) fn open_control(dir: &Path) -> Result<File, Error> {
    let path = dir.join(CONTROL);
    open_file(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if is_there(&dir.join(UNFINISHED)) => unfinished(dir),
        io::ErrorKind::NotFound if has_nodes(dir) => Error::NoControl { file: path },
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Error::NoPool { pool: dir.to_path_buf() }
        }
        io::ErrorKind::IsADirectory => Error::Foreign { file: path },
        _ => Error::io(&path, "open", error),
    })
}

/// Whether a control file, which may be damaged, says that the pool's destruction has begun.
pub(crate) fn is_marked(control: &File) -> bool {
    let mut word = [0; 8];
    control.read_exact_at(&mut word, DESTRUCTION as u64 * 8).is_ok()
        && u64::from_le_bytes(word) == DESTROYED
}

/// Says in a control file, which may be damaged, whether the pool's destruction has begun.
pub(crate) fn mark_destruction(control: &File, begun: bool) -> io::Result<()> {
    let word = if begun { DESTROYED } else { 0 };
    control.write_all_at(&word.to_le_bytes(), DESTRUCTION as u64 * 8)
}

/// Begins another generation in a control file, which may be damaged or cut short: clients that are there look
/// up what became of their pool when they meet it.
pub(crate) fn renew_generation(control: &File, path: &Path) {
    let bytes = control.metadata().map_or(0, |metadata| metadata.len());
    if bytes >= MAILBOXES as u64 * 8
        && let Ok(mapping) = Mapping::new(control, path, bytes)
    {
        epochs::renew(&mapping.words()[EPOCH + GENERATION]);
    }
}

/// Opens a file that is there.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// What there is to say of a pool that is not complete: somebody is at it, or has died.
fn unfinished(dir: &Path) -> Error {
    let pool = dir.to_path_buf();
    // One that may not be looked at is somebody else's.
    let is_held = |file: File| lock::is_locked(&file, CREATOR).unwrap_or(true);
    if open_file(&dir.join(UNFINISHED)).map_or(true, is_held) {
        return Error::BeingCreated { pool };
    }
    Error::Unfinished { pool }
}

/// Whether memory nodes lie in `dir`.
pub(crate) fn has_nodes(dir: &Path) -> bool {
    (0..MAX_NODES as u8).any(|node| node::pool(&node::path(dir, NodeId(node))).is_some())
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

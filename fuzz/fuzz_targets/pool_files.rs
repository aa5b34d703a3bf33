//! Headers and control file of a pool, damaged at random: opening it fails with an error, or the
//! pool can be used, and what is put there it keeps, or ends in an error.
#![no_main]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use swarm_core::quorum::Timeouts;
use swarm_kv::{Error, Options, shm};
use swarm_shm::{CreateOptions, Pool};
use tempfile::TempDir;

/// Bytes at a memory node's beginning that are damaged: its header, and the map of its chunks. Of the
/// control file it is all that a number of 16 bits reaches: the clients' slots, the epoch, the board.
const REACH: u64 = 8192;

#[derive(Arbitrary, Debug)]
struct Damage {
    file: u8,
    at: u16,
    with: Bytes,
}

#[derive(Arbitrary, Debug)]
enum Bytes {
    One(u8),
    Word(u64),
    Cut,
}

/// A key that is there at first, and its value.
const THERE: (&[u8], &[u8]) = (b"there", b"before");
/// Others: one that is kept in place and one that is not.
const NEW: [(&[u8], &[u8]); 2] = [(b"key", b"value"), (b"another", &[7; 3000])];

/// A sound pool.
struct Sound {
    dir: TempDir,
    files: Vec<Image>,
}

/// A file as it was.
struct Image {
    name: PathBuf,
    size: u64,
    /// Its pages that are not all zeros, and where they are.
    pages: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn of(name: PathBuf) -> Self {
        let bytes = std::fs::read(&name).expect("the file");
        let pages = bytes.chunks(4096).zip(0..).filter(|(page, _)| page.iter().any(|&b| b != 0));
        let pages = pages.map(|(page, at)| (at * 4096, page.to_vec())).collect();
        Self { name, size: bytes.len() as u64, pages }
    }

    /// All of it, or what a run wrote would be damage to the next.
    fn put_back(&self) {
        let file = OpenOptions::new().write(true).open(&self.name).expect("the file");
        file.set_len(0).and_then(|()| file.set_len(self.size)).expect("its size");
        for (at, page) in &self.pages {
            file.write_all_at(page, *at).expect("its pages");
        }
    }
}

static SOUND: LazyLock<Sound> = LazyLock::new(|| {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("pool");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 2, ..CreateOptions::default() };
    let pool = Pool::create(&path, &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a client");
    client.blocking().put(THERE.0, THERE.1).expect("room");
    drop(client);
    drop(pool);
    let mut names: Vec<_> = files(&path);
    names.sort();
    Sound { dir, files: names.into_iter().map(Image::of).collect() }
});

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the pool");
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

fn hurt(image: &Image, damage: &Damage) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(&image.name)?;
    let is_control = image.name.ends_with("control");
    let at = u64::from(damage.at) % if is_control { 1 << 16 } else { REACH };
    match damage.with {
        Bytes::One(byte) => file.write_all_at(&[byte], at),
        Bytes::Word(word) => file.write_all_at(&word.to_le_bytes(), at & !7),
        Bytes::Cut => file.set_len(at),
    }
}

/// The value of a key, unless reading it ends in an error.
fn outcome(store: &shm::Client, key: &[u8]) -> Option<Option<Vec<u8>>> {
    let outcome = store.blocking().get(key).ok()?;
    Some(outcome.map(|value| value.to_vec()))
}

/// An operation may end in an error. One that succeeds has done what it is for.
fn use_it(store: &shm::Client) {
    if let Some(found) = outcome(store, THERE.0) {
        assert_eq!(found.as_deref(), Some(THERE.1), "nobody wrote anything else");
    }
    for (key, value) in NEW {
        if let Some(found) = outcome(store, key) {
            assert_eq!(found, None, "nobody wrote it yet");
        }
        let put = store.blocking().put(key, value);
        let Some(found) = outcome(store, key) else { continue };
        let found = found.as_deref();
        match put {
            Ok(()) => assert_eq!(found, Some(value), "it is done"),
            Err(
                Error::Replication(_)
                | Error::Contended
                | Error::Unsettled(_)
                | Error::UnsettledNumbersExhausted
                | Error::UnsettledUnfinished,
            ) => {
                assert!(found.is_none_or(|found| found == value), "done or not: {found:?}");
            }
            Err(error) => assert_eq!(found, None, "{error}: it has no effect"),
        }
    }
}

/// Whether the pool can be opened, and then used.
fn open(path: &Path, degraded: bool, with: impl FnOnce(&shm::Client)) {
    let options = swarm_shm::OpenOptions { degraded, ..Default::default() };
    let Ok(pool) = Pool::open(path, options) else { return };
    // Where damage takes nodes away, each operation waits for its time-out.
    let timeouts = Timeouts { deadline: 20_000_000, ..Timeouts::default() };
    let options = Options::default().cached_keys(10).cached_buckets(10).timeouts(timeouts);
    let Ok(client) = shm::open(&pool, options) else { return };
    with(&client);
}

fuzz_target!(|input: (Vec<Damage>, bool)| {
    let (damages, degraded) = input;
    let sound = &*SOUND;
    let path = sound.dir.path().join("pool");
    for damage in damages.iter().take(8) {
        let image = &sound.files[usize::from(damage.file) % sound.files.len()];
        hurt(image, damage).expect("room for damage");
    }
    open(&path, degraded, use_it);
    sound.files.iter().for_each(Image::put_back);
});

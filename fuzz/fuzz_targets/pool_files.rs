//! Headers and control file of a pool, damaged at random: opening it fails with an error, or the
//! pool can be used.
#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use swarm_kv::{Options, shm};
use swarm_shm::{CreateOptions, Pool};
use tempfile::TempDir;

/// Bytes at a file's beginning that are damaged, and put back.
const REACH: usize = 8192;

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

/// A sound pool, and what its files begin with.
struct Sound {
    dir: TempDir,
    files: Vec<(PathBuf, Vec<u8>, u64)>,
}

static SOUND: LazyLock<Sound> = LazyLock::new(|| {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("pool");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 2, ..CreateOptions::default() };
    drop(Pool::create(&path, &options).expect("a pool"));
    let mut names: Vec<_> = files(&path);
    names.sort();
    let files = names
        .into_iter()
        .map(|name| {
            let file = File::open(&name).expect("the file");
            let size = file.metadata().expect("its size").len();
            let mut head = vec![0; REACH.min(size as usize)];
            file.read_exact_at(&mut head, 0).expect("its beginning");
            (name, head, size)
        })
        .collect();
    Sound { dir, files }
});

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the pool");
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

fn hurt(file: &File, damage: &Damage) -> std::io::Result<()> {
    let at = u64::from(damage.at) % REACH as u64;
    match damage.with {
        Bytes::One(byte) => file.write_all_at(&[byte], at),
        Bytes::Word(word) => file.write_all_at(&word.to_le_bytes(), at & !7),
        Bytes::Cut => file.set_len(at),
    }
}

fn use_it(path: &Path, degraded: bool) {
    let Ok(pool) = Pool::open(path, swarm_shm::OpenOptions { degraded, ..Default::default() })
    else {
        return;
    };
    let Ok(client) = shm::open(&pool, Options::default().cached_keys(10).cached_buckets(10)) else {
        return;
    };
    let store = client.blocking();
    let _ = store.put(b"key", b"value");
    let _ = store.get(b"key");
}

fuzz_target!(|input: (Vec<Damage>, bool)| {
    let (damages, degraded) = input;
    let sound = &*SOUND;
    for damage in damages.iter().take(8) {
        let (name, ..) = &sound.files[usize::from(damage.file) % sound.files.len()];
        let file = OpenOptions::new().write(true).open(name).expect("the file");
        hurt(&file, damage).expect("room for damage");
    }
    use_it(&sound.dir.path().join("pool"), degraded);
    for (name, head, size) in &sound.files {
        let file = OpenOptions::new().write(true).open(name).expect("the file");
        file.set_len(*size).expect("its size");
        file.write_all_at(head, 0).expect("its beginning");
    }
});

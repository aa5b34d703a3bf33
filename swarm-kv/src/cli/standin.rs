//! Stand-in for the store, until it lands.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "stand-in")]
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::{Deref, Sub};
use std::path::{Path, PathBuf};

pub struct SafeGuess;
pub struct DmAbd;
pub struct Raw;

#[derive(Debug)]
pub struct Error(String);
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
fn err(e: impl std::fmt::Display) -> Error {
    Error(e.to_string())
}

#[derive(Clone)]
pub struct Pool {
    dir: PathBuf,
    nodes: usize,
    capacity: u64,
}
pub struct CreateOptions {
    pub nodes: usize,
    pub capacity: u64,
    pub max_clients: usize,
    pub node_paths: Option<Vec<PathBuf>>,
}
#[derive(Default)]
pub struct OpenOptions {
    pub degraded: bool,
}
#[derive(Clone, Copy)]
pub enum SwitchState {
    Up,
    Frozen,
}
pub struct NodeSwitch;
impl NodeSwitch {
    pub fn set(&self, _: SwitchState) {}
}
#[derive(Clone, Copy)]
pub struct Geometry {
    pub nodes: usize,
    pub capacity: u64,
}
impl Pool {
    pub fn create(dir: &Path, o: CreateOptions) -> Result<Self, Error> {
        if dir.join("control").exists() {
            return Err(err(format!("{} is a pool already", dir.display())));
        }
        std::fs::create_dir_all(dir).map_err(err)?;
        std::fs::write(dir.join("data"), "").map_err(err)?;
        std::fs::write(dir.join("control"), format!("{} {}", o.nodes, o.capacity)).map_err(err)?;
        Self::open(dir, OpenOptions::default())
    }
    pub fn open(dir: &Path, _: OpenOptions) -> Result<Self, Error> {
        let s = std::fs::read_to_string(dir.join("control"))
            .map_err(|e| err(format!("{} is no pool: {e}", dir.display())))?;
        let (n, c) = s.split_once(' ').ok_or_else(|| err("damaged"))?;
        Ok(Self {
            dir: dir.into(),
            nodes: n.parse().map_err(err)?,
            capacity: c.parse().map_err(err)?,
        })
    }
    pub fn destroy(dir: &Path, _force: bool) -> Result<(), Error> {
        Self::open(dir, OpenOptions::default())?;
        std::fs::remove_dir_all(dir).map_err(err)
    }
    pub fn geometry(&self) -> Geometry {
        Geometry { nodes: self.nodes, capacity: self.capacity }
    }
    pub fn live_clients(&self) -> Vec<usize> {
        vec![]
    }
    pub fn switch(&self, _: swarm_core::fabric::NodeId) -> NodeSwitch {
        NodeSwitch
    }
}

#[derive(Clone, Default, Debug)]
pub struct Count {
    pub operations: u64,
    pub roundtrips: [u64; 32],
    pub verbs: u64,
    pub bytes: u64,
}
impl Count {
    fn add(&mut self) {
        self.operations += 1;
        self.roundtrips[1] += 1;
        self.verbs += 4;
        self.bytes += 100;
    }
}
#[derive(Clone, Default, Debug)]
pub struct Counters {
    pub get: Count,
    pub update: Count,
    pub insert: Count,
    pub delete: Count,
}
impl Sub for Count {
    type Output = Self;
    fn sub(mut self, o: Self) -> Self {
        self.operations -= o.operations;
        self.verbs -= o.verbs;
        self.bytes -= o.bytes;
        for (a, b) in self.roundtrips.iter_mut().zip(o.roundtrips) {
            *a -= b;
        }
        self
    }
}
impl Sub for Counters {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Self {
            get: self.get - o.get,
            update: self.update - o.update,
            insert: self.insert - o.insert,
            delete: self.delete - o.delete,
        }
    }
}
pub struct Usage {
    pub used_bytes: u64,
    pub keys: u64,
}
pub struct Value<'a>(Vec<u8>, PhantomData<&'a ()>);
impl Deref for Value<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
pub struct Client<P> {
    file: RefCell<File>,
    at: Cell<u64>,
    map: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
    counters: RefCell<Counters>,
    p: PhantomData<P>,
}
#[derive(Default)]
pub struct Options {
    pub cache_entries: usize,
}
pub fn open_plain<P>(pool: &Pool, _: Options) -> Result<Client<P>, Error> {
    Ok(Client {
        file: RefCell::new(
            FileOptions::new().read(true).append(true).open(pool.dir.join("data")).map_err(err)?,
        ),
        at: Cell::new(0),
        map: RefCell::default(),
        counters: RefCell::default(),
        p: PhantomData,
    })
}
pub fn open_emulated<P>(pool: &Pool, o: Options, _: u64) -> Result<Client<P>, Error> {
    open_plain(pool, o)
}
impl<P> Client<P> {
    fn with<R>(
        &self,
        f: impl FnOnce(&HashMap<Vec<u8>, Vec<u8>>, &mut Vec<u8>) -> R,
    ) -> Result<R, Error> {
        use rustix::fs::{FlockOperation, flock};
        let mut file = self.file.borrow_mut();
        flock(&*file, FlockOperation::LockExclusive).map_err(err)?;
        let len = file.metadata().map_err(err)?.len();
        if len > self.at.get() {
            file.seek(SeekFrom::Start(self.at.get())).map_err(err)?;
            let mut b = vec![0; (len - self.at.get()) as usize];
            file.read_exact(&mut b).map_err(err)?;
            let mut b = &b[..];
            let mut map = self.map.borrow_mut();
            while b.len() >= 9 {
                let k = u32::from_le_bytes(b[0..4].try_into().unwrap()) as usize;
                let v = u32::from_le_bytes(b[4..8].try_into().unwrap()) as usize;
                if b.len() < 9 + k + v {
                    break;
                }
                if b[8] == 1 {
                    map.insert(b[9..9 + k].to_vec(), b[9 + k..9 + k + v].to_vec());
                } else {
                    map.remove(&b[9..9 + k]);
                }
                b = &b[9 + k + v..];
            }
            self.at.set(len);
        }
        let mut out = vec![];
        let r = f(&self.map.borrow(), &mut out);
        if !out.is_empty() {
            file.write_all(&out).map_err(err)?;
        }
        flock(&*file, FlockOperation::Unlock).map_err(err)?;
        Ok(r)
    }
    fn rec(out: &mut Vec<u8>, k: &[u8], v: Option<&[u8]>) {
        out.extend((k.len() as u32).to_le_bytes());
        out.extend((v.map_or(0, <[u8]>::len) as u32).to_le_bytes());
        out.push(u8::from(v.is_some()));
        out.extend(k);
        out.extend(v.unwrap_or_default());
    }
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        self.counters.borrow_mut().get.add();
        self.with(|m, _| m.get(key).map(|v| Value(v.clone(), PhantomData)))
    }
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.with(|_, o| Self::rec(o, key, Some(value)))
    }
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.counters.borrow_mut().insert.add();
        self.with(|m, o| {
            let new = !m.contains_key(key);
            if new {
                Self::rec(o, key, Some(value));
            }
            new
        })
    }
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.counters.borrow_mut().update.add();
        self.with(|m, o| {
            let old = m.contains_key(key);
            if old {
                Self::rec(o, key, Some(value));
            }
            old
        })
    }
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.with(|_, o| Self::rec(o, key, None))
    }
    pub async fn for_each(&self, mut f: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        self.with(|m, _| m.iter().for_each(|(k, v)| f(k, v)))
    }
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.with(|m, _| Usage { used_bytes: 0, keys: m.len() as u64 })
    }
    pub fn last(&self) -> swarm_core::counting::Tally {
        swarm_core::counting::Tally { roundtrips: 1, verbs: 4, bytes: 100 }
    }
    pub fn counters(&self) -> Counters {
        self.counters.borrow().clone()
    }
}

//! A client is stopped between the two instructions that pin it: it has read the epoch, and has not
//! stored it in the epoch table. When it continues, the epoch has advanced twice, and the record of
//! a bucket that it cached *in that epoch* is in use again, in the same cell.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use swarm_core::fabric::{EpochDomain, Fabric, RemoteFree, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_core::words::Incarnation;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool, ShmEpochs, ShmFabric};
use swarm_kv::{Client, Options};

type Hook = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// The pool's own epoch table. `pin` is `swarm_shm::epochs::enter`, step by step, with a pause in
/// the middle.
struct Paused {
    inner: ShmEpochs,
    pause: Hook,
}

impl EpochDomain for Paused {
    fn pin(&self) -> u64 {
        let epoch = self.inner.epoch();
        let pause = self.pause.borrow_mut().take();
        if let Some(pause) = pause {
            pause();
        }
        self.inner.repin(epoch);
        fence(Ordering::SeqCst);
        epoch
    }
    fn repin(&self, epoch: u64) {
        self.inner.repin(epoch);
    }
    fn unpin(&self) {
        self.inner.unpin();
    }
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }
    fn generation(&self) -> u64 {
        self.inner.generation()
    }
    fn new_generation(&self) {
        self.inner.new_generation();
    }
    fn is_attached(&self, slot: usize) -> bool {
        self.inner.is_attached(slot)
    }
    fn send_remote_free(&self, slot: usize, replaced: RemoteFree) {
        self.inner.send_remote_free(slot, replaced);
    }
    fn drain_remote_frees(&self, each: &mut dyn FnMut(RemoteFree)) {
        self.inner.drain_remote_frees(each);
    }
    fn incarnation(&self) -> Option<Incarnation> {
        self.inner.incarnation()
    }
    fn try_advance(&self) -> u64 {
        self.inner.try_advance()
    }
}

/// The pool's own fabric.
struct Same(ShmFabric);

impl Fabric for Same {
    type EpochDomain = Paused;
    type Reply<'f> = <ShmFabric as Fabric>::Reply<'f>;
    type Completion<'f> = <ShmFabric as Fabric>::Completion<'f>;
    fn is_near(&self) -> bool {
        self.0.is_near()
    }
    fn nodes(&self) -> usize {
        self.0.nodes()
    }
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        self.0.post(node, chain)
    }
    fn expect(&self, node: NodeId, at: Address, words: usize) {
        self.0.expect(node, at, words);
    }
}

fn play(inserts: u32, nodes: usize) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("pool");
    let create =
        CreateOptions { nodes, capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    Pool::create(&path, &create).expect("create");
    let pool = Pool::open(&path, OpenOptions::default()).expect("open");
    let options = || Options::default().reclaimed_at_once(1);

    let other = Rc::new(shm::open(&pool, options()).expect("attach"));
    let attachment = pool.attach().expect("attach");
    let pause = Hook::default();
    let domain = Paused { inner: attachment.domain(), pause: Rc::clone(&pause) };
    let client: Client<Same, _> = Client::new(
        Same(pool.fabric()),
        pool.clock(),
        pool.geometry(),
        attachment.session(),
        options(),
    );
    let client = client.with_epochs(domain);

    // Keys of one bucket.
    let (seed, bits) = (pool.geometry().hash_seed, pool.geometry().bucket_bits);
    let hash = |key: &str| xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), seed);
    let bucket = hash("0").checked_shr(64 - bits).unwrap_or(0);
    let keys: Vec<String> = (0..1_000_000)
        .map(|n: u32| n.to_string())
        .filter(|key| hash(key).checked_shr(64 - bits).unwrap_or(0) == bucket)
        .take(6)
        .collect();

    // The client has memory for what follows, so it need not search for any.
    client.blocking().insert(keys[0].as_bytes(), b"first").expect("insert");
    assert!(other.blocking().insert(keys[1].as_bytes(), b"second").expect("insert"));
    // It reads the bucket, whose record is the other client's, and caches it.
    assert!(!client.blocking().insert(keys[1].as_bytes(), b"again").expect("insert"));

    let (busy, others) = (Rc::clone(&other), keys.clone());
    *pause.borrow_mut() = Some(Box::new(move || {
        let store = busy.blocking();
        assert!(store.insert(others[2].as_bytes(), b"third").expect("insert"));
        for n in 0..inserts {
            store.delete(others[3].as_bytes()).expect("delete");
            assert!(store.insert(others[3].as_bytes(), &n.to_le_bytes()).expect("insert"));
        }
    }));
    let outcome = client.blocking().insert(keys[4].as_bytes(), b"fifth");

    let look = shm::open(&pool, options()).expect("attach");
    let mut wrong = match outcome {
        Ok(true) => Vec::new(),
        outcome => vec![format!("the insert of a key that is not there: {outcome:?}")],
    };
    for (name, expected) in [(&keys[0], 5), (&keys[1], 6), (&keys[2], 5), (&keys[3], 4)] {
        if *name == keys[3] && inserts == 0 {
            continue;
        }
        match look.blocking().get(name.as_bytes()) {
            Ok(Some(value)) if value.len() == expected => {}
            outcome => wrong.push(format!("key {name}, inserted and acknowledged: {outcome:?}")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[test]
fn a_client_that_pins_late_goes_by_nothing_that_was_remembered() {
    let mut failed = 0;
    for nodes in [1, 3] {
        for inserts in 0..60 {
            if let Err(wrong) = play(inserts, nodes) {
                println!("{nodes} nodes, {inserts} deletes and inserts in the pause: {wrong}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 0, "plays of 120 that went wrong");
}

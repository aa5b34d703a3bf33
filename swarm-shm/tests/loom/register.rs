//! The protocol itself under the memory model: swarm-core's own read and write, over a fabric that
//! runs chains on loom's words. One node, the smallest register.
//!
//! So many words take so many steps that preemptions are bounded, by one or two, and there are only
//! two clients. What takes no preemption has no bound: a load yields any value that the model
//! allows.

use std::cell::Cell;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use loom::thread::{self, JoinHandle};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Store, Swap, Verb};
use swarm_core::layout::{
    BufferHeader, Identity, Location, Shape, buffer, checksum, header, register,
};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::{Group, Session};
use swarm_core::register::safe_guess::{SafeGuess, first_stamp};
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{GRANULE_WORDS, Incarnation, Pointer, Timestamp, WordFormat, WriteNumber};
use swarm_shm::{FIRST_WORD, fetch, load, run, write_cas, write_cas_cas, write_cas_load};

use super::{Node, explore};

const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 0 };
const IDENTITY: Identity = Identity { created_at: 1, number: WriteNumber(1) };
/// No key, and one word of room in place.
const SHAPE: Shape = Shape { key_length: 0, capacity: 1 };
const REGISTER: Pointer = Pointer(FIRST_WORD / GRANULE_WORDS as u64);
/// Each client's buffer, then the first value's.
const BUFFERS: Pointer = Pointer(REGISTER.0 + 3);
const CLIENTS: u64 = 2;
const FIRST_BUFFER: Pointer = Pointer(BUFFERS.0 + CLIENTS);
const WORDS: usize = (FIRST_BUFFER.0 + 1 - REGISTER.0) as usize * GRANULE_WORDS;
/// The register's initial value.
const BORN: u64 = 7;

/// One client's access to a node.
pub(super) struct LoomFabric {
    node: Node,
    unfenced: Cell<bool>,
}

impl Fabric for LoomFabric {
    type EpochDomain = NoEpochs;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Ready<Result<Vec<u64>, NodeDown>>;

    fn is_near(&self) -> bool {
        true
    }

    fn nodes(&self) -> usize {
        1
    }

    fn load<const N: usize>(&self, _: NodeId, at: Address) -> Option<[u64; N]> {
        load(&self.node.0, at, &self.unfenced).ok()
    }

    fn fetch(&self, _: NodeId, at: Address, words: usize) -> Option<Vec<u64>> {
        let mut reply = vec![0; words];
        fetch(&self.node.0, at, &mut reply, &self.unfenced).ok().map(|()| reply)
    }

    fn write_cas_load<const N: usize>(
        &self,
        _: NodeId,
        store: Store<'_>,
        swap: Swap,
        at: Address,
    ) -> Option<(u64, [u64; N])> {
        write_cas_load(&self.node.0, store, swap, at, &self.unfenced).ok()
    }

    fn write_cas_cas(&self, _: NodeId, store: Store<'_>, swaps: [Swap; 2]) -> Option<u64> {
        write_cas_cas(&self.node.0, store, swaps, &self.unfenced).ok()
    }

    fn write_cas(&self, _: NodeId, store: Option<Store<'_>>, swap: Swap) {
        write_cas(&self.node.0, store, swap, &self.unfenced).expect("the words are there");
    }

    fn post<'f>(&'f self, _: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let mut reply = vec![0; chain.iter().map(Verb::yields).sum()];
        ready(run(&self.node.0, chain, &self.unfenced, &mut reply).map(|()| reply))
    }
}

/// Words of a thread's stack: operations' futures are large, and so are the frames that poll them.
const STACK: usize = 1 << 15;

pub(super) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().stack_size(STACK).spawn(work).expect("a thread")
}

/// [`explore`]s a model in a thread of its own, as the first thread's stack has a fixed size.
pub(super) fn explore_roomy(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let model = Arc::new(model);
    explore(preemptions, move || {
        let model = Arc::clone(&model);
        spawn(move || model()).join().expect("the model");
    });
}

/// A clock that stands still.
pub(super) struct At(u64);

impl Clock for At {
    fn now(&self) -> u64 {
        self.0
    }
}

/// Returns an operation's result: as its chains are done at once, so is it.
pub(super) fn now<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits for a chain"),
    }
}

/// Makes what client number `id`, whose clock reads `time`, works with.
pub(super) fn group_of(node: &Node, id: usize, time: u64) -> Group<LoomFabric, At> {
    let fabric = LoomFabric { node: node.clone(), unfenced: Cell::new(false) };
    let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
    Group::new(fabric, At(time), FORMAT, session)
}

/// A client of the register.
struct Client {
    group: Group<LoomFabric, At>,
    register: Register,
}

impl Client {
    /// Makes client number `id`, whose clock reads `time`.
    fn new(node: &Node, id: usize, time: u64) -> Self {
        let place = Location::everywhere(REGISTER, NodeId(0));
        let group = group_of(node, id, time);
        Self { group, register: Register::new(place, IDENTITY, SHAPE) }
    }

    fn read(&mut self) -> u64 {
        let (group, register, mut seen) = (&self.group, &mut self.register, None);
        let value = SafeGuess::try_read(group, register, &mut seen).unwrap_or_else(|| {
            match now(SafeGuess::read_on(group, register, Check::Identity, seen)) {
                Ok(Found::Value(value)) => value,
                _ => panic!("it has a value"),
            }
        });
        u64::from_le_bytes(value[..].try_into().expect("one word"))
    }

    fn write(&mut self, value: u64) {
        let number = self.group.number().expect("numbers last");
        let buffer = Pointer(BUFFERS.0 + self.group.session().client as u64);
        let bytes = value.to_le_bytes();
        let write = Write { number, buffer, value: &bytes };
        let written = now(SafeGuess::write(&self.group, &mut self.register, write));
        assert_eq!(written, Ok(Written::Done));
    }

    /// Returns whether any of its operations took more than the common case.
    fn was_slow(&self) -> bool {
        self.group.events().slow > 0
    }
}

/// Makes a node with the new register.
fn created() -> Node {
    let node = Node::new(WORDS);
    let bytes = BORN.to_le_bytes();
    let buffer_header = BufferHeader {
        rewrite: Timestamp(0),
        number: IDENTITY.number,
        register: REGISTER,
        length: bytes.len(),
        guess: Timestamp::FIRST,
        checksum: checksum(
            FORMAT,
            IDENTITY,
            Timestamp::FIRST,
            FIRST_BUFFER,
            IDENTITY.number,
            &bytes,
        ),
    };
    let at = |pointer: Pointer| Address(pointer.0 * GRANULE_WORDS as u64);
    let stamp = first_stamp(FORMAT, FIRST_BUFFER).0;
    let chain = [
        Verb::Write {
            at: at(REGISTER).plus(register::IDENTITY),
            head: &IDENTITY.encode(),
            tail: &[],
        },
        Verb::Write {
            at: at(FIRST_BUFFER).plus(buffer::REWRITE),
            head: &buffer_header.encode(),
            tail: &bytes,
        },
        Verb::Cas { at: at(REGISTER).plus(register::SLOTS_AT), expect: 0, new: stamp },
    ];
    super::Client::default().post::<1>(&node, &chain);
    node
}

/// What has happened in some schedule of a model.
#[derive(Clone, Default)]
struct Met(Arc<AtomicBool>);

impl Met {
    fn note(&self, happened: bool) {
        self.0.fetch_or(happened, Ordering::Relaxed);
    }

    fn at_all(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A read of the guess, of its verification and of the in-place copy, while all three are written.
#[test]
fn a_write_and_its_copy_in_place_beside_reads() {
    let (old, new, settled) = (Met::default(), Met::default(), Met::default());
    let met = [old.clone(), new.clone(), settled.clone()];
    explore_roomy(Some(1), move || {
        let node = created();
        let mut writer = Client::new(&node, 0, 100);
        let writes = spawn(move || writer.write(10));
        let mut reader = Client::new(&node, 2, 100);
        let (first, second) = (reader.read(), reader.read());
        assert!(matches!((first, second), (BORN, BORN | 10) | (10, 10)), "{first}, {second}");
        old.note(second == BORN);
        new.note(first == 10);
        settled.note(reader.was_slow());
        writes.join().expect("the writer");
        assert_eq!(Client::new(&node, 3, 100).read(), 10);
    });
    assert!(met.iter().all(Met::at_all), "all of that is in the model");
}

/// A write beside another and a read after that: the second write guesses too low. A guess is
/// locked or written again, in-place copies are torn.
#[test]
fn a_write_beside_a_write_and_a_read() {
    for (other, own) in [(100, 200), (200, 100)] {
        let (rewritten, met) = (Met::default(), Met::default());
        let both = [rewritten.clone(), met.clone()];
        explore_roomy(Some(1), move || {
            let node = created();
            let mut writer = Client::new(&node, 1, other);
            let writer = spawn(move || {
                writer.write(20);
                writer.was_slow()
            });
            let mut client = Client::new(&node, 0, own);
            client.write(10);
            rewritten.note(client.was_slow());
            let read = client.read();
            rewritten.note(writer.join().expect("the writer"));
            let last = Client::new(&node, 2, 100).read();
            assert!(read == last || (read, last) == (10, 20), "{read}, then {last}");
            met.note(read == 20);
        });
        assert!(both.iter().all(Met::at_all), "all of that is in the model");
    }
}

/// A read of a guess that is stale once its writer checks: a reader that returned it has the lock,
/// so it is not written again above a later write.
#[test]
fn a_read_and_a_write_beside_a_write() {
    let (old, new, slow) = (Met::default(), Met::default(), Met::default());
    let met = [old.clone(), new.clone(), slow.clone()];
    explore_roomy(Some(2), move || {
        let node = created();
        let mut writer = Client::new(&node, 1, 100);
        let writer = spawn(move || {
            writer.write(20);
            writer.was_slow()
        });
        let mut client = Client::new(&node, 0, 200);
        let read = client.read();
        client.write(10);
        slow.note(writer.join().expect("the writer"));
        let last = Client::new(&node, 2, 100).read();
        assert!(matches!((read, last), (BORN, 10 | 20) | (20, 10)), "{read}, then {last}");
        old.note(read == BORN);
        new.note(read == 20);
    });
    assert!(met.iter().all(Met::at_all), "all of that is in the model");
}

//! One register, with neither index nor cache nor counters in the way: reads and writes by each
//! protocol, on one node and on three.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use swarm_core::baselines::{DmAbd, Raw};
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{
    BufferHeader, Identity, Location, Shape, buffer, checksum, header, register,
};
use swarm_core::node::NodeId;
use swarm_core::quorum::Group;
use swarm_core::register::safe_guess::{SafeGuess, first_stamp};
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{Pointer, Timestamp};
use swarm_kv::block_on;
use swarm_kv::shm::{CreateOptions, Pool, PoolClock, ShmFabric};

/// Buffers go round here. That takes memory from a reader's hands that is slow enough, so a store
/// must not do it; one client that reads nothing old may.
const BUFFERS: u64 = 1024;
const BUFFER_GRANULES: u64 = 2;
const VALUE: [u8; 64] = [7; 64];
const SHAPE: Shape = Shape { key_length: 24, capacity: 8 };

/// A pool with nothing in it but one register, in the middle of its heap.
struct Bare {
    group: Group<ShmFabric, PoolClock>,
    register: Register,
    buffers: Pointer,
    written: u64,
    _attachment: swarm_shm::ClientSlot,
    _dir: tempfile::TempDir,
}

impl Bare {
    fn new(nodes: usize) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("a temporary directory");
        let options = CreateOptions { nodes, capacity: 16 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let attachment = pool.attach().expect("attach");
        let geometry = pool.geometry();
        let middle = geometry.chunks() as u64 / 2 * geometry.chunk_granules();
        let place = Location::everywhere(Pointer(middle), NodeId(0));
        let identity = Identity { created_at: 1, number: swarm_core::words::WriteNumber(1) };
        let group = Group::new(pool.fabric(), pool.clock(), geometry.format, attachment.session());
        let bare = Self {
            group,
            register: Register::new(place, identity, SHAPE),
            buffers: Pointer(middle + 64),
            written: 0,
            _attachment: attachment,
            _dir: dir,
        };
        bare.create_replica(identity);
        bare
    }

    /// Header, first buffer and first slot at every node.
    fn create_replica(&self, identity: Identity) {
        let format = self.group.format();
        let first_buffer = BufferHeader {
            rewrite: Timestamp(0),
            number: identity.number,
            register: self.register.place.pointer,
            length: VALUE.len(),
            guess: Timestamp::FIRST,
            checksum: checksum(
                format,
                identity,
                Timestamp::FIRST,
                self.buffers,
                identity.number,
                &VALUE,
            ),
        };
        let key = [b'k'; 24];
        let words = header(identity.number, &key);
        let shape = self.register.shape();
        let nodes = self.group.nodes();
        for node in (0..nodes as u8).map(NodeId) {
            let at = self.register.place.at(node, nodes);
            let first = Location::everywhere(self.buffers, NodeId(0)).at(node, nodes);
            let stamp = first_stamp(format, self.buffers);
            drop(self.group.fabric().post(
                node,
                &[
                    Verb::Write {
                        at: shape.header_place(&self.register.place).at(node, nodes),
                        head: &words,
                        tail: &key,
                    },
                    Verb::Write {
                        at: at.plus(register::IDENTITY),
                        head: &identity.encode(),
                        tail: &[],
                    },
                    Verb::Write {
                        at: first.plus(buffer::REWRITE),
                        head: &first_buffer.encode(),
                        tail: &VALUE,
                    },
                    Verb::Cas { at: at.plus(register::SLOTS_AT), expect: 0, new: stamp.0 },
                ],
            ));
        }
    }

    /// Reads as the store does: in a straight line where that will do.
    #[inline]
    fn read<P: Protocol>(&mut self) -> usize {
        let mut seen = None;
        if let Some(value) = P::try_read(&self.group, &self.register, &mut seen) {
            return black_box(value.len());
        }
        let rest = P::read_on(&self.group, &mut self.register, Check::Identity, seen);
        match block_on(rest) {
            Ok(Found::Value(value)) => black_box(value.len()),
            _ => panic!("the register has a value"),
        }
    }

    #[inline]
    fn write<P: Protocol>(&mut self) {
        self.written += 1;
        let write = Write {
            number: self.group.number().expect("numbers last"),
            buffer: Pointer(self.buffers.0 + self.written % BUFFERS * BUFFER_GRANULES),
            value: black_box(&VALUE),
        };
        let (group, register) = (&self.group, &mut self.register);
        let (site, mut posted) = (group.placement().site(write.buffer), None);
        let written = match P::try_write(group, register, write, &site, &mut posted) {
            Some(written) => Ok(written),
            None => block_on(P::write_on(group, register, write, posted)),
        };
        assert_eq!(written, Ok(Written::Done));
    }
}

fn protocol<P: Protocol>(criterion: &mut Criterion) {
    for nodes in [1, 3] {
        let id = |operation: &str| format!("{} {operation}/{nodes} nodes", P::NAME);
        let mut bare = Bare::new(nodes);
        bare.write::<P>();
        criterion.bench_function(&id("read"), |bencher| bencher.iter(|| bare.read::<P>()));
        criterion.bench_function(&id("write"), |bencher| bencher.iter(|| bare.write::<P>()));
        assert_eq!(bare.read::<P>(), VALUE.len());
    }
}

criterion_group! {
    name = benches;
    config = swarm_benches::brief();
    targets = protocol::<SafeGuess>, protocol::<DmAbd>, protocol::<Raw>
}
criterion_main!(benches);

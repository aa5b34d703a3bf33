//! The store on shared memory: pools of memory-node files.

use std::ops::Deref;
use std::path::Path;

use swarm_core::fabric::Fabric;
use swarm_core::fabric::faults::Faulty;
use swarm_core::fabric::latency::Delayed;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::words::Incarnation;
pub use swarm_shm::{
    AbsentNode, Attachment, ClockSource, Condition, CreateOptions, DirectoryLeft, Error,
    FileSystem, MemoryLimit, Numa, OpenOptions, Pages, Pool, PoolBoard, PoolClock, Rights,
    ShmFabric, Tenant, memory_limit,
};

use crate::blocking::block_on;
use crate::client::{self, Options};
use crate::heap::Holding;
use crate::onlooker::Onlooker;
use crate::scan::{Estimate, Usage};
use switches::PoolSwitches;

mod switches;

/// A pool's fabric as it is.
pub type Plain = ShmFabric;
/// A pool's fabric with emulated latency, whose nodes the pool's switches take away.
pub type Emulated = Delayed<Faulty<ShmFabric, PoolSwitches>, PoolClock>;

/// A client of a pool, with its slot there. Dereferences to the [`Client`](client::Client).
pub struct Client<P: Protocol = SafeGuess, F: Fabric = Plain> {
    // Dropped in this order: what the client posts on leaving is posted while the slot is its own.
    client: client::Client<F, PoolClock, P>,
    attachment: Attachment,
}

impl<P: Protocol, F: Fabric<Board = PoolBoard>> Client<P, F> {
    fn new(pool: &Pool, options: Options, fabric: F) -> Result<Self, Error> {
        let attachment = pool.attach()?;
        let session = attachment.session();
        let client = client::Client::new(fabric, pool.clock(), pool.geometry(), session, options);
        Ok(Self { client: client.recycling(attachment.board()), attachment })
    }

    /// The client's slot in the pool.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }
}

impl<P: Protocol, F: Fabric> Deref for Client<P, F> {
    type Target = client::Client<F, PoolClock, P>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

/// Opens a client of `pool`.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open(pool: &Pool, options: Options) -> Result<Client, Error> {
    open_plain::<SafeGuess>(pool, options)
}

/// Opens the pool at `path`, and a client of it. It takes a few milliseconds, however large the pool is: memory comes
/// in at first touches, in pages as large as the pool was created with ([`Pages`]).
///
/// # Errors
/// The pool is missing, damaged or of another version; all client slots are taken.
pub fn open_path(path: impl AsRef<Path>) -> Result<Client, Error> {
    open(&Pool::open(path, OpenOptions::default())?, Options::default())
}

/// What `pool` holds. Takes no client slot and changes nothing, so that it is there for whoever may
/// open the pool, whatever its clients do. What they change meanwhile may be counted or not.
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn usage(pool: &Pool) -> Result<Usage, crate::Error> {
    block_on(onlooker(pool).usage())
}

/// Who holds the memory of `pool`. Like [`usage`], and quicker: it does not count keys.
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn holdings(pool: &Pool) -> Result<Vec<Holding>, crate::Error> {
    block_on(onlooker(pool).holdings())
}

/// Both at once, as of about the same moment, and how much of what each holds is in use. As quick as [`usage`].
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn accounts(pool: &Pool) -> Result<(Usage, Vec<Holding>), crate::Error> {
    let (estimate, holdings) = accounts_while(pool, &mut |_, _| true)?;
    Ok((estimate.usage, holdings))
}

/// [`accounts`] by a part of the index: see [`client::Client::accounts_while`].
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn accounts_while(
    pool: &Pool,
    goes_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(Estimate, Vec<Holding>), crate::Error> {
    block_on(onlooker(pool).accounts_while(goes_on))
}

fn onlooker(pool: &Pool) -> client::Client<Onlooker<ShmFabric>, PoolClock> {
    // Nobody else sees what it does, so it may be anybody.
    let nobody = Session { client: 0, incarnation: Incarnation(0) };
    let (fabric, options) = (Onlooker::new(pool.fabric()), Options::default());
    client::Client::new(fabric, pool.clock(), pool.geometry(), nobody, options)
}

/// Opens a client of `pool` that keeps registers by `P`. All clients of one pool must use the
/// same.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_plain<P: Protocol>(pool: &Pool, options: Options) -> Result<Client<P>, Error> {
    Client::new(pool, options, pool.fabric())
}

/// Opens a client of `pool` for measurements: its completions come `roundtrip` nanoseconds late,
/// and the pool's switches take nodes away from it.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_emulated<P: Protocol>(
    pool: &Pool,
    options: Options,
    roundtrip: u64,
) -> Result<Client<P, Emulated>, Error> {
    let faulty = Faulty::new(pool.fabric(), PoolSwitches::new(pool));
    Client::new(pool, options, Delayed::new(faulty, pool.clock(), roundtrip))
}

/// Opens a client of `pool` with nothing in between, of the type that [`open_emulated`]'s is: for programs that have
/// both, and are to be built once.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_unhindered<P: Protocol>(
    pool: &Pool,
    options: Options,
) -> Result<Client<P, Emulated>, Error> {
    let faulty = Faulty::new(pool.fabric(), PoolSwitches::none());
    Client::new(pool, options, Delayed::absent(faulty, pool.clock()))
}

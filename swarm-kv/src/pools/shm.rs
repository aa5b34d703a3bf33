//! The store on shared memory: pools of memory-node files.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use swarm_core::fabric::Fabric;
use swarm_core::fabric::faults::Faulty;
use swarm_core::fabric::latency::Delayed;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::words::Incarnation;
pub use swarm_shm::{
    AbsentNode, ClientInfo, ClientSlot, ClientState, ClockSource, CreateOptions, DirectoryLeft,
    Error, EvictStopped, FileSystem, Frozen, HaltWatch, LeftAlone, MemoryLimit, Numa, OpenOptions,
    Pages, Pool, PoolClock, ReadFabric, Repaired, ReplaceOptions, Replacement, Rights, ShmEpochs,
    ShmFabric, StoppedClient, WhyLeftAlone, frozen, memory_limit,
};

use crate::client::handle::Options;
use crate::heap::ClientUsage;
use crate::ops::fill::Filled;
use crate::ops::scan::{Estimate, Usage};
use crate::ops::verify::Verdict;
use crate::read_only::ReadOnlyFabric;
use crate::runtime::block_on::block_on;
use switches::PoolSwitches;

mod switches;

/// A pool's fabric as it is.
pub type Plain = ShmFabric;
/// A pool's fabric with emulated latency; the pool's switches can take its nodes away.
pub type Emulated = Delayed<Faulty<ShmFabric, PoolSwitches>, PoolClock>;

/// A client of a pool, with its client slot. Dereferences to the
/// [`Client`](crate::client::handle::Client).
pub struct Client<P: Protocol = SafeGuess, F: Fabric = Plain> {
    // Dropped in this order: the chains that the client posts on leaving are posted while the slot
    // is its own.
    client: crate::client::handle::Client<F, PoolClock, P>,
    attachment: ClientSlot,
}

impl<P: Protocol, F: Fabric<EpochDomain = ShmEpochs>> Client<P, F> {
    fn new(pool: &Pool, options: Options, fabric: F) -> Result<Self, Error> {
        let attachment = pool.attach()?;
        let session = attachment.session();
        let client = crate::client::handle::Client::new(
            fabric,
            pool.clock(),
            pool.geometry(),
            session,
            options,
        );
        Ok(Self { client: client.with_epochs(attachment.domain()), attachment })
    }

    /// Returns the client's slot in the pool.
    pub fn attachment(&self) -> &ClientSlot {
        &self.attachment
    }
}

impl<P: Protocol, F: Fabric> Deref for Client<P, F> {
    type Target = crate::client::handle::Client<F, PoolClock, P>;

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

/// Opens the pool at `path`, and a client of it. Takes a few milliseconds, however large the pool
/// is: memory is mapped at first touch, in pages as large as the pool was created with ([`Pages`]).
///
/// # Errors
/// The pool is missing, damaged or of another version; all client slots are taken.
pub fn open_path(path: impl AsRef<Path>) -> Result<Client, Error> {
    open(&Pool::open(path, OpenOptions::default())?, Options::default())
}

/// Returns what `pool` holds. Takes no client slot and changes nothing, so it works for any process
/// that may open the pool, whatever its clients do. Concurrent changes may be counted or not.
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn usage(pool: &Pool) -> Result<Usage, crate::Error> {
    block_on(read_only(pool).usage())
}

/// Returns which clients own the memory of `pool`. Like [`usage`], and quicker: it does not count
/// keys.
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn client_usage(pool: &Pool) -> Result<Vec<ClientUsage>, crate::Error> {
    block_on(read_only(pool).client_usage())
}

/// Returns both, as of about the same moment, and how much of each client's memory is in use. As
/// quick as [`usage`].
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn accounts(pool: &Pool) -> Result<(Usage, Vec<ClientUsage>), crate::Error> {
    let (estimate, client_usage) = accounts_while(pool, &mut |_, _| true)?;
    Ok((estimate.usage, client_usage))
}

/// [`accounts`] estimated from a part of the index: see
/// [`crate::client::handle::Client::accounts_while`].
///
/// # Errors
/// Too few memory nodes that answer; damaged memory.
pub fn accounts_while(
    pool: &Pool,
    goes_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(Estimate, Vec<ClientUsage>), crate::Error> {
    block_on(read_only(pool).accounts_while(goes_on))
}

/// Verifies that all of `pool` is intact: each bucket and each key at every node. Takes no client
/// slot and changes nothing. Operations in progress do not count as faults: what they touch is read
/// again once they are over. Calls `progress` with the part of the index that was walked, and the
/// whole.
///
/// An operation that does not end (its client is stopped, or its program keeps the future and does
/// not poll it) is waited for ten seconds at a time, and what it left half done is reported as a
/// fault.
///
/// # Errors
/// Too few memory nodes that answer.
pub fn verify(pool: &Pool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verdict, crate::Error> {
    block_on(read_only(pool).verify(progress, &mut || wait_for_operations(pool)))
}

/// Puts all that a node has to hold at the new node of a replacement: then
/// [finish](Replacement::finish) it. `client` is one of [its pool](Replacement::pool)'s, the only
/// one, and is dropped before that. Calls `progress` with how much was filled, and gives up if it
/// returns `false`. Returns whether all was filled.
///
/// # Errors
/// Too few memory nodes that answer; damaged memory. A client that died left a key on the move, and
/// there is no memory to move it to its end.
pub fn fill(
    replacement: &Replacement,
    client: &Client,
    progress: &mut dyn FnMut(Filled) -> bool,
) -> Result<bool, crate::Error> {
    let joining = replacement.joining();
    block_on(client.fill_node((&joining, replacement.node()), progress))
}

/// How long to wait for an operation that does not end.
const GRACE: Duration = Duration::from_secs(10);

/// Waits until each operation that is in progress now is over: until its client is seen unpinned,
/// or pinned since another epoch.
fn wait_for_operations(pool: &Pool) {
    let under_way = || {
        let alive = pool.clients().into_iter().filter(|it| it.condition != ClientState::Dead);
        alive.filter_map(|it| it.since.map(|since| (it.slot, it.process, since)))
    };
    let mut waited_for: Vec<_> = under_way().collect();
    let begun = Instant::now();
    while !waited_for.is_empty() && begun.elapsed() < GRACE {
        std::thread::sleep(Duration::from_micros(50));
        let now: Vec<_> = under_way().collect();
        waited_for.retain(|operation| now.contains(operation));
    }
}

/// What a client posts to.
fn fabric(pool: &Pool) -> Result<ShmFabric, Error> {
    if pool.is_read_only() {
        return Err(Error::ReadOnly { pool: pool.path().to_path_buf() });
    }
    Ok(pool.fabric())
}

pub(crate) fn read_only(
    pool: &Pool,
) -> crate::client::handle::Client<ReadOnlyFabric<ReadFabric>, PoolClock> {
    let (fabric, options) = (ReadOnlyFabric::new(pool.read_fabric()), Options::default());
    crate::client::handle::Client::new(fabric, pool.clock(), pool.geometry(), nobody(), options)
}

/// Returns the session of a read-only view. No other client sees its changes, so it may be any.
pub(crate) fn nobody() -> Session {
    Session { client: 0, incarnation: Incarnation(0) }
}

/// Opens a client of `pool` whose registers follow protocol `P`. All clients of one pool must use
/// the same.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_plain<P: Protocol>(pool: &Pool, options: Options) -> Result<Client<P>, Error> {
    Client::new(pool, options, fabric(pool)?)
}

/// Opens a client of `pool` for measurements: its completions arrive `roundtrip` nanoseconds late,
/// and the pool's switches take nodes away from it.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_emulated<P: Protocol>(
    pool: &Pool,
    options: Options,
    roundtrip: u64,
) -> Result<Client<P, Emulated>, Error> {
    let faulty = Faulty::new(fabric(pool)?, PoolSwitches::new(pool));
    Client::new(pool, options, Delayed::new(faulty, pool.clock(), roundtrip))
}

/// Opens a client of `pool` without latency or switches, of the same type as [`open_emulated`]'s:
/// for programs that use both and generate the code once.
///
/// # Errors
/// All client slots are taken, or the control file fails.
pub fn open_unhindered<P: Protocol>(
    pool: &Pool,
    options: Options,
) -> Result<Client<P, Emulated>, Error> {
    let faulty = Faulty::new(fabric(pool)?, PoolSwitches::none());
    Client::new(pool, options, Delayed::absent(faulty, pool.clock()))
}

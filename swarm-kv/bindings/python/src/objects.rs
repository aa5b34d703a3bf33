//! Objects that processes coordinate by, and watched keys: what `swarm/objects.py` and `swarm/aio.py` make classes of.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swarm_core::words::Incarnation;
use swarm_kv::objects::{BarrierView, ObjectKind, QueueView, Seat};
use swarm_kv::shm::Plain;
use swarm_kv::store::{Begun, StoreDoing, StoreGuard, StoreLock, StoreMember, StoreWatch};
use swarm_kv::{Error, Store};

use crate::Handle;
use crate::lent::Home;
use crate::wait::{Wait, limit, made};

/// A client's slot and session, and the ticket of the place.
type SeatParts = (usize, u64, u32);
/// Kind, last token, holders with token and weight, waiters.
type ViewParts = (&'static str, u64, Vec<(SeatParts, u64, u16)>, Vec<SeatParts>);

fn parts(seat: &Seat) -> SeatParts {
    (seat.slot, seat.session.0, seat.ticket)
}

fn seat((slot, session, ticket): SeatParts) -> Seat {
    Seat { slot, session: Incarnation(session), ticket }
}

fn view_parts(view: &QueueView) -> ViewParts {
    let holder = |holder: &swarm_kv::objects::Holder| (parts(&holder.seat), holder.token, holder.weight);
    let holders = view.holders.iter().map(holder).collect();
    (view.kind.name(), view.token, holders, view.waiters.iter().map(parts).collect())
}

fn meeting_parts(view: &BarrierView) -> (u64, Vec<SeatParts>) {
    (view.generation, view.members.iter().map(parts).collect())
}

/// Something that is held and queued for: what it is, its name, its number of permits, and how many are wanted.
#[derive(Clone, FromPyObject)]
struct Queue(String, Vec<u8>, u32, u32);

impl Queue {
    /// A part of it to acquire. The numbers are checked by those who pass them.
    fn of(&self, store: &Store) -> PyResult<StoreLock> {
        let Self(kind, name, permits, wanted) = self;
        Ok(match &kind[..] {
            "lock" => store.lock(name),
            "read" => store.rw_lock(name).read().clone(),
            "write" => store.rw_lock(name).write().clone(),
            "semaphore" => store.semaphore(name, *permits).many(*wanted),
            "once" => store.once(name).queue().clone(),
            _ => return Err(PyValueError::new_err(format!("there is no such object as a {kind}"))),
        })
    }
}

#[pyfunction]
fn acquire(handle: &Bound<'_, Handle>, queue: Queue, timeout: Option<f64>) -> PyResult<Wait> {
    let limit = limit(timeout)?;
    let known = queue.known()?;
    Ok(Wait::new(handle, move |store, sleep| {
        let lock = known.part(&store);
        Box::pin(async move {
            let guard = lock.acquire_paced(limit, async |pause| sleep.pass(pause).await).await?;
            Ok(made(guard.map(Guard::new)))
        })
    }))
}

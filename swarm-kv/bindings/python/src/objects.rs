//! Objects that processes coordinate by, and watched keys: what `swarm/objects.py` and `swarm/aio.py` make classes of.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swarm_core::words::Incarnation;
use swarm_kv::objects::{BarrierView, Holder, MAX_HOLDERS, QueueView, Seat};
use swarm_kv::shm::Plain;
use swarm_kv::store::{Begun, StoreDoing, StoreGuard, StoreLock, StoreMember, StoreWatch};
use swarm_kv::{Error, ErrorKind, Store};

use crate::Handle;
use crate::lent::Home;
use crate::wait::{Made, Wait, limit, made};

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
    let holder = |holder: &Holder| (parts(&holder.seat), holder.token, holder.weight);
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
    fn checked(self) -> PyResult<Self> {
        let Self(kind, _, permits, wanted) = &self;
        let is_known = ["lock", "read", "write", "semaphore", "once"].contains(&&kind[..]);
        let most = u32::try_from(MAX_HOLDERS).unwrap_or(u32::MAX);
        if !is_known || !(1..=most).contains(permits) || !(1..=*permits).contains(wanted) {
            return Err(PyValueError::new_err(format!(
                "a {kind} of {permits} permits, {wanted} of them wanted: there are 1 to {most}"
            )));
        }
        Ok(self)
    }

    /// A part of it to acquire.
    fn of(&self, store: &Store) -> StoreLock {
        let Self(kind, name, permits, wanted) = self;
        match &kind[..] {
            "lock" => store.lock(name),
            "read" => store.rw_lock(name).read().clone(),
            "write" => store.rw_lock(name).write().clone(),
            "semaphore" => store.semaphore(name, *permits).many(*wanted),
            _ => store.once(name).queue().clone(),
        }
    }
}

/// A guard, or None if it was too late.
#[pyfunction]
fn acquire(handle: &Bound<'_, Handle>, queue: Queue, timeout: Option<f64>) -> PyResult<Wait> {
    let (limit, queue) = (limit(timeout)?, queue.checked()?);
    Ok(Wait::new(handle, move |store, sleep| {
        let lock = queue.of(&store);
        Box::pin(async move {
            let guard = lock.acquire_paced(limit, |pause| sleep.pass(pause)).await?;
            Ok(made(guard.map(Guard::new)))
        })
    }))
}

#[pyfunction]
fn evict(handle: &Bound<'_, Handle>, queue: Queue, token: u64) -> PyResult<Wait> {
    let queue = queue.checked()?;
    Ok(Wait::new(handle, move |store, _| {
        let lock = queue.of(&store);
        Box::pin(async move { Ok(made(lock.evict(token).await?)) })
    }))
}

#[pyfunction]
fn view(handle: &Bound<'_, Handle>, queue: Queue) -> PyResult<Wait> {
    let queue = queue.checked()?;
    Ok(Wait::new(handle, move |store, _| {
        let lock = queue.of(&store);
        Box::pin(async move { Ok(made(view_parts(&lock.view().await?))) })
    }))
}

/// Whether it is done, and if not what has the one that is to do it, or None if it was too late.
#[pyfunction]
fn begin_once(handle: &Bound<'_, Handle>, name: Vec<u8>, timeout: Option<f64>) -> PyResult<Wait> {
    let limit = limit(timeout)?;
    Ok(Wait::new(handle, move |store, sleep| {
        let once = store.once(&name);
        Box::pin(async move {
            Ok(match once.begin_paced(limit, |pause| sleep.pass(pause)).await? {
                Begun::Done => made((true, None::<Doing>)),
                Begun::Ours(doing) => made((false, Some(Doing::new(doing)))),
                Begun::NotYet => made((false, None::<Doing>)),
            })
        })
    }))
}

#[pyfunction]
fn count_down(handle: &Bound<'_, Handle>, name: Vec<u8>, count: u64, by: u64) -> Wait {
    Wait::new(handle, move |store, _| {
        let latch = store.latch(&name, count);
        Box::pin(async move { Ok(made(latch.count_down(by).await?)) })
    })
}

#[pyfunction]
fn left_to_count(handle: &Bound<'_, Handle>, name: Vec<u8>, count: u64) -> Wait {
    Wait::new(handle, move |store, _| {
        let latch = store.latch(&name, count);
        Box::pin(async move { Ok(made(latch.left_to_count().await?)) })
    })
}

/// Whether it is open.
#[pyfunction]
fn wait_for_latch(
    handle: &Bound<'_, Handle>,
    name: Vec<u8>,
    count: u64,
    timeout: Option<f64>,
) -> PyResult<Wait> {
    let limit = limit(timeout)?;
    Ok(Wait::new(handle, move |store, sleep| {
        let latch = store.latch(&name, count);
        Box::pin(async move { Ok(made(latch.wait_paced(limit, |pause| sleep.pass(pause)).await?)) })
    }))
}

#[pyfunction]
fn join_barrier(handle: &Bound<'_, Handle>, name: Vec<u8>, parties: u32) -> Wait {
    Wait::new(handle, move |store, _| {
        let barrier = store.barrier(&name, parties);
        Box::pin(async move { Ok(made(Member::new(barrier.join().await?))) })
    })
}

#[pyfunction]
fn evict_member(
    handle: &Bound<'_, Handle>,
    name: Vec<u8>,
    parties: u32,
    member: SeatParts,
) -> Wait {
    Wait::new(handle, move |store, _| {
        let barrier = store.barrier(&name, parties);
        Box::pin(async move { Ok(made(barrier.evict(seat(member)).await?)) })
    })
}

#[pyfunction]
fn view_barrier(handle: &Bound<'_, Handle>, name: Vec<u8>, parties: u32) -> Wait {
    Wait::new(handle, move |store, _| {
        let barrier = store.barrier(&name, parties);
        Box::pin(async move { Ok(made(meeting_parts(&barrier.view().await?))) })
    })
}

/// What a holder has.
#[pyclass(frozen, module = "swarm._swarm")]
struct Guard {
    guard: Home<StoreGuard<Plain>>,
    seat: SeatParts,
    #[pyo3(get)]
    token: u64,
}

impl Guard {
    fn new(guard: StoreGuard<Plain>) -> Self {
        let (seat, token) = (parts(&guard.seat()), guard.token());
        Self { guard: Home::new(guard), seat, token }
    }
}

#[pymethods]
impl Guard {
    #[getter]
    fn seat(&self) -> SeatParts {
        self.seat
    }

    fn is_unsettled(&self) -> PyResult<bool> {
        Ok(self.guard.lend()?.get().is_unsettled())
    }

    fn is_held(&self) -> PyResult<Wait> {
        let mut guard = self.guard.lend()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(guard.get().is_held().await?)) })))
    }

    fn settle(&self, keys: Vec<Vec<u8>>) -> PyResult<Wait> {
        let mut guard = self.guard.lend()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(guard.get().settle(&keys).await?)) })))
    }

    fn release(&self) -> PyResult<Wait> {
        let guard = self.guard.take()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(guard.release().await?)) })))
    }
}

/// What has the one that is to do something once.
#[pyclass(frozen, module = "swarm._swarm")]
struct Doing {
    doing: Home<StoreDoing<Plain>>,
    #[pyo3(get)]
    token: u64,
}

impl Doing {
    fn new(doing: StoreDoing<Plain>) -> Self {
        let token = doing.token();
        Self { doing: Home::new(doing), token }
    }
}

#[pymethods]
impl Doing {
    fn done(&self) -> PyResult<Wait> {
        let doing = self.doing.take()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(doing.done().await?)) })))
    }

    fn give_up(&self) -> PyResult<Wait> {
        let doing = self.doing.take()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(doing.give_up().await?)) })))
    }
}

/// A member of a barrier.
#[pyclass(frozen, module = "swarm._swarm")]
struct Member {
    member: Home<StoreMember<Plain>>,
    seat: SeatParts,
}

impl Member {
    fn new(member: StoreMember<Plain>) -> Self {
        let seat = parts(&member.seat());
        Self { member: Home::new(member), seat }
    }
}

#[pymethods]
impl Member {
    #[getter]
    fn seat(&self) -> SeatParts {
        self.seat
    }

    /// Who met, or None if it was too late.
    fn wait(&self, timeout: Option<f64>) -> PyResult<Wait> {
        let (limit, mut member) = (limit(timeout)?, self.member.lend()?);
        Ok(Wait::of(|sleep| {
            Box::pin(async move {
                let met = member.get().wait_paced(limit, |pause| sleep.pass(pause)).await?;
                Ok(made(met.as_ref().map(meeting_parts)))
            })
        }))
    }

    fn leave(&self) -> PyResult<Wait> {
        let member = self.member.take()?;
        Ok(Wait::of(|_| Box::pin(async move { Ok(made(member.leave().await?)) })))
    }
}

/// A key, as it changes. It begins anew, with the value that is there, in a child of the process that opened the store and where the
/// store has come to its end.
#[pyclass(frozen, module = "swarm._swarm")]
struct Watch {
    key: Vec<u8>,
    watch: Home<Option<StoreWatch>>,
}

#[pymethods]
impl Watch {
    #[new]
    fn new(key: Vec<u8>) -> Self {
        Self { key, watch: Home::new(None) }
    }

    /// Whether it changed in time, and its value.
    fn changed(&self, handle: &Bound<'_, Handle>, timeout: Option<f64>) -> PyResult<Wait> {
        let (limit, key, home) = (limit(timeout)?, self.key.clone(), self.watch.clone());
        // The caller gets an error at once if another one uses it.
        drop(self.watch.lend()?);
        Ok(Wait::new(handle, move |store, sleep| {
            let (key, home) = (key.clone(), home.clone());
            Box::pin(async move {
                let mut lent = home.lend().map_err(|_| Error::Unfinished)?;
                let watch = lent.get().get_or_insert_with(|| store.watch(&key));
                let changed = match watch.changed_paced(limit, |pause| sleep.pass(pause)).await {
                    Err(error) if error.kind() == ErrorKind::Reopen => {
                        *lent.get() = None;
                        return Err(error.into());
                    }
                    changed => changed?,
                };
                Ok(Box::new(move |py: Python<'_>| {
                    let value = changed.as_ref().and_then(Option::as_ref);
                    let value = value.map(|value| PyBytes::new(py, value));
                    Ok((changed.is_some(), value).into_pyobject(py)?.into_any().unbind())
                }) as Made)
            })
        }))
    }
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Wait>()?;
    module.add_class::<Watch>()?;
    module.add_function(wrap_pyfunction!(acquire, module)?)?;
    module.add_function(wrap_pyfunction!(evict, module)?)?;
    module.add_function(wrap_pyfunction!(view, module)?)?;
    module.add_function(wrap_pyfunction!(begin_once, module)?)?;
    module.add_function(wrap_pyfunction!(count_down, module)?)?;
    module.add_function(wrap_pyfunction!(left_to_count, module)?)?;
    module.add_function(wrap_pyfunction!(wait_for_latch, module)?)?;
    module.add_function(wrap_pyfunction!(join_barrier, module)?)?;
    module.add_function(wrap_pyfunction!(evict_member, module)?)?;
    module.add_function(wrap_pyfunction!(view_barrier, module)?)
}

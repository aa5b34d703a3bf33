//! Operations that may take waiting for others: run to their ends by a thread, or polled by a task of asyncio.
//!
//! A thread sleeps without the interpreter's lock until what it waits for changes, and looks every so often whether a signal's
//! handler is to run: one that raises, as that of SIGINT does, ends the operation, which gives up its place. A task is polled
//! by its event loop, by the loop's timers where the next look is near, and else when a thread that sleeps for it wakes it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::BoundObject;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use swarm_kv::objects::ObjectError;
use swarm_kv::store::Pause;
use swarm_kv::{Error, Store};

use crate::errors::raise_of_object;
use crate::{Handle, Unpark};

/// How often a thread that waits looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);
/// Pauses shorter than this are left to the event loop's timers.
const TIMED: Duration = Duration::from_millis(10);

/// Makes what an operation returns, with the interpreter's lock.
pub(crate) type Made = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Running = Pin<Box<dyn Future<Output = Result<Made, ObjectError>> + Send>>;
type Begin = Box<dyn Fn(Store, Sleep) -> Running + Send>;

/// What makes this of it.
pub(crate) fn made<T>(content: T) -> Made
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    Box::new(|py| {
        let made = content.into_pyobject(py).map_err(Into::into)?;
        Ok(made.into_any().unbind())
    })
}

/// For how long to wait at most: a number of seconds, or none.
pub(crate) fn limit(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = timeout.filter(|&seconds| seconds != f64::INFINITY) else {
        return Ok(None);
    };
    let limit = Duration::try_from_secs_f64(seconds).map_err(|error| {
        PyValueError::new_err(format!(
            "a timeout of {seconds} s: {error}; it is a number of seconds, or None"
        ))
    })?;
    Ok(Some(limit))
}

/// How an operation lets time pass between two looks.
#[derive(Clone, Default)]
pub(crate) struct Sleep(Arc<Sleeping>);

#[derive(Default)]
struct Sleeping {
    /// Whether a thread runs it, which may sleep.
    blocks: AtomicBool,
    /// After how many nanoseconds it is to be polled again; 0 if something else wakes it.
    again: AtomicU64,
}

impl Sleep {
    pub(crate) async fn pass(&self, pause: Pause) {
        let longest = pause.longest();
        if !self.0.blocks.load(Ordering::Relaxed) && longest >= TIMED {
            return pause.yields().await;
        }
        let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        self.0.again.store(nanoseconds.max(1), Ordering::Relaxed);
        // The first poll has the interpreter's lock, and never sleeps.
        let mut is_again = false;
        poll_fn(|_| {
            if std::mem::replace(&mut is_again, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if self.0.blocks.load(Ordering::Relaxed) {
            pause.at_most(SIGNALS).blocks().await;
        }
    }

    /// When it is to be polled again, if it asked for that.
    fn again(&self) -> Option<Duration> {
        let nanoseconds = self.0.again.swap(0, Ordering::Relaxed);
        (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
    }
}

/// Wakes a task of asyncio.
struct CallBack(Py<PyAny>);

impl Wake for CallBack {
    fn wake(self: Arc<Self>) {
        // The loop may be closed, and the interpreter at its end: then nobody waits.
        let _ = Python::try_attach(|py| self.0.call0(py).map(drop));
    }
}

/// An operation, from before it begins until it has ended or was dropped.
struct Operation {
    /// Whose store it uses, and how it begins: again, if that was another process's.
    begin: Option<(Py<Handle>, Begin)>,
    running: Option<Running>,
    sleep: Sleep,
}

impl Operation {
    fn poll(&mut self, py: Python<'_>, cx: &mut Context<'_>) -> PyResult<Poll<Py<PyAny>>> {
        loop {
            let running = match &mut self.running {
                Some(running) => running,
                None => {
                    let (handle, begin) = self.begin.as_ref().ok_or_else(is_over)?;
                    let opened = handle.get().opened()?;
                    let store = Store::clone(opened.as_deref().expect("it is open"));
                    self.running.insert(begin(store, self.sleep.clone()))
                }
            };
            match running.as_mut().poll(cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(outcome) => {
                    if let Some(made) = self.ended(py, outcome)? {
                        return Ok(Poll::Ready(made));
                    }
                }
            }
        }
    }

    /// What it came to; none if it is to begin again, in a child of the process that opened the store.
    fn ended(
        &mut self,
        py: Python<'_>,
        outcome: Result<Made, ObjectError>,
    ) -> PyResult<Option<Py<PyAny>>> {
        self.running = None;
        let begun = self.begin.take();
        match outcome {
            Ok(made) => made(py).map(Some),
            Err(ObjectError::Store(Error::Forked)) if begun.is_some() => {
                let (handle, begin) = begun.expect("it is there");
                handle.get().open_again()?;
                let opened = handle.get().opened()?;
                let store = Store::clone(opened.as_deref().expect("it is open"));
                self.running = Some(begin(store, self.sleep.clone()));
                Ok(None)
            }
            Err(error) => Err(raise_of_object(py, error)),
        }
    }

    /// Drops it, which gives up its place, and may wait for nodes.
    fn breaks_off(self, py: Python<'_>) {
        py.detach(|| drop(self));
    }

    /// Polls it without the interpreter's lock until it ends, or it is time to look for signals.
    fn sleeps(&mut self, py: Python<'_>) -> Option<Result<Made, ObjectError>> {
        let (running, sleep) = (self.running.as_mut()?, &self.sleep);
        py.detach(|| {
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            let (mut cx, until) = (Context::from_waker(&waker), Instant::now() + SIGNALS);
            loop {
                if let Poll::Ready(outcome) = running.as_mut().poll(&mut cx) {
                    return Some(outcome);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                // What sleeps does so in its next poll. What waits for nodes has woken itself.
                if sleep.again().is_none() {
                    thread::park_timeout(left);
                }
            }
        })
    }
}

fn is_over() -> PyErr {
    PyRuntimeError::new_err("the operation is over")
}

/// An operation. Dropped before it ends it is broken off, and leaves no place behind.
#[pyclass(frozen, module = "swarm._swarm")]
pub(crate) struct Wait(Mutex<Operation>);

impl Wait {
    /// One that begins with the handle's store.
    pub(crate) fn new(
        handle: &Bound<'_, Handle>,
        begin: impl Fn(Store, Sleep) -> Running + Send + 'static,
    ) -> Self {
        let begin: Option<(Py<Handle>, Begin)> = Some((handle.clone().unbind(), Box::new(begin)));
        Self(Mutex::new(Operation { begin, running: None, sleep: Sleep::default() }))
    }

    /// One of something that the store gave out.
    pub(crate) fn of(begin: impl FnOnce(Sleep) -> Running) -> Self {
        let sleep = Sleep::default();
        let running = Some(begin(sleep.clone()));
        Self(Mutex::new(Operation { begin: None, running, sleep }))
    }

    /// Takes it, as long as it is in use.
    fn take(&self) -> PyResult<Operation> {
        let nothing = Operation { begin: None, running: None, sleep: Sleep::default() };
        let mut operation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::replace(&mut *operation, nothing);
        if taken.begin.is_none() && taken.running.is_none() {
            return Err(is_over());
        }
        Ok(taken)
    }
}

#[pymethods]
impl Wait {
    /// Runs it to its end; the thread sleeps while it waits.
    fn run(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut operation = self.take()?;
        operation.sleep.0.blocks.store(true, Ordering::Relaxed);
        let mut polled = operation.poll(py, &mut Context::from_waker(Waker::noop()))?;
        loop {
            if let Poll::Ready(made) = polled {
                return Ok(made);
            }
            match operation.sleeps(py) {
                Some(outcome) => {
                    polled = match operation.ended(py, outcome)? {
                        Some(made) => Poll::Ready(made),
                        None => Poll::Pending,
                    };
                }
                None => {
                    if let Err(raised) = py.check_signals() {
                        operation.breaks_off(py);
                        return Err(raised);
                    }
                }
            }
        }
    }

    /// Polls it: whether it has ended, and what it came to, or in how many seconds to poll it again; None if `wake` will be called.
    fn poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<(bool, Py<PyAny>)> {
        let mut operation = self.take()?;
        let waker = Waker::from(Arc::new(CallBack(wake)));
        if let Poll::Ready(made) = operation.poll(py, &mut Context::from_waker(&waker))? {
            return Ok((true, made));
        }
        let again = operation.sleep.again().map(|again| again.as_secs_f64());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = operation;
        Ok((false, again.into_pyobject(py)?.into_any().unbind()))
    }

    /// Breaks it off.
    fn drop(&self, py: Python<'_>) {
        if let Ok(operation) = self.take() {
            operation.breaks_off(py);
        }
    }
}

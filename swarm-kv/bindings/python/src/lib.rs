//! `swarm._swarm`: a handle of the store as Python sees it.
//!
//! An operation is polled once with the interpreter's lock held: where memory is near, almost each ends so, in less time than it
//! takes to let go of the lock and to take it again. One that does not end so, as a node does not answer or all clients are in use, goes
//! on without the lock.
#![deny(unsafe_code)]

mod errors;
mod lent;
mod objects;
mod pending;
mod scratch;
mod values;
mod wait;

use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use pyo3::exceptions::{PyKeyError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyList};
use swarm_kv::shm::{CreateOptions, EvictStopped, OpenOptions, Pool};
use swarm_kv::{CompareAndSwap, Error, Store, StoreOptions};

use errors::{closed, not_opened, raise};
use pending::Pending;
use scratch::Scratch;

/// Wakes the thread that waits for an operation.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls an operation to its end. One that waits for nodes wakes itself; one that waits for a client sleeps.
fn finish<T: Future + ?Sized>(mut operation: Pin<&mut T>) -> T::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = operation.as_mut().poll(&mut cx) {
            return outcome;
        }
        thread::park();
    }
}

/// Runs an operation of the handle's store to its end. In a child of the process that opened it, it opens one of its own first.
macro_rules! run {
    ($handle:expr, $py:expr, |$store:ident| $operation:expr) => {{
        let mut again = true;
        loop {
            let opened = $handle.opened()?;
            let $store: &Store = opened.as_deref().expect("it is open");
            let mut operation = pin!($operation);
            let polled = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let outcome = match polled {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => $py.detach(|| finish(operation.as_mut())),
            };
            match outcome {
                // It has had no effect.
                Err(Error::Forked) if std::mem::take(&mut again) => $handle.open_again()?,
                outcome => break outcome.map_err(|error| raise($py, error)),
            }
        }
    }};
}

/// A handle to a pool.
#[pyclass(subclass, frozen, module = "swarm._swarm")]
struct Handle {
    path: PathBuf,
    clients: usize,
    /// For how many seconds a client must have been stopped in an operation that this handle's may end.
    evict_stopped: Option<f64>,
    store: ArcSwapOption<Store>,
    scratch: Scratch,
}

impl Handle {
    fn open(path: &PathBuf, clients: usize, evict_stopped: Option<f64>) -> PyResult<Arc<Store>> {
        let least = evict_stopped.map(Duration::try_from_secs_f64).transpose();
        let least = least.map_err(|_| {
            PyValueError::new_err("evict_stopped is a number of seconds, not negative, or None")
        })?;
        let evict_stopped = least.map(EvictStopped::after);
        let options = OpenOptions { evict_stopped, ..OpenOptions::default() };
        let pool = Pool::open(path, options).map_err(not_opened)?;
        let options = StoreOptions::default().clients(clients);
        Store::of(&pool, options).map(Arc::new).map_err(not_opened)
    }

    fn opened(&self) -> PyResult<Guard<Option<Arc<Store>>>> {
        let store = self.store.load();
        if store.is_none() {
            return Err(closed());
        }
        Ok(store)
    }

    /// Under the interpreter's lock, so that of two threads the second one finds the first one's and opens another: both are this
    /// process's, and the first goes when its operations end.
    fn open_again(&self) -> PyResult<()> {
        let store = Self::open(&self.path, self.clients, self.evict_stopped)?;
        self.store.store(Some(store));
        Ok(())
    }
}

fn bytes<'py>(py: Python<'py>, value: Option<Vec<u8>>) -> Option<Bound<'py, PyBytes>> {
    value.map(|value| PyBytes::new(py, &value))
}

/// Copies a value from where a get has it. An operation that waits runs without the interpreter's lock, and takes it for this:
/// no thread that has the lock waits for a client.
fn to_bytes(value: &[u8]) -> Py<PyBytes> {
    Python::attach(|py| PyBytes::new(py, value).unbind())
}

#[pymethods]
impl Handle {
    #[new]
    #[pyo3(signature = (path, clients, evict_stopped = None))]
    fn new(path: PathBuf, clients: usize, evict_stopped: Option<f64>) -> PyResult<Self> {
        let store = Self::open(&path, clients, evict_stopped)?;
        Ok(Self {
            path,
            clients,
            evict_stopped,
            store: ArcSwapOption::new(Some(store)),
            scratch: Scratch::default(),
        })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    #[getter]
    fn clients(&self) -> usize {
        self.clients
    }

    #[getter]
    fn evict_stopped(&self) -> Option<f64> {
        self.evict_stopped
    }

    fn close(&self) {
        self.store.store(None);
    }

    fn reopen(&self) -> PyResult<()> {
        self.open_again()
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = run!(self, py, |store| store.read(key, to_bytes))?;
        Ok(value.map(|value| value.into_bound(py)))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let value = run!(self, py, |store| store.read(key, to_bytes))?;
        let value = value.ok_or_else(|| PyKeyError::new_err(key.to_vec()))?;
        Ok(value.into_bound(py))
    }

    /// The callback runs after the operation: it may take its time, and use the handle.
    #[pyo3(signature = (key, callback, default = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        callback: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.scratch.take(py);
        // As in `to_bytes`.
        let filled = run!(self, py, |store| store
            .read(key, |value| { Python::attach(|py| scratch::fill(buffer.bind(py), value)) }))?;
        let buffer = buffer.into_bound(py);
        match filled {
            Some(filled) => {
                filled?;
                self.scratch.lend(buffer, callback)
            }
            None => {
                self.scratch.give_back(buffer);
                Ok(default.unwrap_or_else(|| py.None().into_bound(py)))
            }
        }
    }

    fn __contains__(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        Ok(run!(self, py, |store| store.read(key, |_| ()))?.is_some())
    }

    fn put(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        run!(self, py, |store| store.put(key, value))
    }

    /// The time to live is in seconds, and neither negative nor no number.
    fn _put_with_ttl(&self, py: Python<'_>, key: &[u8], value: &[u8], ttl: f64) -> PyResult<()> {
        let ttl = pending::seconds(ttl)?;
        run!(self, py, |store| store.put_with_ttl(key, value, ttl))
    }

    fn ttl(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<f64>> {
        Ok(pending::seconds_left(run!(self, py, |store| store.ttl(key))?))
    }

    fn persist(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        run!(self, py, |store| store.persist(key))
    }

    fn __setitem__(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        run!(self, py, |store| store.put(key, value))
    }

    fn insert(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<bool> {
        run!(self, py, |store| store.insert(key, value))
    }

    fn replace(&self, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<bool> {
        run!(self, py, |store| store.update(key, value))
    }

    fn delete(&self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        run!(self, py, |store| store.delete(key))
    }

    #[pyo3(signature = (key, expected, new))]
    fn cas(
        &self,
        py: Python<'_>,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> PyResult<bool> {
        let outcome = run!(self, py, |store| store.compare_and_swap(key, expected, new))?;
        Ok(outcome == CompareAndSwap::Swapped)
    }

    #[pyo3(signature = (key, by = 1))]
    fn incr(&self, py: Python<'_>, key: &[u8], by: i64) -> PyResult<i64> {
        run!(self, py, |store| store.increment(key, by))
    }

    fn swap<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(bytes(py, run!(self, py, |store| store.swap(key, value))?))
    }

    fn _put_if_absent<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        value: &[u8],
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(bytes(py, run!(self, py, |store| store.put_if_absent(key, value))?))
    }

    fn _get_and_delete<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(bytes(py, run!(self, py, |store| store.get_and_delete(key))?))
    }

    fn _get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let values = run!(self, py, |store| store.get_many(&keys))?;
        PyList::new(py, values.into_iter().map(|value| bytes(py, value)))
    }

    /// Values of so many bytes behind each other, zeros where there is none; and for each key whether there is.
    fn _get_array<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyBackedBytes>,
        width: usize,
    ) -> PyResult<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)> {
        if width == 0 {
            return Err(PyValueError::new_err("elements of 0 bytes cannot be told apart"));
        }
        let values = run!(self, py, |store| store.get_many(&keys))?;
        // All lengths are compared before memory is allocated for that of the type, which may be anything.
        if let Some(other) = values.iter().flatten().find(|value| value.len() != width) {
            return Err(raise(py, Error::Type(other.len())));
        }
        let length = keys.len().checked_mul(width).filter(|&length| length <= isize::MAX as usize);
        let length = length.ok_or_else(|| PyMemoryError::new_err("the array is too large"))?;
        let all = PyByteArray::new_with(py, length, |all| {
            for (element, value) in all.chunks_exact_mut(width).zip(&values) {
                if let Some(value) = value {
                    element.copy_from_slice(value);
                }
            }
            Ok(())
        })?;
        let there: Vec<u8> = values.iter().map(|value| value.is_some().into()).collect();
        Ok((all, PyByteArray::new(py, &there)))
    }

    fn _put_many(
        &self,
        py: Python<'_>,
        keys: Vec<PyBackedBytes>,
        values: Vec<PyBackedBytes>,
    ) -> PyResult<()> {
        if keys.len() != values.len() {
            return Err(PyValueError::new_err("there are not as many values as keys"));
        }
        run!(self, py, |store| store.put_many(&keys, &values))
    }

    fn _delete_many(&self, py: Python<'_>, keys: Vec<PyBackedBytes>) -> PyResult<()> {
        run!(self, py, |store| store.delete_many(&keys))
    }

    /// Values of so many bytes, which lie behind each other.
    fn _put_array(
        &self,
        py: Python<'_>,
        keys: Vec<PyBackedBytes>,
        all: &[u8],
        width: usize,
    ) -> PyResult<()> {
        if keys.len().checked_mul(width) != Some(all.len()) {
            return Err(PyValueError::new_err("there are not as many values as keys"));
        }
        let values: Vec<&[u8]> = (0..keys.len()).map(|at| &all[at * width..][..width]).collect();
        run!(self, py, |store| store.put_many(&keys, &values))
    }

    fn _keys<'py>(&self, py: Python<'py>, prefix: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let keys = run!(self, py, |store| store.keys(prefix))?;
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))
    }

    fn _items<'py>(&self, py: Python<'py>, prefix: &[u8]) -> PyResult<Bound<'py, PyList>> {
        let mut items = Vec::new();
        run!(self, py, |store| {
            items.clear();
            store.scan(prefix, |key, value| {
                items.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })
        })?;
        let pair =
            |(key, value): &(Vec<u8>, Vec<u8>)| (PyBytes::new(py, key), PyBytes::new(py, value));
        PyList::new(py, items.iter().map(pair))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(run!(self, py, |store| store.len())?.usage.keys as usize)
    }

    /// Begins an operation of asyncio's twin: what it came to, or what is left of it.
    #[pyo3(signature = (operation, key, value = None, expected = None, by = 0, ttl = None))]
    fn _begin<'py>(
        &self,
        py: Python<'py>,
        operation: &str,
        key: &[u8],
        value: Option<&[u8]>,
        expected: Option<&[u8]>,
        by: i64,
        ttl: Option<f64>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let begin = || {
            let store = Store::clone(self.opened()?.as_deref().expect("it is open"));
            pending::begin(store, operation, key, (value, expected, by, ttl))
        };
        match begin()? {
            Pending::Ended(Err(Error::Forked)) => {
                self.open_again()?;
                begin()?.outcome(py)
            }
            pending => pending.outcome(py),
        }
    }
}

/// Makes a pool.
#[pyfunction]
fn create(path: PathBuf, nodes: usize, capacity: u64, max_clients: usize) -> PyResult<()> {
    let options = CreateOptions { nodes, capacity, max_clients, ..CreateOptions::default() };
    Pool::create(path, &options).map(drop).map_err(not_opened)
}

#[pymodule]
fn _swarm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Handle>()?;
    module.add_class::<pending::Rest>()?;
    module.add_function(wrap_pyfunction!(create, module)?)?;
    objects::add(module)?;
    values::add(module)?;
    errors::add(module)
}

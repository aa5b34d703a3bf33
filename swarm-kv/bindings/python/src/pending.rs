//! Operations of asyncio's twins: begun where the event loop runs, ended in another thread where they take waiting.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swarm_kv::{CompareAndSwap, Error, Store, TimeToLive};

use crate::errors::raise;
use crate::finish;

/// What an operation came to.
pub(crate) enum Outcome {
    Done,
    Answer(bool),
    Number(i64),
    Value(Option<Vec<u8>>),
    Life(TimeToLive),
}

/// Returns a time to live that is given in seconds.
pub(crate) fn seconds(ttl: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(ttl)
        .map_err(|error| PyValueError::new_err(format!("a time to live of {ttl} s: {error}")))
}

/// Returns for how many seconds a key is there: infinity if it does not expire, none if it is not there.
pub(crate) fn seconds_left(life: TimeToLive) -> Option<f64> {
    match life {
        TimeToLive::Absent => None,
        TimeToLive::Endless => Some(f64::INFINITY),
        TimeToLive::Left(left) => Some(left.as_secs_f64()),
    }
}

type Operation = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An operation that was begun.
pub(crate) enum Pending {
    Ended(Result<Outcome, Error>),
    Rest(Operation),
}

/// What is left of an operation.
#[pyclass(frozen, module = "swarm._swarm")]
pub(crate) struct Rest(Mutex<Option<Operation>>);

fn python<'py>(py: Python<'py>, outcome: Result<Outcome, Error>) -> PyResult<Bound<'py, PyAny>> {
    match outcome.map_err(|error| raise(py, error))? {
        Outcome::Done | Outcome::Value(None) => Ok(py.None().into_bound(py)),
        Outcome::Answer(answer) => Ok(answer.into_pyobject(py)?.to_owned().into_any()),
        Outcome::Number(number) => Ok(number.into_pyobject(py)?.into_any()),
        Outcome::Value(Some(value)) => Ok(PyBytes::new(py, &value).into_any()),
        Outcome::Life(life) => Ok(seconds_left(life).into_pyobject(py)?.into_any()),
    }
}

/// Polls an operation of this name once. It takes what it needs of a value, one that is expected, a number, and a time to live.
pub(crate) fn begin(
    store: Store,
    name: &str,
    key: &[u8],
    (value, expected, by, ttl): (Option<&[u8]>, Option<&[u8]>, i64, Option<f64>),
) -> PyResult<Pending> {
    let (key, new, expected) =
        (key.to_vec(), value.map(<[u8]>::to_vec), expected.map(<[u8]>::to_vec));
    let value = value.unwrap_or_default().to_vec();
    let ttl = ttl.map(seconds).transpose()?;
    let mut operation: Operation = match name {
        "get" => Box::pin(async move { store.get(&key).await.map(Outcome::Value) }),
        "put" => Box::pin(async move {
            let put = match ttl {
                None => store.put(&key, &value).await,
                Some(ttl) => store.put_with_ttl(&key, &value, ttl).await,
            };
            put.map(|()| Outcome::Done)
        }),
        "ttl" => Box::pin(async move { store.ttl(&key).await.map(Outcome::Life) }),
        "persist" => Box::pin(async move { store.persist(&key).await.map(Outcome::Answer) }),
        "insert" => Box::pin(async move { store.insert(&key, &value).await.map(Outcome::Answer) }),
        "replace" => Box::pin(async move { store.update(&key, &value).await.map(Outcome::Answer) }),
        "delete" => Box::pin(async move { store.delete(&key).await.map(|()| Outcome::Done) }),
        "cas" => Box::pin(async move {
            let outcome = store.compare_and_swap(&key, expected.as_deref(), new.as_deref()).await?;
            Ok(Outcome::Answer(outcome == CompareAndSwap::Swapped))
        }),
        "incr" => Box::pin(async move { store.increment(&key, by).await.map(Outcome::Number) }),
        "swap" => Box::pin(async move { store.swap(&key, &value).await.map(Outcome::Value) }),
        "put_if_absent" => {
            Box::pin(async move { store.put_if_absent(&key, &value).await.map(Outcome::Value) })
        }
        "get_and_delete" => {
            Box::pin(async move { store.get_and_delete(&key).await.map(Outcome::Value) })
        }
        _ => return Err(PyValueError::new_err("there is no such operation")),
    };
    Ok(match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Pending::Ended(outcome),
        Poll::Pending => Pending::Rest(operation),
    })
}

impl Pending {
    /// Whether it has ended, and what it came to or what is left of it.
    pub(crate) fn outcome<'py>(self, py: Python<'py>) -> PyResult<(bool, Bound<'py, PyAny>)> {
        Ok(match self {
            Self::Ended(outcome) => (true, python(py, outcome)?),
            Self::Rest(rest) => (false, Bound::new(py, Rest(Mutex::new(Some(rest))))?.into_any()),
        })
    }
}

#[pymethods]
impl Rest {
    /// Waits for its end, without the interpreter's lock.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rest = self.0.lock().ok().and_then(|mut rest| rest.take());
        let mut rest = rest.ok_or_else(|| PyRuntimeError::new_err("somebody ends it already"))?;
        let outcome = py.detach(|| finish(rest.as_mut()));
        python(py, outcome)
    }
}

//! Values that change as a whole: integers of 64 bits, and states that are bytes. Functions in Python run between two operations, and
//! not within one: they may raise, take their time, and use the handle.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swarm_kv::Store;
use swarm_kv::store::{StoreAtomic, StoreGuarded};

use crate::Handle;
use crate::wait::{Made, Wait, made};

/// An integer: its name, what it is before anybody has changed it, and whether it has a sign.
#[derive(Clone, FromPyObject)]
struct Integer(Vec<u8>, i128, bool);

fn out_of_range(number: i128, signed: bool) -> PyErr {
    let kind = if signed { "-2**63 to 2**63 - 1" } else { "0 to 2**64 - 1" };
    PyOverflowError::new_err(format!("{number} is no integer of 64 bits, {kind}"))
}

/// Returns the number that these bits are.
fn number(bits: u64, signed: bool) -> i128 {
    if signed { bits.cast_signed().into() } else { bits.into() }
}

/// Returns the bits of a number, if there are as many.
fn bits(number: i128, signed: bool) -> Option<u64> {
    if signed {
        i64::try_from(number).ok().map(i64::cast_unsigned)
    } else {
        u64::try_from(number).ok()
    }
}

impl Integer {
    fn bits(&self, number: i128) -> PyResult<u64> {
        bits(number, self.2).ok_or_else(|| out_of_range(number, self.2))
    }

    /// What it is as Rust's: the same bits, with or without a sign.
    fn opener(self) -> PyResult<impl Fn(&Store) -> StoreAtomic<u64> + Send + 'static> {
        let initial = self.bits(self.1)?;
        Ok(move |store: &Store| store.atomic(&self.0, initial))
    }
}

#[pyfunction]
fn load(handle: &Bound<'_, Handle>, integer: Integer) -> PyResult<Wait> {
    let (signed, open) = (integer.2, integer.opener()?);
    Ok(Wait::new(handle, move |store, _| {
        let atomic = open(&store);
        Box::pin(async move { Ok(made(number(atomic.load().await?, signed))) })
    }))
}

/// The value before.
#[pyfunction]
fn swap(handle: &Bound<'_, Handle>, integer: Integer, value: i128) -> PyResult<Wait> {
    let (signed, value) = (integer.2, integer.bits(value)?);
    let open = integer.opener()?;
    Ok(Wait::new(handle, move |store, _| {
        let atomic = open(&store);
        Box::pin(async move { Ok(made(number(atomic.swap(value).await?, signed))) })
    }))
}

/// The value that was there.
#[pyfunction]
fn compare_exchange(
    handle: &Bound<'_, Handle>,
    integer: Integer,
    expected: i128,
    new: i128,
) -> PyResult<Wait> {
    let signed = integer.2;
    let (expected, new) = (integer.bits(expected)?, integer.bits(new)?);
    let open = integer.opener()?;
    Ok(Wait::new(handle, move |store, _| {
        let atomic = open(&store);
        Box::pin(async move {
            let (Ok(found) | Err(found)) = atomic.compare_exchange(expected, new).await?;
            Ok(made(number(found, signed)))
        })
    }))
}

/// The value before. A sum that has more bits changes nothing.
#[pyfunction]
fn fetch_add(handle: &Bound<'_, Handle>, integer: Integer, by: i128) -> PyResult<Wait> {
    let (signed, open) = (integer.2, integer.opener()?);
    let sum = move |before: u64| bits(number(before, signed).checked_add(by)?, signed);
    Ok(Wait::new(handle, move |store, _| {
        let atomic = open(&store);
        Box::pin(async move {
            let (before, _) = atomic.fetch_update(sum).await?;
            let value = number(before, signed);
            Ok(Box::new(move |py: Python<'_>| match sum(before) {
                Some(_) => made(value)(py),
                None => Err(out_of_range(value.saturating_add(by), signed)),
            }) as Made)
        })
    }))
}

/// A state that is bytes: what Rust's `Guarded` of a `Vec<u8>` is, and of a `String` where they are its UTF-8.
fn guarded(store: &Store, name: &[u8]) -> StoreGuarded<Vec<u8>> {
    store.guarded(name)
}

/// The state, or None if it was never set.
#[pyfunction]
fn get_guarded(handle: &Bound<'_, Handle>, name: Vec<u8>) -> Wait {
    Wait::new(handle, move |store, _| {
        let guarded = guarded(&store, &name);
        Box::pin(async move {
            let state = guarded.get().await?;
            Ok(Box::new(move |py: Python<'_>| {
                let state = state.map(|state| PyBytes::new(py, &state));
                Ok(state.into_pyobject(py)?.into_any().unbind())
            }) as Made)
        })
    })
}

/// Whether the state was the one that was expected, and is the new one now, and the state that was there.
#[pyfunction]
fn change_guarded(
    handle: &Bound<'_, Handle>,
    name: Vec<u8>,
    expected: Option<Vec<u8>>,
    new: Vec<u8>,
) -> Wait {
    Wait::new(handle, move |store, _| {
        let (guarded, expected, new) = (guarded(&store, &name), expected.clone(), new.clone());
        Box::pin(async move {
            let change = |state: Option<Vec<u8>>| (state == expected).then(|| new.clone());
            let (before, _) = guarded.fetch_update(change).await?;
            let is_changed = before == expected;
            Ok(Box::new(move |py: Python<'_>| {
                let before = before.map(|before| PyBytes::new(py, &before));
                Ok((is_changed, before).into_pyobject(py)?.into_any().unbind())
            }) as Made)
        })
    })
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(swap, module)?)?;
    module.add_function(wrap_pyfunction!(compare_exchange, module)?)?;
    module.add_function(wrap_pyfunction!(fetch_add, module)?)?;
    module.add_function(wrap_pyfunction!(get_guarded, module)?)?;
    module.add_function(wrap_pyfunction!(change_guarded, module)?)
}

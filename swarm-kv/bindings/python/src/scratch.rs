//! The buffer in which a callback reads a value.
//!
//! A slice of a memoryview, or an array made of one, stays usable when the memoryview is released, and the interface that
//! Python 3.9 keeps stable has no way to find them. So a callback never reads memory of the store, which is reused: it
//! reads a bytearray. **Invariant:** *a bytearray is filled again only if nothing else refers to it*.
//! Each view keeps a reference, so a view that outlives its callback keeps its bytes.
#![expect(unsafe_code, reason = "a bytearray is filled in place: argued below")]

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyMemoryView};
use pyo3::{ffi, intern};

/// A bytearray that nothing else refers to, once one was used. A nested read, or another thread's, makes its own.
#[derive(Default)]
pub(crate) struct Scratch(Mutex<Option<Py<PyByteArray>>>);

/// Whether this is the only reference.
fn is_unshared(buffer: &Bound<'_, PyByteArray>) -> bool {
    // SAFETY: it is a living object, and the interpreter's lock is held.
    unsafe { ffi::Py_REFCNT(buffer.as_ptr()) == 1 }
}

impl Scratch {
    /// Takes the bytearray that was given back, or makes one.
    pub(crate) fn take(&self, py: Python<'_>) -> Py<PyByteArray> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.unwrap_or_else(|| PyByteArray::new(py, &[]).unbind())
    }

    /// Gives it back. One that something else refers to is left to that.
    pub(crate) fn give_back(&self, buffer: Bound<'_, PyByteArray>) {
        if is_unshared(&buffer) {
            // What was kept is dropped after the mutex is let go of.
            let _other =
                self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(buffer.unbind());
        }
    }

    /// Calls `callback` with a read-only view of `buffer`, releases the view, and gives the buffer back.
    ///
    /// # Errors
    /// What the callback raised. BufferError if a view of the buffer is left: that one keeps the bytes.
    pub(crate) fn lend<'py>(
        &self,
        buffer: Bound<'py, PyByteArray>,
        callback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = buffer.py();
        let writable = PyMemoryView::from(&buffer)?;
        let view = writable.call_method0(intern!(py, "toreadonly"))?;
        writable.call_method0(intern!(py, "release"))?;
        drop(writable);
        let result = callback.call1((&view,));
        // An array that was made of the view refuses this.
        let released = view.call_method0(intern!(py, "release"));
        let is_dead = released.is_ok() && is_unshared(&buffer);
        self.give_back(buffer);
        let result = result?;
        if !is_dead {
            return Err(PyBufferError::new_err(
                "the callback kept a view of the value, such as a slice or an array; copy what is kept: bytes(view)",
            ));
        }
        Ok(result)
    }
}

/// Makes `buffer`, as it was taken, hold `value`.
pub(crate) fn fill(buffer: &Bound<'_, PyByteArray>, value: &[u8]) -> PyResult<()> {
    buffer.resize(value.len())?;
    // SAFETY: this reference is the bytearray's only one (the invariant), so no other code reads, writes or resizes it
    // meanwhile; `value` lies elsewhere, as no part of a store is a bytearray.
    unsafe { buffer.as_bytes_mut() }.copy_from_slice(value);
    Ok(())
}

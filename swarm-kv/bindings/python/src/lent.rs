//! Something that one operation at a time uses.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Where it is while nobody uses it.
pub(crate) struct Home<T>(Arc<Mutex<Option<T>>>);

/// It, in use. Dropped, it goes home.
pub(crate) struct Lent<T> {
    content: Option<T>,
    home: Home<T>,
}

impl<T> Clone for Home<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Home<T> {
    pub(crate) fn new(content: T) -> Self {
        Self(Arc::new(Mutex::new(Some(content))))
    }

    /// Takes it for good.
    pub(crate) fn take(&self) -> PyResult<T> {
        let content = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        content.ok_or_else(|| {
            PyRuntimeError::new_err("it is released already, or another thread or task uses it")
        })
    }

    /// Takes it until that is dropped.
    pub(crate) fn lend(&self) -> PyResult<Lent<T>> {
        Ok(Lent { content: Some(self.take()?), home: self.clone() })
    }
}

impl<T> Lent<T> {
    pub(crate) fn get(&mut self) -> &mut T {
        self.content.as_mut().expect("until it is dropped")
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let content = self.content.take();
        *self.home.0.lock().unwrap_or_else(PoisonError::into_inner) = content;
    }
}

//! Errors as exceptions, by what a program can do.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use swarm_kv::objects::ObjectError;
use swarm_kv::{Error, ErrorKind, shm};

create_exception!(
    swarm,
    SwarmError,
    PyException,
    "An operation did not end, or a pool was not opened."
);
create_exception!(swarm, OpenError, SwarmError, "A pool was not opened or made.");
create_exception!(swarm, Retry, SwarmError, "The same operation may do later.");
create_exception!(
    swarm,
    MakeRoom,
    SwarmError,
    "The pool is full: delete keys, or move to a larger one."
);
create_exception!(swarm, Reopen, SwarmError, "The handle has come to its end: call its reopen().");
create_exception!(swarm, GiveUp, SwarmError, "It ends so each time.");
create_exception!(swarm, OtherKind, GiveUp, "The key is no such object: use another name.");
create_exception!(
    swarm,
    OtherNumber,
    GiveUp,
    "The object was made with another number of permits or parties."
);
create_exception!(swarm, Crowded, Retry, "The barrier has no room for another member.");
create_exception!(
    swarm,
    Evicted,
    SwarmError,
    "The member was taken out of its barrier: join again."
);
create_exception!(
    swarm,
    TakenAway,
    SwarmError,
    "What was held was taken away before it was released: others may have held it since."
);

/// The exception of an error's kind. It says whether a write may have taken effect.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let message = error.to_string();
    let raised = match error.kind() {
        ErrorKind::Retry => Retry::new_err(message),
        ErrorKind::MakeRoom => MakeRoom::new_err(message),
        ErrorKind::Reopen => Reopen::new_err(message),
        _ => GiveUp::new_err(message),
    };
    let outcome = raised.value(py).setattr("may_have_taken_effect", error.may_have_taken_effect());
    outcome.err().unwrap_or(raised)
}

/// The exception of an object's error.
pub(crate) fn raise_of_object(py: Python<'_>, error: ObjectError) -> PyErr {
    let message = error.to_string();
    let raised = match error {
        ObjectError::Store(error) => return raise(py, error),
        ObjectError::OtherKind { .. } => OtherKind::new_err(message),
        ObjectError::OtherNumber { .. } => OtherNumber::new_err(message),
        ObjectError::Crowded => Crowded::new_err(message),
        ObjectError::Evicted => Evicted::new_err(message),
        ObjectError::TakenAway { .. } => TakenAway::new_err(message),
        _ => GiveUp::new_err(message),
    };
    // Of these none has changed anything.
    let outcome = raised.value(py).setattr("may_have_taken_effect", false);
    outcome.err().unwrap_or(raised)
}

pub(crate) fn not_opened(error: shm::Error) -> PyErr {
    OpenError::new_err(error.to_string())
}

pub(crate) fn closed() -> PyErr {
    PyValueError::new_err("the handle is closed; open another one, or call its reopen()")
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<SwarmError>())?;
    module.add("OpenError", py.get_type::<OpenError>())?;
    module.add("Retry", py.get_type::<Retry>())?;
    module.add("MakeRoom", py.get_type::<MakeRoom>())?;
    module.add("Reopen", py.get_type::<Reopen>())?;
    module.add("GiveUp", py.get_type::<GiveUp>())?;
    module.add("OtherKind", py.get_type::<OtherKind>())?;
    module.add("OtherNumber", py.get_type::<OtherNumber>())?;
    module.add("Crowded", py.get_type::<Crowded>())?;
    module.add("Evicted", py.get_type::<Evicted>())?;
    module.add("TakenAway", py.get_type::<TakenAway>())
}

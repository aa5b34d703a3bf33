//! libibverbs and librdmacm as small safe types: all of this crate's `unsafe` but one call in
//! [`fork`](crate::fork) is here.
//!
//! **Invariant:** memory that a device may access belongs to the device. A [`Slot`](slots::Slot) is
//! a token for a piece of registered memory. Posting moves the token to the device, and polling its
//! last completion moves it back. Only the owner of the token may access the memory. Queue pairs
//! keep the registration and the memory alive, so a token that is never returned leaks only its
//! piece.
//!
//! Objects keep what they depend on alive: regions their domain; connections their domain,
//! completion queue, region and event channel. The calls of libibverbs and librdmacm used here are
//! thread-safe.

mod area;
mod connection;
mod device;
mod domain;
mod manager;
mod queue;
mod slots;

pub(crate) use area::Area;
pub(crate) use connection::{Connection, Limits, MAX_TOGETHER, Work};
pub(crate) use device::Device;
pub(crate) use domain::{Domain, Region, Use};
pub(crate) use manager::{Channel, Event, EventKind, Id, IdKey, local_address, wait_readable};
pub(crate) use queue::{CompletionQueue, Done, status_text};
pub(crate) use slots::{Slot, Slots};

use std::io;

/// Converts the return value of a call that returns an error number.
fn checked(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

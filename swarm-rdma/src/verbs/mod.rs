//! libibverbs and librdmacm as small safe types: all of this crate's `unsafe` is here.
//!
//! The invariant: memory that a device may touch belongs to the device. A [`Slot`](slots::Slot) is
//! a token for a piece of registered memory; posting moves the token to the device, and polling its
//! last completion moves it back. Whoever holds the token may read and write the memory; nobody else
//! can. Queue pairs keep the registration and the memory alive, so that even a token that never
//! comes back costs nothing but its piece.
//!
//! Objects keep what they stand on alive: regions their domain, connections their domain, completion
//! queue, region and event channel. The calls of libibverbs and librdmacm used here may be made
//! from any thread.

mod area;
mod connection;
mod device;
mod domain;
mod manager;
mod queue;
mod slots;

pub(crate) use area::Area;
pub(crate) use connection::{Connection, Limits, Work};
pub(crate) use device::Device;
pub(crate) use domain::{Domain, Region, Use};
pub(crate) use manager::{Channel, Event, EventKind, Id, IdKey, local_address, wait_readable};
pub(crate) use queue::{CompletionQueue, Done, status_text};
pub(crate) use slots::{Slot, Slots};

use std::io;

/// What a call that returns an error number says.
fn checked(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

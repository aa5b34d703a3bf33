//! The system that `bench` measures, as a register protocol that is chosen when the program runs.
//!
//! A store for each would be built three times. Over an emulated network, or a real one, what it takes to choose does
//! not show, and all three pay it.

use std::cell::Cell;
use std::convert::Infallible;

use swarm_core::abd::DmAbd;
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::group::Group;
use swarm_core::raw::Raw;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::safe_guess::SafeGuess;

use crate::workload::System;

thread_local! {
    static CHOSEN: Cell<System> = const { Cell::new(System::Swarm) };
}

/// The clients that this thread opens from here on belong to `system`.
pub(crate) fn choose(system: System) {
    CHOSEN.set(system);
}

/// The system that this thread has [chosen](choose).
pub(crate) struct Chosen;

impl Protocol for Chosen {
    const NAME: &'static str = "chosen";

    type Seen<'f, F: Fabric + 'f> = Infallible;
    type Posted<'f> = Infallible;

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        _seen: Option<Infallible>,
    ) -> Result<Found<'f, F>, Error> {
        match CHOSEN.get() {
            System::Swarm => SafeGuess::read_on(group, register, check, None).await,
            System::DmAbd => DmAbd::read_on(group, register, check, None).await,
            System::Raw => Raw::read_on(group, register, check, None).await,
        }
    }

    async fn write_on<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        _posted: Option<Infallible>,
    ) -> Result<Written, Error> {
        match CHOSEN.get() {
            System::Swarm => SafeGuess::write_on(group, register, write, None).await,
            System::DmAbd => DmAbd::write_on(group, register, write, None).await,
            System::Raw => Raw::write_on(group, register, write, None).await,
        }
    }

    async fn delete<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
    ) -> Result<(), Error> {
        match CHOSEN.get() {
            System::Swarm => SafeGuess::delete(group, register).await,
            System::DmAbd => DmAbd::delete(group, register).await,
            System::Raw => Raw::delete(group, register).await,
        }
    }
}

//! The system that `bench` measures, as a register protocol chosen at run time.
//!
//! A type for each would compile the store three times. The choice costs one comparison, for all
//! three alike.

use std::cell::Cell;

use swarm_core::baselines::{DmAbd, Raw};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::layout::ReplicaSet;
use swarm_core::quorum::Group;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Check, Found, Protocol, Register, Value, Write, Written};

use crate::workload::System;

thread_local! {
    static CHOSEN: Cell<System> = const { Cell::new(System::Swarm) };
}

/// Makes clients that this thread opens from now on use `system`.
pub(crate) fn choose(system: System) {
    CHOSEN.set(system);
}

/// The system that this thread has [chosen](choose).
pub(crate) struct Chosen;

impl Protocol for Chosen {
    const NAME: &'static str = "chosen";

    type Seen<'f, F: Fabric + 'f> = <SafeGuess as Protocol>::Seen<'f, F>;
    type Posted<'f> = <SafeGuess as Protocol>::Posted<'f>;

    #[inline(always)]
    fn try_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &Register,
        seen: &mut Option<Self::Seen<'f, F>>,
    ) -> Option<Value<'f, F>> {
        // The baselines have no fast path.
        (CHOSEN.get() == System::Swarm).then(|| SafeGuess::try_read(group, register, seen))?
    }

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        seen: Option<Self::Seen<'f, F>>,
    ) -> Result<Found<'f, F>, Error> {
        match CHOSEN.get() {
            System::Swarm => SafeGuess::read_on(group, register, check, seen).await,
            System::DmAbd => DmAbd::read_on(group, register, check, None).await,
            System::Raw => Raw::read_on(group, register, check, None).await,
        }
    }

    #[inline(always)]
    fn try_write<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        site: &ReplicaSet,
        posted: &mut Option<Self::Posted<'f>>,
    ) -> Option<Written> {
        (CHOSEN.get() == System::Swarm)
            .then(|| SafeGuess::try_write(group, register, write, site, posted))?
    }

    async fn write_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        posted: Option<Self::Posted<'f>>,
    ) -> Result<Written, Error> {
        match CHOSEN.get() {
            System::Swarm => SafeGuess::write_on(group, register, write, posted).await,
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

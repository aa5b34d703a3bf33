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
use swarm_core::register::{Begun, Check, Found, Protocol, Register, Write, Written};
use swarm_core::safe_guess::SafeGuess;

use super::workload::System;

thread_local! {
    static CHOSEN: Cell<System> = const { Cell::new(System::Swarm) };
}

/// The clients that this thread opens from here on belong to `system`.
pub(crate) fn choose(system: System) {
    CHOSEN.set(system);
}

/// The system that this thread has [chosen](choose).
pub(crate) struct Chosen;

/// What a part of an operation leaves to the next: the baselines have all in one part.
pub(crate) enum Part<S> {
    Swarm(S),
    DmAbd,
    Raw,
}

impl<S> Part<S> {
    /// Where a baseline's operation begins.
    fn baseline<D>(system: System) -> Option<Begun<D, Self>> {
        match system {
            System::Swarm => None,
            System::DmAbd => Some(Begun::Rest(Self::DmAbd)),
            System::Raw => Some(Begun::Rest(Self::Raw)),
        }
    }

    fn of_swarm<D>(begun: Begun<D, S>) -> Begun<D, Self> {
        match begun {
            Begun::Done(done) => Begun::Done(done),
            Begun::Rest(rest) => Begun::Rest(Self::Swarm(rest)),
        }
    }
}

/// What comes of a baseline's one part.
fn whole<D, R>(begun: Begun<D, Infallible>) -> Begun<D, R> {
    match begun {
        Begun::Done(done) => Begun::Done(done),
        Begun::Rest(never) => match never {},
    }
}

impl Protocol for Chosen {
    const NAME: &'static str = "chosen";

    type Reading<'f, F: Fabric + 'f, C: Clock + 'f> =
        Part<<SafeGuess as Protocol>::Reading<'f, F, C>>;
    type Unread<'f, F: Fabric + 'f> = <SafeGuess as Protocol>::Unread<'f, F>;
    type Writing<'f, F: Fabric + 'f, C: Clock + 'f> =
        Part<<SafeGuess as Protocol>::Writing<'f, F, C>>;
    type Unsettled<'f> = <SafeGuess as Protocol>::Unsettled<'f>;

    fn begin_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
    ) -> Begun<Result<Found<'f, F>, Error>, Self::Reading<'f, F, C>> {
        Part::baseline(CHOSEN.get())
            .unwrap_or_else(|| Part::of_swarm(SafeGuess::begin_read(group, register, check)))
    }

    async fn wait_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        reading: Self::Reading<'f, F, C>,
    ) -> Begun<Result<Found<'f, F>, Error>, Self::Unread<'f, F>> {
        match reading {
            Part::Swarm(reading) => SafeGuess::wait_read(group, register, check, reading).await,
            Part::DmAbd => whole(DmAbd::wait_read(group, register, check, ()).await),
            Part::Raw => whole(Raw::wait_read(group, register, check, ()).await),
        }
    }

    async fn end_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        unread: Self::Unread<'f, F>,
    ) -> Result<Found<'f, F>, Error> {
        SafeGuess::end_read(group, register, check, unread).await
    }

    fn begin_write<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
    ) -> Begun<Result<Written, Error>, Self::Writing<'f, F, C>> {
        Part::baseline(CHOSEN.get())
            .unwrap_or_else(|| Part::of_swarm(SafeGuess::begin_write(group, register, write)))
    }

    async fn wait_write<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        writing: Self::Writing<'f, F, C>,
    ) -> Begun<Result<Written, Error>, Self::Unsettled<'f>> {
        match writing {
            Part::Swarm(writing) => SafeGuess::wait_write(group, register, write, writing).await,
            Part::DmAbd => whole(DmAbd::wait_write(group, register, write, ()).await),
            Part::Raw => whole(Raw::wait_write(group, register, write, ()).await),
        }
    }

    async fn end_write<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        unsettled: Self::Unsettled<'f>,
    ) -> Result<Written, Error> {
        SafeGuess::end_write(group, register, write, unsettled).await
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

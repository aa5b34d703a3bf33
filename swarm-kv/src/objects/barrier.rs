//! A place where members wait for each other, again and again. Members that end are taken out, and those that were
//! [evicted](Barrier::evict) get an error.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::waiting::Prepared;
use crate::error::Error;
use crate::objects::barrier_state::{LONGEST, Meeting};
use crate::objects::cell::Named;
use crate::objects::error::ObjectError;
use crate::objects::kind::ObjectKind;
use crate::objects::seat::Seat;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the barrier of this name, which so many parties have to join before it opens for the first time.
    /// There is one for each key: it need not be created. All users have to pass the same number.
    #[must_use]
    pub fn barrier(&self, name: &[u8], parties: u32) -> Barrier<'_, F, C, P> {
        Barrier { client: self, name: name.into(), parties }
    }
}

/// Where members wait for each other.
///
/// More than its parties may join, [`MAX_MEMBERS`](crate::objects::MAX_MEMBERS) in all: each one is waited for
/// from then on, until it leaves, is evicted or ends.
pub struct Barrier<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    name: Box<[u8]>,
    parties: u32,
}

/// Who met at a barrier when it opened, or is to meet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BarrierView {
    /// How often it has opened.
    pub generation: u64,
    /// Its members now.
    pub members: Vec<Seat>,
}

impl BarrierView {
    /// Returns what a barrier's value says; `None` if this is none.
    #[must_use]
    pub fn of(value: &[u8]) -> Option<Self> {
        let state = value.strip_prefix(&ObjectKind::Barrier.header())?;
        let meeting = Meeting::decode(state)?;
        Some(Self { generation: meeting.generation, members: meeting.members() })
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Barrier<'_, F, C, P> {
    fn named(&self) -> Named<'_> {
        Named { name: &self.name, kind: ObjectKind::Barrier, room: LONGEST }
    }

    fn meeting(&self, state: Option<&[u8]>) -> Result<Meeting, ObjectError> {
        let Some(state) = state else { return Ok(Meeting::new(self.parties)) };
        let meeting = Meeting::decode(state).ok_or(Error::DAMAGED)?;
        let (wanted, found) = (self.parties, meeting.parties);
        if wanted == found { Ok(meeting) } else { Err(ObjectError::OtherNumber { wanted, found }) }
    }

    /// Changes the state by `step`, goes on as far as it can, and returns what is there before and then.
    async fn change(&self, step: impl Fn(&mut Meeting)) -> Result<(Meeting, Meeting), ObjectError> {
        let client = self.client;
        let step = |state: Option<&[u8]>| {
            let before = self.meeting(state).ok()?;
            let mut after = before.clone();
            step(&mut after);
            after.goes_on(&|seat| client.is_seat_gone(seat));
            (after != before).then(|| after.encode())
        };
        let (before, after) = client.change_object_alone(self.named(), step).await?;
        Ok((self.meeting(before.as_deref())?, self.meeting(after.as_deref())?))
    }

    /// Joins it: from now on the others wait for this member.
    ///
    /// A change takes one roundtrip if this client used the barrier last, and up to five after another one.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it leaves again, as [`Guard`](crate::objects::Guard) says of its drop.
    ///
    /// # Errors
    /// [`ObjectError::Crowded`], [`ObjectError::OtherNumber`], [`ObjectError::OtherKind`]; a pool without keyed
    /// cells, or a full one; too few memory nodes that answer.
    pub async fn join(&self) -> Result<Member<'_, F, C, P>, ObjectError> {
        self.client.gives_up_places().await?;
        let seat = self.client.next_seat();
        let mut member = Member { barrier: self, seat, generation: 0, is_in: true };
        let joined = self.joins(seat).await;
        member.is_in = !matches!(joined, Err(ObjectError::Crowded));
        member.generation = joined?;
        Ok(member)
    }

    /// Takes a place, and returns the generation that it waits in first.
    pub(crate) async fn joins(&self, seat: Seat) -> Result<u64, ObjectError> {
        let join = |it: &mut Meeting| it.join(seat, &|other| self.client.is_seat_gone(other));
        let (_, after) = self.change(join).await?;
        if after.has(&seat) { Ok(after.generation) } else { Err(ObjectError::Crowded) }
    }

    /// Arrives in this generation, and returns who met, once all have arrived.
    pub(crate) async fn meets(
        &self,
        seat: Seat,
        generation: u64,
    ) -> Result<Option<BarrierView>, ObjectError> {
        let (_, after) = self.change(|it| it.arrive(&seat, generation)).await?;
        if !after.has(&seat) {
            return Err(ObjectError::Evicted);
        }
        let view = BarrierView { generation: after.generation, members: after.members() };
        Ok((after.generation > generation).then_some(view))
    }

    /// Takes a member out, which need not have ended. It gets an error when it waits. Returns false, with no
    /// effect, if it is none any more.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn evict(&self, seat: Seat) -> Result<bool, ObjectError> {
        let (before, _) = self.change(|it| it.leave(&seat)).await?;
        Ok(before.has(&seat))
    }

    /// Returns who is to meet.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn view(&self) -> Result<BarrierView, ObjectError> {
        let meeting = self.meeting(self.client.read_object(self.named()).await?.as_deref())?;
        Ok(BarrierView { generation: meeting.generation, members: meeting.members() })
    }

    /// O5: gives up a place that may be there.
    pub(crate) async fn gives_up(&self, seat: Seat) -> Result<(), ObjectError> {
        self.change(|it| it.leave(&seat)).await.map(drop)
    }
}

/// A member of a barrier. Dropped, it leaves, as [`Guard`](crate::objects::Guard) says of its drop.
#[must_use = "dropping it leaves the barrier"]
pub struct Member<'l, F: Fabric, C: Clock, P: Protocol> {
    barrier: &'l Barrier<'l, F, C, P>,
    seat: Seat,
    /// The one that it waits in next.
    generation: u64,
    is_in: bool,
}

impl<'l, F: Fabric, C: Clock, P: Protocol> Member<'l, F, C, P> {
    /// Who it is.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// Arrives, and waits until all members have.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have arrived or not; the next call goes on.
    ///
    /// # Errors
    /// [`ObjectError::Evicted`]: it is no member any more. As [`Barrier::join`].
    pub async fn wait(&mut self) -> Result<BarrierView, ObjectError> {
        let met = self.wait_by(None, self.client().yields()).await?;
        Ok(met.expect("it waits for as long as it takes"))
    }

    /// The same, for so long at most. `None` if that was too short: it has arrived, and the next call goes on.
    /// `sleep` lets the time between two looks pass: at most 5 ms.
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn wait_paced(
        &mut self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Duration),
    ) -> Result<Option<BarrierView>, ObjectError> {
        self.wait_by(limit, async |_, pause| sleep(pause).await).await
    }

    pub(crate) fn client(&self) -> &'l Client<F, C, P> {
        self.barrier.client
    }

    pub(crate) async fn wait_by(
        &mut self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<Option<BarrierView>, ObjectError> {
        let (barrier, seat, generation) = (self.barrier, self.seat, self.generation);
        let look = async || barrier.meets(seat, generation).await;
        let met = barrier.client.looks_until(&barrier.name, limit, sleep, look).await;
        self.is_in = !matches!(met, Err(ObjectError::Evicted));
        if let Ok(Some(view)) = &met {
            self.generation = view.generation;
        }
        met
    }

    /// Leaves: nobody waits for it any more.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it leaves as if it had been dropped.
    ///
    /// # Errors
    /// [`ObjectError::Evicted`]: it was no member any more. As [`Barrier::join`].
    pub async fn leave(mut self) -> Result<(), ObjectError> {
        let was_in = self.barrier.evict(self.seat).await?;
        self.is_in = false;
        if was_in { Ok(()) } else { Err(ObjectError::Evicted) }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for Member<'_, F, C, P> {
    fn drop(&mut self) {
        let Barrier { client, ref name, parties } = *self.barrier;
        // S7: a child's copy is no member.
        if self.is_in && !client.is_cut_off() {
            client.leaves_place(name, (ObjectKind::Barrier, parties), self.seat);
        }
    }
}

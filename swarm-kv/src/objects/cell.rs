//! An object's value: its kind, and behind that its state.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::objects::error::ObjectError;
use crate::objects::kind::{HEADER, ObjectKind};
use crate::ops::modify::Next;

/// A key, and the kind of object that it is to be.
#[derive(Clone, Copy)]
pub(crate) struct Named<'n> {
    pub(crate) name: &'n [u8],
    pub(crate) kind: ObjectKind,
    /// Bytes of a state that a new object's cell has room for.
    pub(crate) room: usize,
}

impl Named<'_> {
    /// Returns the state that a value has, if there is a value.
    fn state<'v>(&self, value: Option<&'v [u8]>) -> Result<Option<&'v [u8]>, ObjectError> {
        let Some(value) = value else { return Ok(None) };
        let (wanted, found) = (self.kind, ObjectKind::of(value));
        if found == Some(wanted) {
            return Ok(value.get(HEADER..));
        }
        Err(ObjectError::OtherKind { wanted, found })
    }

    fn value(&self, state: &[u8]) -> Vec<u8> {
        [&self.kind.header(), state].concat()
    }
}

/// A state before and after a change; `None` where there is none.
pub(crate) type States = (Option<Vec<u8>>, Option<Vec<u8>>);

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Changes the state of an object to what `step` makes of it; `None`: it stays. Returns what was there, and
    /// what is.
    ///
    /// `step` may be called more than once: its last call counts.
    pub(crate) async fn change_object(
        &self,
        named: Named<'_>,
        step: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<States, ObjectError> {
        self.gives_up_places().await?;
        self.change_object_alone(named, step).await
    }

    /// The same, and gives up no places first.
    pub(crate) async fn change_object_alone(
        &self,
        named: Named<'_>,
        mut step: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<States, ObjectError> {
        let mut choice = |value: Option<&[u8]>| {
            let Ok(before) = named.state(value) else { return Ok(Next::Keep) };
            Ok(step(before).map_or(Next::Keep, |after| Next::Put(named.value(&after))))
        };
        let room = HEADER + named.room;
        let state =
            |value: Option<&[u8]>| Ok::<_, ObjectError>(named.state(value)?.map(<[u8]>::to_vec));
        let states =
            |before: Option<&[u8]>, after: Option<&[u8]>| Ok((state(before)?, state(after)?));
        self.modify(named.name, Some(room), &mut choice, states).await?
    }

    /// Reads the state of an object.
    pub(crate) async fn read_object(
        &self,
        named: Named<'_>,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let value = self.get(named.name).await?;
        Ok(named.state(value.as_deref())?.map(<[u8]>::to_vec))
    }
}

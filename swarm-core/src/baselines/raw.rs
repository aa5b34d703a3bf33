//! RAW: one replica, in place, without any concurrency control.
//!
//! The paper's lower bound (§7): the cost of the fabric alone. One verb for each operation. Values
//! tear when they are written concurrently, and are lost with their node. Values that do not fit in
//! place are refused.

use core::convert::Infallible;

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::layout::{BufferHeader, register};
use crate::node::NodeSet;
use crate::quorum::{Group, Next};
use crate::register::in_n_out::{in_place_head, post_in_place, post_read, state};
use crate::register::{Check, Found, Protocol, Register, Value, Write, Written};
use crate::words::{Stamp, WriteNumber};

/// One replica without concurrency control.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Protocol for Raw {
    const NAME: &'static str = "raw";

    type Seen<'f, F: Fabric + 'f> = Infallible;
    type Posted<'f> = Infallible;

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        _check: Check<'_>,
        _seen: Option<Infallible>,
    ) -> Result<Found<'f, F>, Error> {
        read(group, register).await
    }

    async fn write_on<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
        w: Write<'_>,
        _posted: Option<Infallible>,
    ) -> Result<Written, Error> {
        write(group, register, w).await
    }

    /// Marks the in-place copy: one roundtrip.
    async fn delete<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
    ) -> Result<(), Error> {
        put(group, register, group.format().deletion(), WriteNumber::default(), &[]).await
    }
}

async fn put<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    stamp: Stamp,
    number: WriteNumber,
    value: &[u8],
) -> Result<(), Error> {
    let home = NodeSet::ring(register.home(), 1, group.nodes());
    let header = BufferHeader { number, length: value.len(), ..BufferHeader::default() };
    let head = in_place_head(stamp, &header);
    group
        .collect_votes(home, 1, |node, reply| match reply {
            None if node == register.home() => {
                Next::Post(post_in_place(group, register, &head, value))
            }
            Some(_) => Next::Vote,
            None => Next::NoVote,
        })
        .await?;
    Ok(())
}

/// Reads the in-place copy: one roundtrip. Checks by identity alone.
async fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
) -> Result<Found<'f, F>, Error> {
    let home = NodeSet::ring(register.home(), 1, group.nodes());
    let mut read = None;
    group
        .collect_votes(home, 1, |node, reply| match reply {
            None if node == register.home() => {
                Next::Post(post_read(group, node, register, Check::Identity))
            }
            Some(reply) if state(&reply, register.identity).is_some() => {
                read = Some(reply);
                Next::Vote
            }
            _ => Next::NoVote,
        })
        .await?;
    let reply = read.ok_or(Error::Gone)?;
    let copy = reply.get(register::IN_PLACE..).and_then(<[u64]>::split_first);
    let Some((&stamp, image)) = copy else { return Err(Error::Damaged) };
    let header = BufferHeader::decode(image).ok_or(Error::Damaged)?;
    if group.format().is_deleted(Stamp(stamp)) {
        return Ok(Found::Deleted);
    }
    let length = header.length.min(register.capacity());
    Ok(Found::Value(Value { reply, start: register::VALUE, length }))
}

/// Writes in place: one roundtrip. A value that does not fit is refused.
async fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    write: Write<'_>,
) -> Result<Written, Error> {
    if write.value.len() > register.capacity() {
        return Err(Error::Exhausted);
    }
    put(group, register, Stamp::EMPTY, write.number, write.value).await?;
    Ok(Written::Done)
}

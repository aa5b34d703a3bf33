//! DM-ABD: the classic multi-writer register (Attiya, Bar-Noy, Dolev) over out-of-place writes.
//!
//! The paper's baseline (§7). A writer reads the largest timestamp of a majority and writes above
//! it. A reader reads it, fetches the value, and writes it back unless a majority has it. Each
//! takes two roundtrips. It uses the same max register M as Safe-Guess, without guesses and locks;
//! its stamps are all verified.

use core::convert::Infallible;

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::layout::{BufferHeader, checksum};
use crate::node::NodeSet;
use crate::quorum::Group;
use crate::register::in_n_out::Copy;
use crate::register::max_register::{self, Want, Writes};
use crate::register::safe_guess::SafeGuess;
use crate::register::weak_read;
use crate::register::{Check, Found, Protocol, Register, Write, Written};
use crate::words::{Stamp, StampFlags, Timestamp};

/// ABD over out-of-place writes.
#[derive(Clone, Copy, Debug)]
pub struct DmAbd;

impl Protocol for DmAbd {
    const NAME: &'static str = "dm-abd";

    type Seen<'f, F: Fabric + 'f> = Infallible;
    type Posted<'f> = Infallible;

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        _seen: Option<Infallible>,
    ) -> Result<Found<'f, F>, Error> {
        read(group, register, check).await
    }

    async fn write_on<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
        w: Write<'_>,
        _posted: Option<Infallible>,
    ) -> Result<Written, Error> {
        write(group, register, w).await
    }

    /// Deletes the register: one roundtrip, as nothing is above the top timestamp.
    async fn delete<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
    ) -> Result<(), Error> {
        SafeGuess::delete(group, register).await
    }
}

/// Reads the register: two roundtrips.
async fn read<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    check: Check<'_>,
) -> Result<Found<'f, F>, Error> {
    let m = max_register::read(group, register, check, Want::OutOfPlace).await?;
    Ok(match m.value {
        _ if m.other_key => Found::OtherKey,
        Some(value) => Found::Value(value),
        None => Found::Deleted,
    })
}

/// Writes the register: two roundtrips.
async fn write<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    write: Write<'_>,
) -> Result<Written, Error> {
    let format = group.format();
    // Round 1: the largest timestamp.
    let m = match largest(group, register).await {
        Err(Error::Moved) => return Ok(Written::Moved(Stamp::EMPTY)),
        m => m?,
    };
    if format.is_deleted(m) {
        return Ok(Written::Deleted);
    }
    let timestamp = Timestamp(format.timestamp(m).0 + 1);
    if timestamp >= format.deleted() {
        return Ok(Written::Moved(Stamp::EMPTY));
    }
    // Round 2: the value above it.
    let stamp = format.stamp(timestamp, write.buffer, StampFlags::VERIFIED);
    let header = BufferHeader {
        rewrite: Timestamp(0),
        number: write.number,
        register: register.place.pointer,
        length: write.value.len(),
        guess: timestamp,
        checksum: checksum(
            format,
            register.identity,
            timestamp,
            write.buffer,
            write.number,
            write.value,
        ),
    };
    let words = header.encode();
    let copy = Copy::of_guess(group.site(register, stamp), &words, write.value);
    let writes = Writes { stamp, copy: Some(copy), held: NodeSet::EMPTY };
    match max_register::write(group, register, writes).await {
        Ok(_) => Ok(Written::Done),
        Err(Error::Moved) => Ok(Written::Moved(stamp)),
        Err(error) => Err(error),
    }
}

/// Returns the largest stamp of a majority, and if it is a delete's, one that a majority holds. M2:
/// a delete that only a minority holds is not final, and may be lost with it.
async fn largest<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
) -> Result<Stamp, Error> {
    let m = weak_read::read_once(group, register, Check::Identity).await?.max;
    if !group.format().is_deleted(m) {
        return Ok(m);
    }
    Ok(max_register::read(group, register, Check::Identity, Want::Stamp).await?.stamp)
}

//! Safe-Guess (§3, appendices A–C): a linearizable, wait-free register in one roundtrip.
//!
//! A writer guesses a timestamp instead of asking for one. If the guess proves fresh, the write is
//! done after the roundtrip that carried it. If not, writer and readers settle by the timestamp
//! lock whether the guess stands (some reader returned it) or is written again under a fresh
//! timestamp. It all rests on this: *a write takes effect under one timestamp only*: under its guess
//! if that was fresh, or was locked by a reader, or was seen to be followed by its writer's next
//! write; under its rewrite only if the writer holds the lock.
//!
//! Roundtrips: write 1, or 4 after a stale guess; read 1, 2 with the value out of place, 4 when it
//! meets a write that is under way. Linearization: a write at the CAS with which a majority first
//! holds the stamp that it keeps, or a larger one; a read when what it returns takes effect or when
//! it begins, whichever is later.

use heapless::Vec;

use super::handle::{Check, Found, Protocol, Register, Value, Write, Written};
use super::in_n_out::{Copy, in_place_head, put_in_place, raise};
use super::look::Look;
use super::max_register::{self, Want, Writes, fetch};
use super::near;
use super::timestamp_lock::{try_lock, try_lock_to_read};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::layout::{BufferHeader, MAX_CLIENTS, SLOTS, Site, buffer, checksum};
use crate::node::NodeSet;
use crate::quorum::{Group, Unfinished};
use crate::words::{LockMode, Pointer, Stamp, StampFlags, Timestamp, WordFormat, Writer};

/// Writers of one register at a time among which a read is wait-free: it keeps in mind what it
/// saw of so many. (A client that abandons a write goes on as another writer.)
pub const WRITERS: usize = 64;

/// Rounds of a read: after two READs for each writer, one of them was seen with two stamps or twice
/// with the same, and a lost lock makes room for a larger stable stamp only.
pub const READ_BOUND: usize = 2 * WRITERS + 1;

const _: () = assert!(WRITERS >= SLOTS);

/// Ticks in front of the last timestamp in which no write begins: its register moves first. Room
/// for what is under way then: each client's rewrite goes at most one tick above another's stamp.
/// Safety does not rest on it, since a rewrite that comes to the end has its register moved as well.
const MARGIN: u64 = 2 * MAX_CLIENTS as u64;

/// Safe-Guess, the protocol of the paper.
#[derive(Clone, Copy, Debug)]
pub struct SafeGuess;

impl Protocol for SafeGuess {
    const NAME: &'static str = "swarm";

    type Seen<'f, F: Fabric + 'f> = Look<F::Reply<'f>>;
    type Posted<'f> = Guessed<'f>;

    #[inline(always)]
    fn try_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &Register,
        seen: &mut Option<Look<F::Reply<'f>>>,
    ) -> Option<Value<'f, F>> {
        near::read(group, register, seen)
    }

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        seen: Option<Look<F::Reply<'f>>>,
    ) -> Result<Found<'f, F>, Error> {
        let m = match seen {
            Some(look) => max_register::read_on(group, register, check, Want::Value, look).await?,
            None => max_register::read(group, register, check, Want::Value).await?,
        };
        if m.other_key {
            return Ok(Found::OtherKey);
        }
        if m.is_settled(group.format()) {
            return Ok(settled(group, register, m));
        }
        read_guessed(group, register, m).await
    }

    #[inline(always)]
    fn try_write<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        site: &Site,
        posted: &mut Option<Guessed<'f>>,
    ) -> Option<Written> {
        if !group.fabric().is_near() {
            return None;
        }
        // Round 1, and where it proves fresh all.
        let Some(guessed) = Guessed::new(group, register, &write) else {
            return Some(Written::Moved(Stamp::EMPTY));
        };
        let words = guessed.header.encode();
        // A guess is no register's first stamp, whose buffer lies elsewhere too.
        let copy = Copy::of_guess(*site, &words, write.value);
        if !near::write(group, register, (guessed.w, copy), &guessed.header, write.value) {
            *posted = Some(guessed);
            return None;
        }
        guessed.unfinished.complete();
        Some(Written::Done)
    }

    async fn write_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        write: Write<'_>,
        posted: Option<Guessed<'f>>,
    ) -> Result<Written, Error> {
        let Some(guessed) = posted.or_else(|| Guessed::new(group, register, &write)) else {
            return Ok(Written::Moved(Stamp::EMPTY));
        };
        // Round 1: the guess goes out; its chains READ what it has to stand against. Where they went out before,
        // this finds its stamp there.
        let words = guessed.header.encode();
        let writes = first(group, register, guessed.w, &words, &write);
        match max_register::write(group, register, writes).await {
            Ok((voters, m)) if m.same_write(guessed.w) => {
                return Ok(guessed.fresh(group, register, voters, write.value));
            }
            Ok(_) => {}
            Err(Error::Moved) => {
                guessed.unfinished.complete();
                return Ok(Written::Moved(guessed.w));
            }
            Err(error) => return Err(error),
        }
        let Guessed { w, header, unfinished } = guessed;
        let written = write_stale(group, register, w, header, write).await?;
        // A write that was refused is over too, but had no effect: this client's next write must
        // not prove to a reader that it had. After a move there is no next write to this register.
        if written != Written::Deleted {
            unfinished.complete();
        }
        Ok(written)
    }

    async fn delete<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        register: &mut Register,
    ) -> Result<(), Error> {
        let stamp = group.format().deletion();
        let writes = Writes { stamp, copy: None, held: NodeSet::EMPTY };
        max_register::write(group, register, writes).await?;
        Ok(())
    }
}

/// A write whose guess is out, or goes out next.
pub struct Guessed<'f> {
    w: Stamp,
    header: BufferHeader,
    unfinished: Unfinished<'f>,
}

impl<'f> Guessed<'f> {
    /// A guess for this write. `None` where timestamps come to their end: the register has to move first.
    #[inline(always)]
    fn new<F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &Register,
        write: &Write<'_>,
    ) -> Option<Self> {
        let format = group.format();
        let guess = guess(group, register);
        if guess.0 + MARGIN >= format.deleted().0 {
            return None;
        }
        let w = format.stamp(guess, write.buffer, StampFlags::empty());
        let sum =
            checksum(format, register.identity, guess, write.buffer, write.number, write.value);
        let header = header(register, write, guess, sum);
        Some(Self { w, header, unfinished: group.begin_write() })
    }

    /// The guess proved fresh: the write is done.
    #[inline(always)]
    fn fresh<F: Fabric, C: Clock>(
        self,
        group: &Group<F, C>,
        register: &mut Register,
        voters: NodeSet,
        value: &[u8],
    ) -> Written {
        finish(group, register, voters, self.w.verified(), (&self.header, value));
        self.unfinished.complete();
        Written::Done
    }
}

/// The first round of a write: its guess, with the buffer.
#[inline(always)]
fn first<'a, F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    w: Stamp,
    words: &'a [u64; buffer::HEADER_WORDS - 1],
    write: &Write<'a>,
) -> Writes<'a> {
    let copy = Copy::of_guess(group.site(register, w), words, write.value);
    Writes { stamp: w, copy: Some(copy), held: NodeSet::EMPTY }
}

/// A timestamp that is probably larger than any before it.
#[inline(always)]
fn guess<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register) -> Timestamp {
    let format = group.format();
    let age = group.now().saturating_sub(register.identity.birth);
    // Whoever looked at the register knows of its birth's timestamp, or a later one; who did not goes above it, too.
    let after = format.timestamp(register.last).0 + 1;
    Timestamp(format.ticks(age).max(after).max(Timestamp::FIRST.0 + 1).min(format.deleted().0))
}

/// The stamp that a register is born with, in its first slot: its value is in `buffer`.
pub fn first_stamp(format: WordFormat, buffer: Pointer) -> Stamp {
    format.stamp(Timestamp::FIRST, buffer, StampFlags::VERIFIED)
}

/// The stamp of a register that is born deleted, for a key that was while its register moved.
pub fn deleted_stamp(format: WordFormat, buffer: Pointer) -> Stamp {
    format.stamp(format.deleted(), buffer, StampFlags::VERIFIED)
}

#[inline(always)]
fn header(register: &Register, write: &Write<'_>, guess: Timestamp, sum: u64) -> BufferHeader {
    BufferHeader {
        rewrite: Timestamp(0),
        number: write.number,
        register: register.place.pointer,
        length: write.value.len(),
        guess,
        checksum: sum,
    }
}

/// The write is complete: says so in the slots, and puts its value in place. In the background;
/// readers who come sooner settle it themselves.
#[inline(always)]
fn finish<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    voters: NodeSet,
    stamp: Stamp,
    (header, value): (&BufferHeader, &[u8]),
) {
    let home = register.home();
    let voters = voters.holding(|node| register.own.at(node).same_write(stamp));
    for node in voters {
        let cas = raise(group, node, register, stamp.guessed(), stamp);
        if node == home {
            let head = in_place_head(stamp, header);
            put_in_place(group, register, &head, value, Some(cas));
        } else {
            group.fabric().post_aside(node, &[cas]);
        }
    }
    for node in voters {
        register.own.saw(node, stamp);
    }
    register.met(stamp);
}

/// The rest of a write whose guess was not the largest stamp that its own chains saw.
async fn write_stale<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    w: Stamp,
    header: BufferHeader,
    write: Write<'_>,
) -> Result<Written, Error> {
    let format = group.format();
    group.count_slow();
    // Round 2: what we lost to becomes stable. Else a reader that loses its lock to us might find
    // nothing newer, for ever, if that stamp's writer, its only node and we die.
    let read = max_register::read(group, register, Check::Identity, Want::Stamp).await;
    let m = match read {
        Err(Error::Moved) => return Ok(Written::Moved(w)),
        read => read?.stamp,
    };
    if m.same_write(w) {
        // What we lost to is on no majority's maximum: the guess was the largest after all.
        let voters = NodeSet::all(group.nodes());
        finish(group, register, voters, w.verified(), (&header, write.value));
        return Ok(Written::Done);
    }
    advance_clock(group, register, m);
    // Round 3: unless a reader has settled that the guess stands.
    let site = group.site(register, w);
    let lock = try_lock(group, register.home(), &site, write.number, LockMode::Write);
    let locked = lock.await?;
    if format.is_deleted(m) {
        return Ok(if locked { Written::Deleted } else { Written::Done });
    }
    if !locked {
        return Ok(Written::Done);
    }
    // Round 4: the same buffer under a timestamp above all that came before. Not as verified: it is when
    // so many have it.
    let fresh = guess(group, register).max(Timestamp(format.timestamp(m).0 + 1));
    if fresh >= format.deleted() {
        return Ok(Written::Moved(w));
    }
    let again = format.stamp(fresh, write.buffer, StampFlags::empty());
    let rewritten = BufferHeader { rewrite: fresh, ..header };
    let words = rewritten.encode();
    let copy = Copy { site, from: buffer::REWRITE, head: &words, tail: write.value };
    let writes = Writes { stamp: again, copy: Some(copy), held: NodeSet::EMPTY };
    let again = again.verified();
    let (voters, _) = match max_register::write(group, register, writes).await {
        Err(Error::Moved) => return Ok(Written::Moved(again)),
        wrote => wrote?,
    };
    finish(group, register, voters, again, (&rewritten, write.value));
    Ok(Written::Done)
}

/// Moves a clock forward that is behind the stamp that a guess lost to.
fn advance_clock<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register, m: Stamp) {
    let format = group.format();
    if format.is_deleted(m) {
        return;
    }
    let stamped = register.identity.birth.saturating_add(format.nanoseconds(format.timestamp(m)));
    group.advance(stamped.saturating_sub(group.now()));
}

fn found<'f, F: Fabric, C: Clock>(
    group: &Group<F, C>,
    stamp: Stamp,
    value: Option<Value<'f, F>>,
) -> Found<'f, F> {
    match value {
        Some(value) if !group.format().is_deleted(stamp) => Found::Value(value),
        _ => Found::Deleted,
    }
}

/// A maximum that its writer does not take back. A rewrite whose writer may be dead is said to be complete.
fn settled<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    m: max_register::Maximum<'f, F>,
) -> Found<'f, F> {
    if !m.stamp.is_verified() {
        confirm(group, register, &m);
    }
    found(group, m.stamp, m.value)
}

/// The rest of a read that met a guess `m` that is not known to be complete.
async fn read_guessed<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &mut Register,
    mut m: max_register::Maximum<'f, F>,
) -> Result<Found<'f, F>, Error> {
    group.count_slow();
    let mut seen = Vec::<(Writer, Stamp), WRITERS>::new();
    for _ in 0..READ_BOUND {
        let writer = m.header.number.writer();
        let mut is_lost = false;
        match seen.iter().find(|(other, _)| *other == writer) {
            // Seen twice: the guess stands if its writer has not taken it back.
            Some((_, before)) if before.same_write(m.stamp) => {
                let (site, home) = (group.site(register, m.stamp), register.home());
                let number = m.header.number;
                if try_lock_to_read(group, home, &site, number).await? {
                    confirm(group, register, &m);
                    return Ok(found(group, m.stamp, m.value));
                }
                is_lost = true;
            }
            // A client writes a register once at a time: its earlier write is complete.
            Some(&(_, before)) => {
                let earlier = fetch(group, register, before, NodeSet::EMPTY, register.capacity());
                if let Ok(earlier) = earlier.await? {
                    return Ok(Found::Value(earlier.into_value()));
                }
            }
            None => remember(&mut seen, writer, m.stamp),
        }
        let next =
            max_register::read(group, register, Check::Identity, Want::Unless(m.stamp)).await?;
        if !next.stamp.same_write(m.stamp) {
            m = next;
        } else if is_lost {
            // Who locks a guess to replace it has made something larger stable before, or moved the key.
            return Err(Error::Damaged);
        } else {
            m.stamp = next.stamp;
        }
        if m.is_settled(group.format()) {
            return Ok(settled(group, register, m));
        }
    }
    Err(Error::Contended)
}

fn remember(seen: &mut Vec<(Writer, Stamp), WRITERS>, writer: Writer, stamp: Stamp) {
    if seen.is_full() {
        seen.remove(0);
    }
    let pushed = seen.push((writer, stamp));
    debug_assert!(pushed.is_ok(), "there is room: the oldest was removed");
}

/// Says in this reader's own slots that the write is complete, and puts its value in place. In the
/// background.
fn confirm<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    m: &max_register::Maximum<'_, F>,
) {
    let stamp = m.stamp.verified();
    // Only where the buffer is: a slot names no buffer that was not written at its node.
    let before = register.own;
    for node in m.holders.holding(|node| before.at(node) < stamp) {
        let cas = raise(group, node, register, before.at(node), stamp);
        match &m.value {
            Some(value) if node == register.home() => {
                let head = in_place_head(stamp, &m.header);
                put_in_place(group, register, &head, value, Some(cas));
            }
            _ => {
                group.fabric().post_aside(node, &[cas]);
            }
        }
        register.own.saw(node, stamp);
    }
}

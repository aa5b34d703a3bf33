//! Safe-Guess (§3, appendices A–C): a linearizable, wait-free register in one roundtrip.
//!
//! A writer guesses a timestamp instead of asking for one. If the guess proves fresh, the write is
//! done after the roundtrip that carried it. If not, the timestamp lock decides between two
//! outcomes: the guess stands, because a reader returned it, or the writer writes the value again
//! under a fresh timestamp. **Invariant (G1):** a write takes effect under one timestamp only. It
//! is the guess if that was fresh, was locked by a reader, or was followed by its writer's next
//! write. It is the rewrite's only if the writer holds the lock.
//!
//! Roundtrips: write 1, or 4 after a stale guess; read 1, 2 with the value out of place, 4 if it
//! finds a write in progress. Linearization: a write at the CAS by which a majority first holds its
//! deciding stamp, or a larger one. A read when what it returns takes effect or when it begins,
//! whichever is later.

use heapless::Vec;

use super::handle::{Check, Found, Protocol, Register, Value, Write, Written};
use super::in_n_out::{Copy, in_place_head, put_in_place, raise};
use super::max_register::{self, Want, Writes, fetch};
use super::timestamp_lock::{try_lock, try_lock_to_read};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::layout::{BufferHeader, MAX_CLIENTS, ReplicaSet, SLOTS, buffer, checksum};
use crate::node::NodeSet;
use crate::quorum::{Group, Unfinished};
use crate::register::fast_path;
use crate::register::weak_read::WeakRead;
use crate::words::{LockMode, Pointer, Stamp, StampFlags, Timestamp, WordFormat, Writer};

/// Number of concurrent writers of a register up to which a read is wait-free (G5): a read
/// remembers what it saw of that many. (A client that abandons a write continues as another
/// writer.)
pub const WRITERS: usize = 64;

/// Rounds of a read (G5). After two READs for each writer, one of them was seen with two stamps or
/// twice with the same one. A lost lock only gives way to a larger stable stamp.
pub const READ_BOUND: usize = 2 * WRITERS + 1;

const _: () = assert!(WRITERS >= SLOTS);

/// Number of ticks before the last timestamp in which no write starts: its register is relocated
/// first. It leaves room for writes in progress: each client's rewrite goes at most one tick above
/// another's stamp. Safety does not depend on it: a rewrite that reaches the end has its register
/// relocated as well.
const MARGIN: u64 = 2 * MAX_CLIENTS as u64;

/// Safe-Guess, the protocol of the paper.
#[derive(Clone, Copy, Debug)]
pub struct SafeGuess;

impl Protocol for SafeGuess {
    const NAME: &'static str = "swarm";

    type Seen<'f, F: Fabric + 'f> = WeakRead<F::Reply<'f>>;
    type Posted<'f> = Guessed<'f>;

    #[inline(always)]
    fn try_read<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &Register,
        seen: &mut Option<WeakRead<F::Reply<'f>>>,
    ) -> Option<Value<'f, F>> {
        fast_path::read(group, register, seen)
    }

    async fn read_on<'f, F: Fabric, C: Clock>(
        group: &'f Group<F, C>,
        register: &mut Register,
        check: Check<'_>,
        seen: Option<WeakRead<F::Reply<'f>>>,
    ) -> Result<Found<'f, F>, Error> {
        let m = match seen {
            Some(weak) => max_register::read_on(group, register, check, Want::Value, weak).await?,
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
        site: &ReplicaSet,
        posted: &mut Option<Guessed<'f>>,
    ) -> Option<Written> {
        if !group.fabric().is_near() {
            return None;
        }
        // Round 1, which is all of the write if the guess proves fresh.
        let Some(guessed) = Guessed::new(group, register, &write) else {
            return Some(Written::Moved(Stamp::EMPTY));
        };
        let words = guessed.header.encode();
        // A guess is never a register's first stamp, whose buffer has another placement.
        if !fast_path::write(group, register, (guessed.w, site), &words, write.value) {
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
        // Round 1: the guess goes out; its chains READ what it must exceed. If an attempt posted it
        // before, this round finds its stamp there. G2: the write is done if no stamp of a majority
        // is larger.
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
        // G4: a refused write ended without effect, so this client's next write must not prove to a
        // reader that it took effect. After a relocation there is no next write to this register.
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

/// A write whose guess is posted, or is posted next.
pub struct Guessed<'f> {
    w: Stamp,
    header: BufferHeader,
    unfinished: Unfinished<'f>,
}

impl<'f> Guessed<'f> {
    /// Makes a guess for this write. `None` if timestamps run out: the register must be relocated
    /// first.
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

    /// Completes a write whose guess proved fresh.
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

/// Returns the first round of a write: its guess, with the buffer.
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

/// Returns a timestamp that is probably larger than any before it.
#[inline(always)]
fn guess<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register) -> Timestamp {
    let format = group.format();
    let age = group.now().saturating_sub(register.identity.created_at);
    // I5: a client's guesses only grow, whatever its clock says. A client that read the register
    // knows its first timestamp or a later one; a guess is above the first one in any case.
    let after = format.timestamp(register.last).0 + 1;
    Timestamp(format.ticks(age).max(after).max(Timestamp::FIRST.0 + 1).min(format.deleted().0))
}

/// Returns the stamp with which a register is created, in its first slot: its value is in `buffer`.
pub fn first_stamp(format: WordFormat, buffer: Pointer) -> Stamp {
    format.stamp(Timestamp::FIRST, buffer, StampFlags::VERIFIED)
}

/// Returns the stamp of a register that is created deleted, for a key that was deleted while it was
/// relocated (V6).
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

/// Marks a complete write as verified in the slots, and puts its value in place. Deferred: a reader
/// that arrives earlier resolves the write itself.
#[inline(always)]
fn finish<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    voters: NodeSet,
    stamp: Stamp,
    (header, value): (&BufferHeader, &[u8]),
) {
    let home = register.home();
    // M1: a stamp is verified only where this write's stamp is, and after its write to M ended.
    let voters = voters.holding(|node| register.own.at(node).same_write(stamp));
    for node in voters {
        let cas = raise(group, node, register, stamp.guessed(), stamp);
        if node == home {
            let head = in_place_head(stamp, header);
            put_in_place(group, register, &head, value, Some(cas));
        } else {
            group.fabric().post_deferred(node, &[cas]);
        }
    }
    for node in voters {
        register.own.saw(node, stamp);
    }
    register.observe(stamp);
}

/// Continues a write whose guess was not the largest stamp that its own chains saw.
async fn write_stale<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    w: Stamp,
    header: BufferHeader,
    write: Write<'_>,
) -> Result<Written, Error> {
    let format = group.format();
    group.count_slow();
    // Round 2 (G5): what this write lost to becomes stable. Otherwise a reader that loses its lock
    // to this write might never find anything newer, if that stamp's writer, its only node and this
    // client die.
    let read = max_register::read(group, register, Check::Identity, Want::Stamp).await;
    let m = match read {
        Err(Error::Moved) => return Ok(Written::Moved(w)),
        read => read?.stamp,
    };
    if m.same_write(w) {
        // No majority has what this write lost to as its maximum: the guess was the largest after
        // all.
        let voters = NodeSet::all(group.nodes());
        finish(group, register, voters, w.verified(), (&header, write.value));
        return Ok(Written::Done);
    }
    advance_clock(group, register, m);
    // Round 3 (G1): the writer replaces its guess only with the WRITE lock, so not if a reader has
    // locked the guess.
    let site = group.site(register, w);
    let lock = try_lock(group, register.home(), &site, write.number, LockMode::Write);
    let locked = lock.await?;
    if format.is_deleted(m) {
        return Ok(if locked { Written::Deleted } else { Written::Done });
    }
    if !locked {
        return Ok(Written::Done);
    }
    // Round 4 (G1): the same buffer under a timestamp above all earlier ones. M1: not as verified
    // until f + 1 nodes have it.
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

/// Advances a clock that is behind the stamp that a guess lost to.
fn advance_clock<F: Fabric, C: Clock>(group: &Group<F, C>, register: &Register, m: Stamp) {
    let format = group.format();
    if format.is_deleted(m) {
        return;
    }
    let stamped =
        register.identity.created_at.saturating_add(format.nanoseconds(format.timestamp(m)));
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

/// Returns a maximum that its writer cannot take back. Marks a rewrite as complete, as its writer
/// may be dead.
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

/// Continues a read that found a guess `m` that is not known to be complete (G3).
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
            // G3: seen twice: the guess stands if its writer has not taken it back.
            Some((_, before)) if before.same_write(m.stamp) => {
                let (site, home) = (group.site(register, m.stamp), register.home());
                let number = m.header.number;
                if try_lock_to_read(group, home, &site, number).await? {
                    confirm(group, register, &m);
                    return Ok(found(group, m.stamp, m.value));
                }
                is_lost = true;
            }
            // G3: a client writes a register once at a time, so its earlier write is complete.
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
            // A client that locks a guess to replace it has first made something larger stable, or
            // relocated the key.
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

/// Marks the write as verified in this reader's own slots, and puts its value in place. Deferred.
fn confirm<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &mut Register,
    m: &max_register::Maximum<'_, F>,
) {
    let stamp = m.stamp.verified();
    // I1: only where the buffer is, as a slot names no buffer that was not written at its node.
    let before = register.own;
    for node in m.holders.holding(|node| before.at(node) < stamp) {
        let cas = raise(group, node, register, before.at(node), stamp);
        match &m.value {
            Some(value) if node == register.home() => {
                let head = in_place_head(stamp, &m.header);
                put_in_place(group, register, &head, value, Some(cas));
            }
            _ => {
                group.fabric().post_deferred(node, &[cas]);
            }
        }
        register.own.saw(node, stamp);
    }
}

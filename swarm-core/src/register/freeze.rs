//! Freezing a register, so that its key can move to another one.
//!
//! A move sets the frozen bit of every stamp slot at a majority, by CAS that keeps the stamp. No
//! writer's CAS lands there afterwards: it expects a word without that bit. The largest of the
//! stamps so kept is the register's *last*, verified or not, and its value goes along. It all rests
//! on this: *what was complete had its stamp in slots of a majority before they were frozen*, so
//! every mover's majority shows it, or a larger one. Who meets a frozen slot returns nothing of what
//! it has in hand; the index says which mover's stamp counts, and a writer [learns](stands) from it
//! whether its write took effect.
//!
//! Roundtrips: two, one more for each CAS that a writer's came before, one to fetch the value.

use heapless::Vec;

use super::handle::{Check, Found, Register, Value, Write};
use super::in_n_out::{Fetched, state};
use super::look::look;
use super::max_register::{READ_TRIES, Without, fetch};
use super::replicas::{COMPLETIONS, Failed, Votes};
use super::timestamp_lock::{try_lock, try_lock_to_read};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Header, MAX_CLIENTS, Place, Predecessor, SLOTS, Shape, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::words::{LockMode, Stamp, WriteNumber};

/// Rounds at one node until its slots are frozen. One more for each stamp that comes in between:
/// once one of a node's slots is frozen, a client that shares another posts at most a guess, a
/// rewrite and what is verified of each before a READ shows it.
const TRIES: usize = 4 * (MAX_CLIENTS / SLOTS) + 2;

/// What a frozen register held, as far as one majority tells.
pub struct Last<'f, F: Fabric + 'f> {
    /// Its last stamp.
    pub stamp: Stamp,
    /// Its value; `None` if it is deleted.
    pub value: Option<Value<'f, F>>,
}

/// Freezes a majority of the register's replicas.
///
/// # Cancel safety
/// Dropping the future leaves some slots frozen: whoever meets them goes on with the move.
///
/// # Errors
/// [`Error::Gone`] if a majority holds another register there, or nothing; [`Error::NoMajority`];
/// [`Error::Contended`] if nodes that have its last value fall silent time and again; [`Error::Damaged`].
pub async fn freeze<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<Last<'f, F>, Error> {
    let (stamp, _, fetched) = freeze_and_fetch(group, register).await?;
    Ok(Last { stamp, value: fetched.map(Fetched::into_value) })
}

/// Freezes a majority of the register's replicas, one of which is frozen already, and reads what they hold:
/// for a read that has no memory to move the key, of a register that the index named within it.
///
/// What a majority's frozen slots hold stays there, and every mover's majority shows it or something
/// larger. So it was the value when the index named the register, or when it was written after that. A
/// guess is locked, as by every read: else its writer, who finds that the move took a larger stamp along,
/// would write it again.
///
/// `None` where no majority agrees, or where a guess was taken back; or where nodes are silent that hold a
/// guess's buffer: to freeze for that what has nowhere to go would help no one.
///
/// # Cancel safety
/// As [`freeze`].
///
/// # Errors
/// As [`freeze`].
pub async fn read_frozen<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<Option<Found<'f, F>>, Error> {
    match look(group, &mut { *register }, Check::Identity).await {
        Err(Error::Moved) => {}
        looked => return looked.map(|_| None),
    }
    let (stamp, holders, fetched) = freeze_and_fetch(group, register).await?;
    if holders.len() < group.majority() {
        return Ok(None);
    }
    let Some(fetched) = fetched else { return Ok(Some(Found::Deleted)) };
    if !stamp.is_verified() {
        let (site, number) = (group.site(register, stamp), fetched.header.number);
        match try_lock_to_read(group, register.home(), &site, number).await {
            Ok(true) => {}
            Ok(false) | Err(Error::Moved) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(Found::Value(fetched.into_value())))
}

/// A majority's last stamp, those of it who hold it, and its buffer unless it is a delete's.
async fn freeze_and_fetch<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<(Stamp, NodeSet, Option<Fetched<F::Reply<'f>>>), Error> {
    let mut without = Without::NOBODY;
    for _ in 0..READ_TRIES {
        let votes = freeze_slots(group, register).await?;
        let (stamp, holders) = (votes.last(), votes.holders);
        if without.proves_damage(stamp, holders) {
            return Err(Error::Damaged);
        }
        if stamp == Stamp::EMPTY {
            return Err(Error::Gone);
        }
        if group.format().is_deleted(stamp) {
            return Ok((stamp, holders, None));
        }
        match fetch(group, register, stamp, holders, register.capacity()).await? {
            Ok(fetched) => return Ok((stamp, holders, Some(fetched))),
            Err(by) => without = by,
        }
        group.count_retry();
    }
    Err(Error::Contended)
}

/// What a majority's slots hold now that all of them are frozen.
async fn freeze_slots<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
) -> Result<Votes, Error> {
    let first = group.preferred(register.home());
    for _ in 0..COMPLETIONS {
        let mut votes = Votes::new();
        let mut tries = [0; MAX_NODES];
        let step = |node: NodeId, reply: Option<F::Reply<'_>>| {
            let slots = register.place.at(node, group.nodes()).plus(register::SLOTS_AT);
            let look = Verb::Read { at: slots, words: register::STATE_WORDS };
            let Some(reply) = reply else { return Next::Post(group.fabric().post(node, &[look])) };
            let read = &reply[reply.len().saturating_sub(register::STATE_WORDS)..];
            let Some(max) = state(read, register.identity) else {
                votes.missing.insert(node);
                return Next::Missing;
            };
            let mut chain = Vec::<Verb<'_>, { SLOTS + 1 }>::new();
            for (slot, &held) in read.iter().enumerate().take(SLOTS) {
                if !Stamp(held).is_frozen() {
                    let freeze = (held, Stamp(held).frozen().0);
                    let cas = Verb::Cas { at: slots.plus(slot), expect: freeze.0, new: freeze.1 };
                    chain.push(cas).expect("a verb for each slot");
                }
            }
            // Only now: what a slot held before it was frozen may have grown since.
            if chain.is_empty() {
                votes.count(node, max);
                return Next::Vote;
            }
            tries[node.index()] += 1;
            if tries[node.index()] > TRIES {
                return Next::NoVote;
            }
            chain.push(look).expect("one more than the slots");
            Next::Post(group.fabric().post(node, &chain))
        };
        match group.settle(first, group.majority(), step).await {
            Ok(_) => return Ok(votes),
            Err(error) => {
                let missing = votes.missing;
                Failed { error, missing }.complete(group, register).await?;
            }
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

/// Whether a write that met a frozen slot took effect, where `stamp` is what it was posted under
/// last, and `origin` the stamp that the register's successor began with. If not it never will, and
/// is to be written again, under another number and in another buffer.
///
/// No roundtrip, or one for the lock.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn stands<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    write: Write<'_>,
    (stamp, origin): (Stamp, Stamp),
) -> Result<bool, Error> {
    if stamp == Stamp::EMPTY {
        return Ok(false);
    }
    // The very write that the successor began with.
    if group.format().pointer(origin) == write.buffer {
        return Ok(true);
    }
    // Nobody has returned it, or what it was returned from would be in the origin.
    if origin < stamp {
        return Ok(false);
    }
    // It came before the origin, with its lock.
    if stamp.is_verified() {
        return Ok(true);
    }
    // A guess: a reader may have settled that it stands. If not, none will.
    let site = group.site(register, stamp);
    let lock = try_lock(group, register.home(), &site, write.number, LockMode::Write);
    Ok(!lock.await?)
}

/// READs what the header of the register at `place` with this shape and number says
/// of its predecessor: `Some(None)` if it took no other's place. `None` if that register is no more.
/// One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn predecessor<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    place: &Place,
    shape: Shape,
    number: WriteNumber,
) -> Result<Option<Option<Predecessor>>, Error> {
    let header = shape.header_place(place);
    let mut found = None;
    group
        .settle(group.preferred(place.home), group.majority(), |node, reply| {
            let Some(reply) = reply else {
                let (at, words) = (header.at(node, group.nodes()), shape.header_words());
                return Next::Post(group.fabric().post(node, &[Verb::Read { at, words }]));
            };
            if let Some(header) = Header::decode(number, &reply) {
                found = Some(header.predecessor);
            }
            Next::Vote
        })
        .await?;
    Ok(found)
}

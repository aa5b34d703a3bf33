//! Freezing a register, so that its key can be relocated to another one.
//!
//! A relocation sets the frozen bit of every stamp slot at a majority, by CAS that keeps the stamp.
//! After that no writer's CAS succeeds there: it expects a word without that bit. The largest of
//! these stamps is the register's *last*, verified or not, and its value is relocated.
//! **Invariant (V1):** every complete write had its stamp in slots of a majority before they were
//! frozen, so every relocating client's majority shows it, or a larger one. A client that finds a
//! frozen slot returns nothing of that register. The index names the relocation that won, and a
//! writer [learns](took_effect) from it whether its write took effect.
//!
//! Roundtrips: two, one more for each CAS that a writer's CAS preceded, one to fetch the value.

use heapless::Vec;

use super::handle::{Check, Found, Register, Value, Write};
use super::in_n_out::{Fetched, state};
use super::max_register::{READ_TRIES, Without, fetch};
use super::replicas::{COMPLETIONS, Failed, Votes};
use super::timestamp_lock::{try_lock, try_lock_to_read};
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Header, Location, MAX_CLIENTS, Predecessor, SLOTS, Shape, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::register::weak_read::read_once;
use crate::words::{LockMode, Stamp, WriteNumber};

/// Rounds at one node until its slots are frozen. Each stamp that arrives meanwhile adds one. Once
/// one of a node's slots is frozen, each client that shares another slot soon finds that out by a
/// READ. Before that it posts at most a guess, a rewrite and the verified stamp of each.
const TRIES: usize = 4 * (MAX_CLIENTS / SLOTS) + 2;

/// What a frozen register held, as far as one majority shows.
pub struct Last<'f, F: Fabric + 'f> {
    /// Its last stamp.
    pub stamp: Stamp,
    /// Its value; `None` if it is deleted.
    pub value: Option<Value<'f, F>>,
}

/// Freezes a majority of the register's replicas.
///
/// # Cancel safety
/// Dropping the future leaves some slots frozen: the next client that finds them continues the
/// relocation.
///
/// # Errors
/// [`Error::Gone`] if a majority holds another register there, or nothing; [`Error::NoMajority`];
/// [`Error::Contended`] if nodes that have its last value fall silent repeatedly;
/// [`Error::Damaged`].
pub async fn freeze<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
) -> Result<Last<'f, F>, Error> {
    let (stamp, _, fetched) = freeze_and_fetch(group, register).await?;
    Ok(Last { stamp, value: fetched.map(Fetched::into_value) })
}

/// Freezes a majority of the register's replicas, one of which is frozen already, and reads what
/// they hold (V3a). It serves a read that has no memory to relocate the key, of a register that the
/// index named within that read.
///
/// What the frozen slots of a majority hold stays there, and every relocating client's majority
/// shows it or something larger. So it was the value when the index named the register, or was
/// written after that. A guess is locked, as by every read. Otherwise its writer, finding that the
/// relocation took a larger stamp along, would write it again.
///
/// Returns `None` if no majority agrees, if a guess was taken back, or if nodes that hold a guess's
/// buffer are silent: freezing a register that cannot be relocated would help no client.
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
    match read_once(group, &mut { *register }, Check::Identity).await {
        Err(Error::Moved) => {}
        looked => return looked.map(|_| None),
    }
    let (stamp, holders, fetched) = freeze_and_fetch(group, register).await?;
    // V3a: what only a minority holds is not returned.
    if holders.len() < group.majority() {
        return Ok(None);
    }
    let Some(fetched) = fetched else { return Ok(Some(Found::Deleted)) };
    // V3a, L1: a guess is returned only with its READ lock.
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

/// Returns a majority's last stamp, its holders among them, and its buffer unless it is a delete's.
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

/// Freezes all slots of a majority and returns what they hold.
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
            let read_once = Verb::Read { at: slots, words: register::STATE_WORDS };
            let Some(reply) = reply else {
                return Next::Post(group.fabric().post(node, &[read_once]));
            };
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
            // V1: only a READ after the freeze counts, as a slot may have grown before it was
            // frozen.
            if chain.is_empty() {
                votes.count(node, max);
                return Next::Vote;
            }
            tries[node.index()] += 1;
            if tries[node.index()] > TRIES {
                return Next::NoVote;
            }
            chain.push(read_once).expect("one more than the slots");
            Next::Post(group.fabric().post(node, &chain))
        };
        match group.collect_votes(first, group.majority(), step).await {
            Ok(_) => return Ok(votes),
            Err(error) => {
                let missing = votes.missing;
                Failed { error, missing }.complete(group, register).await?;
            }
        }
    }
    Err(Error::NoMajority { answered: 0, needed: group.majority() })
}

/// Returns whether a write that found a frozen slot took effect (V4). `stamp` is the one under
/// which it was last posted, `origin` the one with which the register's successor began. If false,
/// it never takes effect, and must be written again, under another number and in another buffer.
///
/// No roundtrip, or one for the lock.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn took_effect<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    write: Write<'_>,
    (stamp, origin): (Stamp, Stamp),
) -> Result<bool, Error> {
    if stamp == Stamp::EMPTY {
        return Ok(false);
    }
    // The successor began with this very write.
    if group.format().pointer(origin) == write.buffer {
        return Ok(true);
    }
    // No client has returned it: otherwise the origin would be at least as large.
    if origin < stamp {
        return Ok(false);
    }
    // It came before the origin, with its lock.
    if stamp.is_verified() {
        return Ok(true);
    }
    // A guess: a reader may have locked it. The WRITE lock, once won, means that none ever will
    // (L1).
    let site = group.site(register, stamp);
    let lock = try_lock(group, register.home(), &site, write.number, LockMode::Write);
    Ok(!lock.await?)
}

/// READs the predecessor from the header of the register at `place` with this shape and number:
/// `Some(None)` if it replaced no other, `None` if that register is gone. V5: an operation in
/// progress finds the successor of its register by following predecessors. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`].
pub async fn predecessor<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    place: &Location,
    shape: Shape,
    number: WriteNumber,
) -> Result<Option<Option<Predecessor>>, Error> {
    let header = shape.header_place(place);
    let mut found = None;
    group
        .collect_votes(group.preferred(place.home), group.majority(), |node, reply| {
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

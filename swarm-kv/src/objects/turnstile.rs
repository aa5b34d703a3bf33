//! The state of an object that clients hold and queue up for: holders, tokens, waiters.
//!
//! ```text
//! byte 0   mark, kind, version
//!      8   the last token
//!     16   [ waiters 16 | holders 16 | unsettled 1 | units 31 ]
//!     24   each holder: [ ticket 32 | weight 16 | slot 16 ], session, token
//!     ..   each waiter: [ ticket 32 | weight 16 | slot 16 ], session
//!     ..   zeros, up to a length of `LENGTHS`
//! ```
//!
//! It has so many *units*, of which each holder has its *weight*: a lock has one.
//!
//! **Invariants:** a holder ceases to be one only if it leaves, is evicted, or has ended (O1). Each new holder
//! has a token larger than all before it (O2). The one that came first is let in first: nobody is while another one
//! waits, and the front of the queue leaves it only to hold, because it gives up, or because it has ended (O3).
//! Once a holder was taken out, the object is *unsettled* until a later one reports that it is not (O7).
//!
//! Nothing here is shared: a change of the cell makes one state the next (Q1).

use smallvec::SmallVec;
use swarm_core::words::Incarnation;
use zerocopy::IntoBytes;

use crate::objects::kind::{HEADER, ObjectKind};
use crate::objects::seat::Seat;

/// Holders of one object at most.
pub const MAX_HOLDERS: usize = 32;
/// Clients that wait for one object in order of arrival, at most. More of them try again until there is room.
pub const MAX_WAITERS: usize = 32;

const HEAD: usize = HEADER + 16;
const UNSETTLED: u32 = 1 << 31;
const HOLDER: usize = 24;
const WAITER: usize = 16;
/// Up to the first of these lengths a value is as long as it has to be, and beyond that as long as one of
/// these: a cell grows by becoming another one, which should happen seldom.
const LENGTHS: [usize; 3] =
    [HEAD + HOLDER + 4 * WAITER, HEAD + HOLDER + MAX_WAITERS * WAITER, LONGEST];
/// The longest value.
pub(crate) const LONGEST: usize = HEAD + MAX_HOLDERS * HOLDER + MAX_WAITERS * WAITER;
/// Bytes that a new object's cell has room for.
pub(crate) const ROOM: usize = LENGTHS[0];

/// A client that holds an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Who it is.
    pub seat: Seat,
    /// Its token: larger than those of all holders before it.
    pub token: u64,
    /// Its part of the object's units.
    pub weight: u16,
}

/// A client that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiter {
    seat: Seat,
    weight: u16,
}

/// Who holds an object and who waits, at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueView {
    /// What the object is.
    pub kind: ObjectKind,
    /// The last token that was given out; 0 if none was.
    pub token: u64,
    /// Who holds it, the one with the smallest token first.
    pub holders: Vec<Holder>,
    /// Who waits, in order of arrival.
    pub waiters: Vec<Seat>,
}

impl QueueView {
    /// Returns what an object's value says; `None` if this is no value of an object that is held and queued for.
    #[must_use]
    pub fn of(value: &[u8]) -> Option<Self> {
        let kind = ObjectKind::of(value)?;
        if !kind.is_queued_for() {
            return None;
        }
        let Turnstile { token, holders, waiters, .. } = Turnstile::decode(kind, value)?;
        let waiters = waiters.iter().map(|waiter| waiter.seat).collect();
        Some(Self { kind, token, holders: holders.into_vec(), waiters })
    }
}

/// What became of one that entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It holds the object, with this token.
    Holds(u64),
    /// It is in the queue.
    Waits,
    /// It has no place.
    Outside,
    /// Nobody gets a place any more.
    Closed,
}

/// Who holds an object and who waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Turnstile {
    /// The last token that was given out.
    token: u64,
    units: u32,
    /// Whether a holder was taken out, and what it did is not settled yet.
    unsettled: bool,
    /// At most [`MAX_HOLDERS`].
    holders: SmallVec<[Holder; 1]>,
    /// At most [`MAX_WAITERS`].
    waiters: SmallVec<[Waiter; 1]>,
}

impl Turnstile {
    /// One of so many units, which nobody has ever held.
    pub(crate) fn new(units: u32) -> Self {
        let (holders, waiters) = (SmallVec::new(), SmallVec::new());
        Self { token: 0, units, unsettled: false, holders, waiters }
    }

    /// Returns what becomes of a place.
    pub(crate) fn standing(&self, seat: &Seat) -> Standing {
        if let Some(holder) = self.holders.iter().find(|holder| holder.seat == *seat) {
            return Standing::Holds(holder.token);
        }
        let waits = self.waiters.iter().any(|waiter| waiter.seat == *seat);
        match (waits, self.units) {
            (true, _) => Standing::Waits,
            (false, 0) => Standing::Closed,
            (false, _) => Standing::Outside,
        }
    }

    /// Whether nobody has ever held it or waited for it.
    pub(crate) fn is_unused(&self) -> bool {
        self.token == 0 && self.waiters.is_empty()
    }

    /// How many units it has.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Takes all places away, for good.
    pub(crate) fn close(&mut self) {
        self.units = 0;
        self.holders.clear();
        self.waiters.clear();
    }

    /// Whether there is a holder with this token.
    pub(crate) fn has(&self, token: u64) -> bool {
        self.holders.iter().any(|holder| holder.token == token)
    }

    /// Takes out holders that have ended, and lets in the next one.
    pub(crate) fn goes_on(&mut self, is_gone: &dyn Fn(&Seat) -> bool) {
        // O1: a holder that is only slow, or stopped, stays.
        self.takes_out(|holder| is_gone(&holder.seat));
        self.lets_in(is_gone);
    }

    /// Gives a place to one that has none: it holds the object if it can, else it waits if `queues` says so and
    /// there is room.
    pub(crate) fn enter(
        &mut self,
        (seat, weight): (Seat, u16),
        queues: bool,
        is_gone: &dyn Fn(&Seat) -> bool,
    ) {
        self.goes_on(is_gone);
        if self.standing(&seat) != Standing::Outside {
            return;
        }
        // O3: not past those that wait.
        if self.waiters.is_empty() && self.has_room(weight) {
            self.admit(seat, weight);
        } else if queues {
            if self.waiters.len() == MAX_WAITERS {
                self.waiters.retain(|waiter| !is_gone(&waiter.seat));
            }
            // The 33rd stays outside, and tries again.
            if self.waiters.len() < MAX_WAITERS {
                self.waiters.push(Waiter { seat, weight });
            }
        }
    }

    /// Takes a place away, and lets in the next one.
    pub(crate) fn leave(&mut self, seat: &Seat, is_gone: &dyn Fn(&Seat) -> bool) {
        // O4: nobody else's.
        self.holders.retain(|holder| holder.seat != *seat);
        self.waiters.retain(|waiter| waiter.seat != *seat);
        self.lets_in(is_gone);
    }

    /// Takes the place of the holder with this token away, and lets in the next one.
    pub(crate) fn evict(&mut self, token: u64, is_gone: &dyn Fn(&Seat) -> bool) {
        // O4: the one that holds it by now has another token.
        self.takes_out(|holder| holder.token == token);
        self.lets_in(is_gone);
    }

    /// Whether a holder was taken out since it was last settled.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Notes that what holders that were taken out did is settled.
    pub(crate) fn settles(&mut self) {
        self.unsettled = false;
    }

    fn takes_out(&mut self, is_out: impl Fn(&Holder) -> bool) {
        let before = self.holders.len();
        self.holders.retain(|holder| !is_out(holder));
        // O7: the next holder learns of it.
        self.unsettled |= self.holders.len() < before;
    }

    fn lets_in(&mut self, is_gone: &dyn Fn(&Seat) -> bool) {
        // O3: from the front.
        while let Some(&Waiter { seat, weight }) = self.waiters.first() {
            if is_gone(&seat) {
                self.waiters.remove(0);
            } else if self.has_room(weight) {
                self.waiters.remove(0);
                self.admit(seat, weight);
            } else {
                return;
            }
        }
    }

    fn has_room(&self, weight: u16) -> bool {
        let taken: u32 = self.holders.iter().map(|holder| u32::from(holder.weight)).sum();
        self.holders.len() < MAX_HOLDERS && taken.saturating_add(u32::from(weight)) <= self.units
    }

    fn admit(&mut self, seat: Seat, weight: u16) {
        // O2: for each holder, however the one before ceased to be one.
        self.token = self.token.saturating_add(1);
        let holder = Holder { seat, token: self.token, weight };
        self.holders.push(holder);
    }

    /// Returns the value of an object of this kind in this state.
    pub(crate) fn encode(&self, kind: ObjectKind) -> Vec<u8> {
        self.encode_in(kind, Vec::new())
    }

    /// The same, in the place of other bytes.
    pub(crate) fn encode_in(&self, kind: ObjectKind, mut value: Vec<u8>) -> Vec<u8> {
        let used = HEAD + self.holders.len() * HOLDER + self.waiters.len() * WAITER;
        let length = LENGTHS.into_iter().find(|&length| used <= length).unwrap_or(LONGEST);
        let length = if length == LENGTHS[0] { used } else { length };
        value.clear();
        value.reserve_exact(length);
        let counts = [self.holders.len(), self.waiters.len()].map(|count| count as u64);
        let units = u64::from(self.units) | u64::from(if self.unsettled { UNSETTLED } else { 0 });
        let counts = units | counts[0] << 32 | counts[1] << 48;
        put(&mut value, [u64::from_le_bytes(kind.header()), self.token, counts]);
        for Holder { seat, token, weight } in &self.holders {
            put(&mut value, [place(seat, *weight), seat.session.0, *token]);
        }
        for Waiter { seat, weight } in &self.waiters {
            put(&mut value, [place(seat, *weight), seat.session.0]);
        }
        value.resize(length, 0);
        value
    }

    /// Returns what the value of an object of this kind says. `None` if it is none.
    pub(crate) fn decode(kind: ObjectKind, value: &[u8]) -> Option<Self> {
        let (words, _) = value.as_chunks::<8>();
        let (&[header, token, counts], words) = words.split_first_chunk()?;
        if header != kind.header() {
            return None;
        }
        let [token, counts] = [token, counts].map(u64::from_le_bytes);
        let (units, unsettled) = (counts as u32 & !UNSETTLED, counts as u32 & UNSETTLED != 0);
        let mut all = Self { token, unsettled, ..Self::new(units) };
        let (holders, waiters) = ((counts >> 32) as u16 as usize, (counts >> 48) as usize);
        if holders > MAX_HOLDERS || waiters > MAX_WAITERS {
            return None;
        }
        let (of_holders, words) = words.split_at_checked(3 * holders)?;
        for words in of_holders.as_chunks().0 {
            let [place, session, token] = words.map(u64::from_le_bytes);
            let (seat, weight) = placed(place, session);
            all.holders.push(Holder { seat, token, weight });
        }
        for words in words.get(..2 * waiters)?.as_chunks().0 {
            let [place, session] = words.map(u64::from_le_bytes);
            let (seat, weight) = placed(place, session);
            all.waiters.push(Waiter { seat, weight });
        }
        Some(all)
    }
}

/// Adds these words to a value.
#[inline]
fn put<const N: usize>(value: &mut Vec<u8>, words: [u64; N]) {
    value.extend_from_slice(words.map(u64::to_le).as_bytes());
}

fn place(seat: &Seat, weight: u16) -> u64 {
    seat.slot as u64 & 0xffff | u64::from(weight) << 16 | u64::from(seat.ticket) << 32
}

fn placed(place: u64, session: u64) -> (Seat, u16) {
    let (slot, ticket) = ((place & 0xffff) as usize, (place >> 32) as u32);
    (Seat { slot, session: Incarnation(session), ticket }, (place >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: ObjectKind = ObjectKind::Lock;

    fn seat(slot: usize) -> Seat {
        Seat { slot, session: Incarnation(slot as u64 + 100), ticket: slot as u32 + 7 }
    }

    fn alive(_: &Seat) -> bool {
        false
    }

    /// A lock that the client in slot 0 holds, and for which so many others wait.
    fn with_waiters(waiters: usize) -> Turnstile {
        let mut lock = Turnstile::new(1);
        (0..=waiters).for_each(|slot| lock.enter((seat(slot), 1), true, &alive));
        lock
    }

    #[test]
    fn states_come_back_as_they_went() {
        for waiters in 0..=MAX_WAITERS {
            let lock = with_waiters(waiters);
            let value = lock.encode(LOCK);
            assert!(value.len() <= ROOM || LENGTHS.contains(&value.len()));
            assert_eq!(Turnstile::decode(LOCK, &value), Some(lock));
            assert_eq!(Turnstile::decode(LOCK, &value[..32]), None);
        }
        assert_eq!(Turnstile::decode(LOCK, b"a value"), None);
    }

    #[test]
    fn who_came_first_is_let_in_first_and_each_token_is_larger() {
        let mut lock = with_waiters(MAX_WAITERS);
        lock.enter((seat(40), 1), true, &alive);
        assert_eq!(lock.standing(&seat(40)), Standing::Outside, "the 33rd");
        for slot in 0..=MAX_WAITERS {
            assert_eq!(lock.standing(&seat(slot)), Standing::Holds(slot as u64 + 1));
            // Nobody gets in front of those that wait.
            lock.enter((seat(50), 1), false, &alive);
            assert_eq!(lock.standing(&seat(50)), Standing::Outside);
            lock.leave(&seat(slot), &alive);
        }
        lock.enter((seat(50), 1), false, &alive);
        assert_eq!(lock.standing(&seat(50)), Standing::Holds(MAX_WAITERS as u64 + 2));
    }

    #[test]
    fn a_holder_that_lives_stays_and_one_that_ended_is_followed_by_one_that_lives() {
        let mut lock = with_waiters(3);
        let before = lock.clone();
        lock.goes_on(&|it| it.slot > 1);
        assert_eq!(lock, before, "one that waits behind another one is in nobody's way");
        lock.goes_on(&|it| it.slot < 2);
        assert_eq!(lock.standing(&seat(2)), Standing::Holds(2));
        assert_eq!(lock.standing(&seat(1)), Standing::Outside);
        assert_eq!(lock.standing(&seat(3)), Standing::Waits);
    }

    #[test]
    fn only_the_own_place_is_left_and_only_the_named_one_evicted() {
        let mut lock = with_waiters(1);
        lock.evict(1, &alive);
        let after = lock.clone();
        assert_eq!(lock.standing(&seat(1)), Standing::Holds(2));
        lock.leave(&seat(0), &alive);
        lock.evict(1, &alive);
        assert_eq!(lock, after, "it lost its place before");
    }

    /// One that waits and has ended took up the room of one that lives.
    #[test]
    fn who_ended_makes_room_in_a_full_queue() {
        let mut lock = with_waiters(MAX_WAITERS);
        lock.enter((seat(40), 1), true, &|it| it.slot == 9);
        assert_eq!(lock.standing(&seat(40)), Standing::Waits);
        assert_eq!(lock.standing(&seat(9)), Standing::Outside);
    }

    /// Many hold a part each, and one that wants all is not starved.
    #[test]
    fn one_that_wants_all_comes_in_its_turn() {
        let mut all = Turnstile::new(4);
        (0..3).for_each(|slot| all.enter((seat(slot), 1), true, &alive));
        all.enter((seat(3), 4), true, &alive);
        all.enter((seat(4), 1), true, &alive);
        assert_eq!(all.standing(&seat(4)), Standing::Waits, "behind the one that wants all");
        (0..3).for_each(|slot| all.leave(&seat(slot), &alive));
        assert_eq!(all.standing(&seat(3)), Standing::Holds(4));
        assert_eq!(all.standing(&seat(4)), Standing::Waits);
        all.leave(&seat(3), &alive);
        assert_eq!(all.standing(&seat(4)), Standing::Holds(5));
    }
}

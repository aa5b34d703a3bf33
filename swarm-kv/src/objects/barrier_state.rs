//! The state of a barrier: its members, and who of them has arrived.
//!
//! ```text
//! byte 0   mark, kind, version
//!      8   the generation: how often it has opened
//!     16   [ awaited 16 | members 16 | parties 32 ]
//!     24   each member: [ ticket 32 | has arrived 16 | slot 16 ], session
//! ```
//!
//! **Invariants:** it opens only when nobody is awaited that has not joined yet, and every member has arrived in this
//! generation (O6). A member ceases to be one only if it leaves, is evicted, or has ended (O1).

use swarm_core::words::Incarnation;

use crate::objects::seat::Seat;

/// Members of one barrier at most.
pub const MAX_MEMBERS: usize = 32;
/// So few that they need no memory of their own.
type Few<T, const MOST: usize> = heapless::Vec<T, MOST>;

const HEAD: usize = 16;
const MEMBER: usize = 16;
/// Bytes of the longest state.
pub(crate) const LONGEST: usize = HEAD + MAX_MEMBERS * MEMBER;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Member {
    seat: Seat,
    has_arrived: bool,
}

/// Who meets at a barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meeting {
    pub(crate) generation: u64,
    pub(crate) parties: u32,
    /// How many of those have yet to join.
    awaited: u32,
    members: Few<Member, MAX_MEMBERS>,
}

impl Meeting {
    /// One that so many parties have to join before it opens for the first time.
    pub(crate) fn new(parties: u32) -> Self {
        Self { generation: 0, parties, awaited: parties, members: Few::new() }
    }

    pub(crate) fn has(&self, seat: &Seat) -> bool {
        self.members.iter().any(|member| member.seat == *seat)
    }

    pub(crate) fn members(&self) -> Vec<Seat> {
        self.members.iter().map(|member| member.seat).collect()
    }

    /// Makes one a member if there is room. It is awaited from this generation on.
    pub(crate) fn join(&mut self, seat: Seat, is_gone: &dyn Fn(&Seat) -> bool) {
        if self.has(&seat) {
            return;
        }
        if self.members.is_full() {
            self.members.retain(|member| !is_gone(&member.seat));
        }
        if self.members.push(Member { seat, has_arrived: false }).is_ok() {
            self.awaited = self.awaited.saturating_sub(1);
        }
    }

    /// Notes that a member has arrived in this generation, unless that is over.
    pub(crate) fn arrive(&mut self, seat: &Seat, generation: u64) {
        if self.generation == generation
            && let Some(member) = self.members.iter_mut().find(|member| member.seat == *seat)
        {
            member.has_arrived = true;
        }
    }

    /// Takes members out that have ended, and opens if nobody is awaited any more.
    pub(crate) fn goes_on(&mut self, is_gone: &dyn Fn(&Seat) -> bool) {
        // O1: only a member that has not arrived is waited for.
        self.members.retain(|member| member.has_arrived || !is_gone(&member.seat));
        // O6: all of them.
        let is_complete = self.awaited == 0 && self.members.iter().all(|it| it.has_arrived);
        if is_complete && !self.members.is_empty() {
            self.generation = self.generation.saturating_add(1);
            self.members.iter_mut().for_each(|member| member.has_arrived = false);
        }
    }

    /// Takes a member out.
    pub(crate) fn leave(&mut self, seat: &Seat) {
        self.members.retain(|member| member.seat != *seat);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut state = Vec::with_capacity(HEAD + self.members.len() * MEMBER);
        let mut put = |word: u64| state.extend_from_slice(&word.to_le_bytes());
        put(self.generation);
        let counts = (u64::from(self.awaited) & 0xffff) << 48 | (self.members.len() as u64) << 32;
        put(u64::from(self.parties) | counts);
        for Member { seat, has_arrived } in &self.members {
            let place = seat.slot as u64 & 0xffff | u64::from(*has_arrived) << 16;
            put(place | u64::from(seat.ticket) << 32);
            put(seat.session.0);
        }
        state
    }

    /// Returns what a state says. `None` if it is none.
    pub(crate) fn decode(state: &[u8]) -> Option<Self> {
        let (words, _) = state.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (generation, counts) = (words.next()?, words.next()?);
        let awaited = (counts >> 48) as u32;
        let mut all = Self { generation, awaited, ..Self::new(counts as u32) };
        for _ in 0..counts >> 32 & 0xffff {
            let (place, session) = (words.next()?, Incarnation(words.next()?));
            let (slot, ticket) = ((place & 0xffff) as usize, (place >> 32) as u32);
            let seat = Seat { slot, session, ticket };
            all.members.push(Member { seat, has_arrived: place >> 16 & 1 != 0 }).ok()?;
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(slot: usize) -> Seat {
        Seat { slot, session: Incarnation(slot as u64 + 100), ticket: slot as u32 }
    }

    fn alive(_: &Seat) -> bool {
        false
    }

    #[test]
    fn it_opens_when_all_have_joined_and_arrived() {
        let mut meeting = Meeting::new(3);
        for slot in 0..2 {
            meeting.join(seat(slot), &alive);
            meeting.arrive(&seat(slot), 0);
            meeting.goes_on(&alive);
        }
        assert_eq!(meeting.generation, 0, "one has not joined");
        meeting.join(seat(2), &alive);
        meeting.goes_on(&alive);
        assert_eq!(meeting.generation, 0, "it has not arrived");
        assert_eq!(Meeting::decode(&meeting.encode()), Some(meeting.clone()));
        meeting.arrive(&seat(2), 0);
        meeting.goes_on(&alive);
        assert_eq!(meeting.generation, 1);
        // One that learns late that it has opened arrives for nothing.
        meeting.arrive(&seat(0), 0);
        meeting.arrive(&seat(1), 1);
        meeting.arrive(&seat(2), 1);
        meeting.goes_on(&alive);
        assert_eq!(meeting.generation, 1);
        meeting.arrive(&seat(0), 1);
        meeting.goes_on(&alive);
        assert_eq!(meeting.generation, 2);
    }

    #[test]
    fn who_has_ended_is_not_waited_for_and_who_lives_is() {
        let mut meeting = Meeting::new(3);
        (0..3).for_each(|slot| meeting.join(seat(slot), &alive));
        meeting.arrive(&seat(0), 0);
        meeting.goes_on(&|it| it.slot == 1);
        assert_eq!((meeting.generation, meeting.has(&seat(1))), (0, false));
        meeting.arrive(&seat(2), 0);
        meeting.goes_on(&alive);
        assert_eq!((meeting.generation, meeting.members()), (1, vec![seat(0), seat(2)]));
        meeting.leave(&seat(2));
        meeting.arrive(&seat(0), 1);
        meeting.goes_on(&alive);
        assert_eq!(meeting.generation, 2);
    }
}

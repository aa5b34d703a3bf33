//! What a memory node's daemon remembers: which pool it belongs to, and who may act as a client
//! there. A plain state machine; [`server`](super::server) speaks for it.
//!
//! The invariant: a slot has at most one holder, and whoever lost it was fenced before the daemon
//! said so: its queue pairs are without access, so nothing that it posts takes effect at this node any
//! more. Incarnations only grow: the daemon grants each at most once, and none below the highest
//! that it has seen. A pool's clients go by majorities of daemons, any two of which share one, so
//! what holds at each daemon holds for the pool.
//!
//! The ledger lives and dies with the node's memory: a daemon that starts again knows no pool, and
//! so serves none.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use swarm_core::words::WriteNumber;

use super::epochs::{Epochs, Heard, Said, Standing};
use super::error::Error;
use super::label;
use super::record::{Id, NodeEntry, PoolRecord};

/// What the ledger has done to the queue pairs and the memory.
pub trait Body: Send {
    /// The node belongs to `record` now, as number `node`: it may serve.
    ///
    /// # Errors
    /// Why it cannot.
    fn enlist(&mut self, record: &PoolRecord, node: u8) -> Result<(), String>;
    /// The node belongs to no pool any more: all connections end, its memory is as new, and it has a
    /// new life.
    ///
    /// # Errors
    /// Why it cannot. It belongs to no pool then, either.
    fn release(&mut self) -> Result<Id, String>;
    /// Takes the access flags off the queue pairs of `client` in all its lives up to `incarnation`,
    /// and refuses these from now on. Says how many connections that were.
    fn fence(&mut self, client: usize, incarnation: u64) -> usize;
}

/// A client slot's holder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Its slot.
    pub slot: usize,
    /// Its life.
    pub incarnation: u64,
    /// Drawn for this claim. Two that ask at the same time may ask for the same slot and life: who
    /// is refused must not let go of what the other one got.
    pub token: Id,
    /// Host and process, for people.
    pub label: String,
}

impl Holder {
    /// This process, in a slot and life that it is about to ask for.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(slot: usize, incarnation: u64) -> Result<Self, Error> {
        Ok(Self { slot, incarnation, token: Id::random()?, label: label(std::process::id()) })
    }
}

/// Why a claim was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// It belongs to another pool, or to none.
    #[error("it belongs to {}", pool.map_or("no pool; was it started again?".to_owned(), |id| format!("another pool (id {id})")))]
    OtherPool {
        /// The pool that it belongs to.
        pool: Option<Id>,
    },
    /// The slot is held.
    #[error("the client slot is held by {} (incarnation {})", .0.label, .0.incarnation)]
    Held(Holder),
    /// The incarnation is not above those that were given out.
    #[error("incarnation {highest} has been given out already")]
    Stale {
        /// The highest of them.
        highest: u64,
    },
    /// The client was evicted.
    #[error("this client was evicted")]
    Evicted,
    /// There is no such slot, or there are no such incarnations.
    #[error("there is no such client")]
    Bounds,
    /// The queue pairs or the memory failed.
    #[error("{0}")]
    Failed(String),
}

struct Membership {
    record: PoolRecord,
    node: u8,
    /// The highest incarnation that was seen.
    highest: u64,
    holders: BTreeMap<usize, Holder>,
    /// For each slot, all incarnations up to this one are fenced.
    fenced: BTreeMap<usize, u64>,
    epochs: Epochs,
}

/// What a daemon remembers.
pub struct Ledger<B> {
    entry: NodeEntry,
    member: Option<Membership>,
    body: B,
}

impl<B: Body> Ledger<B> {
    /// A daemon that belongs to no pool.
    pub fn new(entry: NodeEntry, body: B) -> Self {
        Self { entry, member: None, body }
    }

    /// Who it is.
    pub fn entry(&self) -> &NodeEntry {
        &self.entry
    }

    /// The queue pairs and the memory.
    pub fn body(&self) -> &B {
        &self.body
    }

    /// The pool that it belongs to, and its number there.
    pub fn membership(&self) -> Option<(&PoolRecord, u8)> {
        self.member.as_ref().map(|member| (&member.record, member.node))
    }

    /// Who holds a slot.
    pub fn holders(&self) -> Vec<Holder> {
        self.member.iter().flat_map(|member| member.holders.values().cloned()).collect()
    }

    /// The highest incarnation that was seen.
    pub fn highest(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.highest)
    }

    /// Makes the daemon `node` of the pool. Asked again for the same, it says yes again.
    ///
    /// # Errors
    /// It belongs to another pool; the record names another node; the memory does not do.
    pub fn enlist(&mut self, record: PoolRecord, node: u8) -> Result<(), Refusal> {
        if let Some(member) = &self.member {
            let same = member.record == record && member.node == node;
            let pool = Some(member.record.id);
            return if same { Ok(()) } else { Err(Refusal::OtherPool { pool }) };
        }
        record.geometry().map_err(|error| Refusal::Failed(error.to_string()))?;
        if record.nodes.get(usize::from(node)).map(|entry| entry.life) != Some(self.entry.life) {
            return Err(Refusal::Failed(format!(
                "the pool's node {node} is not this daemon with this memory; was it started again?"
            )));
        }
        self.body.enlist(&record, node).map_err(Refusal::Failed)?;
        let (holders, fenced, epochs) = Default::default();
        self.member = Some(Membership { record, node, highest: 0, holders, fenced, epochs });
        Ok(())
    }

    /// Takes the daemon out of the pool, and forgets what its memory held.
    ///
    /// # Errors
    /// It belongs to another pool.
    pub fn release(&mut self, pool: Id) -> Result<(), Refusal> {
        self.of(pool)?;
        self.member = None;
        self.entry.life = self.body.release().map_err(Refusal::Failed)?;
        Ok(())
    }

    /// Gives a free slot to a client in a life that nobody had.
    ///
    /// # Errors
    /// The slot is held, or the incarnation is not new.
    pub fn claim(&mut self, pool: Id, claim: Holder) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        check(member, &claim)?;
        if let Some(holder) = member.holders.get(&claim.slot) {
            return Err(Refusal::Held(holder.clone()));
        }
        if claim.incarnation <= member.highest {
            return Err(Refusal::Stale { highest: member.highest });
        }
        member.highest = claim.incarnation;
        member.holders.insert(claim.slot, claim);
        Ok(())
    }

    /// Gives out so many incarnations that nobody had, for clients that live on under them.
    ///
    /// # Errors
    /// They are not new, or there are no such.
    pub fn draw(&mut self, pool: Id, drawn: &Range<u64>) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        let incarnations = 1..=WriteNumber::LAST_INCARNATION.0;
        if drawn.is_empty() || !incarnations.contains(&(drawn.end - 1)) {
            return Err(Refusal::Bounds);
        }
        if drawn.start <= member.highest {
            return Err(Refusal::Stale { highest: member.highest });
        }
        member.highest = drawn.end - 1;
        Ok(())
    }

    /// Takes note of a client that got its slot elsewhere (in etcd), and fences whoever held it in
    /// an earlier life.
    ///
    /// # Errors
    /// A later life holds the slot, or this one was evicted.
    pub fn admit(&mut self, pool: Id, client: Holder) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        check(member, &client)?;
        if let Some(later) = member
            .holders
            .get(&client.slot)
            .filter(|holder| holder.incarnation > client.incarnation)
        {
            return Err(Refusal::Held(later.clone()));
        }
        member.highest = member.highest.max(client.incarnation);
        let before = client.incarnation - 1;
        member.fenced.insert(client.slot, before);
        let slot = client.slot;
        member.holders.insert(slot, client);
        self.body.fence(slot, before);
        Ok(())
    }

    /// A claim is given back that too few other daemons granted. Another client may have got the same
    /// slot from those, in the same life or an earlier one: nothing is remembered of this one.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn give_back(&mut self, pool: Id, slot: usize, token: Id) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        if member.holders.get(&slot).is_some_and(|holder| holder.token == token) {
            member.holders.remove(&slot);
        }
        Ok(())
    }

    /// A client leaves of its own accord.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn leave(&mut self, pool: Id, slot: usize, token: Id) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        if let Some(holder) = member.holders.get(&slot).filter(|holder| holder.token == token) {
            member.epochs.leave(slot, holder.incarnation);
            member.holders.remove(&slot);
        }
        Ok(())
    }

    /// Takes in how far a client is, which is its slot's holder from here on if it was not, and says how
    /// far all are.
    ///
    /// # Errors
    /// A later life holds the slot, or this one was evicted.
    pub fn tell(&mut self, pool: Id, client: Holder, said: &Said) -> Result<Heard, Refusal> {
        let (slot, incarnation) = (client.slot, client.incarnation);
        let member = self.of(pool)?;
        if member.epochs.has_left(slot, incarnation) {
            // It said so before it left, and is heard late.
            return Err(Refusal::Evicted);
        }
        if member.holders.get(&slot) != Some(&client) {
            self.admit(pool, client)?;
        }
        let member = self.of(pool)?;
        member.epochs.hear(slot, incarnation, said);
        let clients = member.holders.values().map(|holder| (holder.slot, holder.incarnation));
        Ok(member.epochs.answer(clients, &member.fenced))
    }

    /// The latest epoch that it has heard of, and how far each holder of a slot is.
    pub fn standings(&self) -> (u64, Vec<Standing>) {
        let Some(member) = &self.member else { return (0, Vec::new()) };
        let standing = |it: &Holder| member.epochs.standing(it.slot, it.incarnation);
        (member.epochs.epoch(), member.holders.values().map(standing).collect())
    }

    /// Evicts a client in all its lives up to `incarnation`. Says how many connections it had.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn fence(&mut self, pool: Id, slot: usize, incarnation: u64) -> Result<usize, Refusal> {
        let member = self.of(pool)?;
        let fenced = member.fenced.entry(slot).or_default();
        *fenced = incarnation.max(*fenced);
        // Fenced before it is said that the slot is free.
        let connections = self.body.fence(slot, incarnation);
        let member = self.of(pool)?;
        if member.holders.get(&slot).is_some_and(|holder| holder.incarnation <= incarnation) {
            member.holders.remove(&slot);
        }
        Ok(connections)
    }

    fn of(&mut self, pool: Id) -> Result<&mut Membership, Refusal> {
        let ours = self.member.as_ref().map(|member| member.record.id);
        let member = self.member.as_mut().filter(|member| member.record.id == pool);
        member.ok_or(Refusal::OtherPool { pool: ours })
    }
}

fn check(member: &Membership, client: &Holder) -> Result<(), Refusal> {
    let incarnations = 1..=WriteNumber::LAST_INCARNATION.0;
    if client.slot >= member.record.max_clients || !incarnations.contains(&client.incarnation) {
        return Err(Refusal::Bounds);
    }
    if member.fenced.get(&client.slot).is_some_and(|&fenced| client.incarnation <= fenced) {
        return Err(Refusal::Evicted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::PoolWishes;

    const WISHES: PoolWishes =
        PoolWishes { nodes: 1, capacity: 64 << 20, max_clients: 4, slots: 6 };

    #[derive(Default)]
    struct Log(Vec<(usize, u64)>);

    impl Body for Log {
        fn enlist(&mut self, _: &PoolRecord, _: u8) -> Result<(), String> {
            Ok(())
        }
        fn release(&mut self) -> Result<Id, String> {
            Ok(Id(8))
        }
        fn fence(&mut self, client: usize, incarnation: u64) -> usize {
            self.0.push((client, incarnation));
            1
        }
    }

    fn holder(slot: usize, incarnation: u64) -> Holder {
        let token = Id(incarnation.into());
        Holder { slot, incarnation, token, label: format!("host {incarnation}") }
    }

    fn ledger() -> (Ledger<Log>, Id) {
        let life = Id(7);
        let address = "127.0.0.1:7471".parse().expect("it is an address");
        let entry = NodeEntry { name: "a".into(), address, life, capacity: 64 << 20 };
        let record =
            PoolRecord::new("a".into(), vec![entry.clone()], &WISHES).expect("it is sound");
        let mut ledger = Ledger::new(entry, Log::default());
        ledger.enlist(record.clone(), 0).expect("it is free");
        (ledger, record.id)
    }

    #[test]
    fn a_slot_has_one_holder_and_an_incarnation_is_given_out_once() {
        let (mut ledger, pool) = ledger();
        ledger.claim(pool, holder(0, 5)).expect("it is free");
        assert_eq!(ledger.claim(pool, holder(0, 6)), Err(Refusal::Held(holder(0, 5))));
        assert_eq!(ledger.claim(pool, holder(1, 5)), Err(Refusal::Stale { highest: 5 }));
        assert_eq!(ledger.claim(pool, holder(4, 6)), Err(Refusal::Bounds));
        ledger.leave(pool, 0, Id(5)).expect("it belongs to the pool");
        assert_eq!(ledger.claim(pool, holder(0, 4)), Err(Refusal::Stale { highest: 5 }));
        ledger.claim(pool, holder(0, 6)).expect("it is free again");
        ledger.leave(pool, 0, Id(5)).expect("it belongs to the pool");
        assert_eq!(ledger.holders(), [holder(0, 6)], "a former life cannot let go of the slot");
    }

    #[test]
    fn what_is_drawn_is_nobody_elses() {
        let (mut ledger, pool) = ledger();
        ledger.claim(pool, holder(0, 5)).expect("it is free");
        assert_eq!(ledger.draw(pool, &(5..9)), Err(Refusal::Stale { highest: 5 }));
        ledger.draw(pool, &(6..9)).expect("they are new");
        assert_eq!(ledger.draw(pool, &(8..12)), Err(Refusal::Stale { highest: 8 }));
        assert_eq!(ledger.claim(pool, holder(1, 8)), Err(Refusal::Stale { highest: 8 }));
        ledger.claim(pool, holder(1, 9)).expect("it is new");
        let last = WriteNumber::LAST_INCARNATION.0;
        assert_eq!(ledger.draw(pool, &(last..last + 2)), Err(Refusal::Bounds));
        assert_eq!(ledger.draw(pool, &(20..20)), Err(Refusal::Bounds));
        ledger.draw(pool, &(last..last + 1)).expect("it is the last one");
    }

    /// Two ask for one slot, both in the same life. One is granted it here, fails elsewhere and gives it
    /// back; the other one has it from the other daemons, and is alive: it was taken for one that left.
    #[test]
    fn who_gives_a_claim_back_has_not_left_for_the_one_that_got_the_slot() {
        let (mut ledger, pool) = ledger();
        let elsewhere = Holder { token: Id(77), ..holder(0, 5) };
        ledger.claim(pool, holder(0, 5)).expect("it is free");
        ledger.give_back(pool, 0, Id(77)).expect("it belongs to the pool");
        assert_eq!(ledger.holders(), [holder(0, 5)], "another one's");
        ledger.give_back(pool, 0, Id(5)).expect("it belongs to the pool");
        assert!(ledger.holders().is_empty());
        let said = Said { epoch: 3, renewed: 0, reached: 2 };
        let heard = ledger.tell(pool, elsewhere.clone(), &said).expect("it has its slot");
        assert_eq!(heard.left, []);
        assert_eq!(heard.clients, [Standing { slot: 0, incarnation: 5, reached: 2 }]);
        assert_eq!(ledger.holders(), [elsewhere]);
    }

    #[test]
    fn who_is_evicted_is_fenced_and_does_not_come_back() {
        let (mut ledger, pool) = ledger();
        ledger.claim(pool, holder(2, 3)).expect("it is free");
        assert_eq!(ledger.fence(pool, 2, 3), Ok(1));
        assert_eq!(ledger.body().0, [(2, 3)]);
        assert!(ledger.holders().is_empty());
        assert_eq!(ledger.admit(pool, holder(2, 3)), Err(Refusal::Evicted));
        assert_eq!(ledger.claim(pool, holder(2, 3)), Err(Refusal::Evicted));
        ledger.claim(pool, holder(2, 4)).expect("it is another life");
        assert_eq!(ledger.fence(pool, 2, 3), Ok(1), "late, and of the former life alone");
        assert_eq!(ledger.holders(), [holder(2, 4)]);
    }

    #[test]
    fn whoever_is_admitted_fences_the_slot_s_former_lives() {
        let (mut ledger, pool) = ledger();
        ledger.admit(pool, holder(1, 8)).expect("it is new");
        ledger.admit(pool, holder(1, 8)).expect("it is asked for again");
        ledger.admit(pool, holder(1, 9)).expect("it is later");
        assert_eq!(ledger.body().0.last(), Some(&(1, 8)));
        assert_eq!(ledger.admit(pool, holder(1, 8)), Err(Refusal::Evicted));
        assert_eq!(ledger.claim(pool, holder(0, 9)), Err(Refusal::Stale { highest: 9 }));
    }

    #[test]
    fn a_daemon_belongs_to_one_pool_and_never_with_other_memory() {
        let (mut ledger, pool) = ledger();
        let entry = ledger.entry().clone();
        let other = PoolRecord::new("a".into(), vec![entry.clone()], &WISHES).expect("it is sound");
        let refused = ledger.enlist(other.clone(), 0);
        assert_eq!(refused, Err(Refusal::OtherPool { pool: Some(pool) }));
        assert!(ledger.claim(other.id, holder(0, 1)).is_err());
        ledger.release(pool).expect("it belongs to it");
        let gone = ledger.claim(pool, holder(0, 9));
        assert_eq!(gone, Err(Refusal::OtherPool { pool: None }));
        assert_eq!(ledger.entry().life, Id(8));
        assert!(matches!(ledger.enlist(other, 0), Err(Refusal::Failed(_))), "another life");
    }
}

//! The state of a memory node's daemon: the pool that it belongs to, and the clients that may act
//! there. A plain state machine; [`server`](crate::control::daemon::server) serves requests from
//! it.
//!
//! **Invariant:** a client slot has at most one client, and the daemon reports a slot as free only
//! after it fenced the evicted client: the client's queue pairs have no access, so nothing that it
//! posts takes effect at this node any more.
//!
//! **Invariant:** incarnations only grow: the daemon grants each at most once, and none below the
//! highest that it has seen.
//!
//! Clients need a majority of the daemons. Any two majorities share a daemon, so what holds at each
//! daemon holds for the pool.
//!
//! This state lasts as long as the node's memory: a restarted daemon knows no pool, and so serves
//! none.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use swarm_core::words::WriteNumber;

use crate::control::daemon::epochs::{ClientEpoch, EpochReply, EpochReport, Epochs};
use crate::control::descriptor::{Id, NodeEntry, PoolDescriptor};
use crate::control::error::Error;
use crate::control::label;

/// Actions on the queue pairs and the memory.
pub trait FenceAgent: Send {
    /// Joins the pool `record` as number `node`: the node may serve its clients.
    ///
    /// # Errors
    /// Why the node cannot.
    fn join(&mut self, record: &PoolDescriptor, node: u8) -> Result<(), String>;
    /// Leaves the pool: ends all connections, zeroes the memory and returns a new instance id.
    ///
    /// # Errors
    /// Why the node cannot. It has left the pool all the same.
    fn release(&mut self) -> Result<Id, String>;
    /// Fences the client slot `client` up to `incarnation`: takes the access flags off its queue
    /// pairs, and rejects these incarnations from now on. Returns how many connections it ended.
    fn fence(&mut self, client: usize, incarnation: u64) -> usize;
}

/// A client that holds a client slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Its client slot.
    pub slot: usize,
    /// Its incarnation.
    pub incarnation: u64,
    /// A random id of this claim. Two clients may concurrently claim the same client slot and
    /// incarnation: the one that is refused must not release the other's claim.
    pub token: Id,
    /// Host and process, for a reader.
    pub label: String,
}

impl Holder {
    /// Describes this process, with a client slot and incarnation that it is about to claim.
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
    /// The daemon belongs to another pool, or to none.
    #[error("it belongs to {}", pool.map_or("no pool; was it started again?".to_owned(), |id| format!("another pool (id {id})")))]
    OtherPool {
        /// The pool that the daemon belongs to.
        pool: Option<Id>,
    },
    /// The client slot is held.
    #[error("the client slot is held by {} (incarnation {})", .0.label, .0.incarnation)]
    Held(Holder),
    /// The incarnation is not above the highest granted one.
    #[error("incarnation {highest} has been given out already")]
    Stale {
        /// The highest granted one.
        highest: u64,
    },
    /// The client was evicted.
    #[error("this client was evicted")]
    Evicted,
    /// The client slot or the incarnations are out of range.
    #[error("there is no such client")]
    Bounds,
    /// An action on the queue pairs or the memory failed.
    #[error("{0}")]
    Failed(String),
}

struct Member {
    record: PoolDescriptor,
    node: u8,
    /// The highest incarnation seen.
    highest: u64,
    holders: BTreeMap<usize, Holder>,
    /// For each client slot, the highest fenced incarnation.
    fenced: BTreeMap<usize, u64>,
    epochs: Epochs,
}

/// The state of a daemon.
pub struct Membership<B> {
    entry: NodeEntry,
    member: Option<Member>,
    agent: B,
}

impl<B: FenceAgent> Membership<B> {
    /// Makes the state of a daemon that belongs to no pool.
    pub fn new(entry: NodeEntry, agent: B) -> Self {
        Self { entry, member: None, agent }
    }

    /// Returns the daemon's entry.
    pub fn entry(&self) -> &NodeEntry {
        &self.entry
    }

    /// Returns the queue pairs and the memory.
    pub fn agent(&self) -> &B {
        &self.agent
    }

    /// Returns the pool that the daemon belongs to, and its number there.
    pub fn pool(&self) -> Option<(&PoolDescriptor, u8)> {
        self.member.as_ref().map(|member| (&member.record, member.node))
    }

    /// Returns the clients that hold a client slot.
    pub fn holders(&self) -> Vec<Holder> {
        self.member.iter().flat_map(|member| member.holders.values().cloned()).collect()
    }

    /// Returns the highest incarnation seen.
    pub fn highest(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.highest)
    }

    /// Joins the pool as number `node`. Idempotent.
    ///
    /// # Errors
    /// The daemon belongs to another pool, the descriptor names another node, or the memory cannot
    /// serve it.
    pub fn join(&mut self, record: PoolDescriptor, node: u8) -> Result<(), Refusal> {
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
        self.agent.join(&record, node).map_err(Refusal::Failed)?;
        let (holders, fenced, epochs) = Default::default();
        self.member = Some(Member { record, node, highest: 0, holders, fenced, epochs });
        Ok(())
    }

    /// Leaves the pool, and zeroes the memory.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn release(&mut self, pool: Id) -> Result<(), Refusal> {
        self.of(pool)?;
        self.member = None;
        self.entry.life = self.agent.release().map_err(Refusal::Failed)?;
        Ok(())
    }

    /// Grants a free client slot to a client with a new incarnation.
    ///
    /// # Errors
    /// The client slot is held, or the incarnation is not new.
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

    /// Grants new incarnations, under which a client continues.
    ///
    /// # Errors
    /// They are not new, or out of range.
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

    /// Admits a client that got its client slot elsewhere (in etcd), and fences the earlier
    /// incarnations of that slot.
    ///
    /// # Errors
    /// A later incarnation holds the client slot, or this one was evicted.
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
        self.agent.fence(slot, before);
        Ok(())
    }

    /// Takes back a claim that too few other daemons granted. Another client may have got the same
    /// client slot from those, with the same incarnation or an earlier one. So this records nothing
    /// about the claim.
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

    /// Records that a client leaves of its own accord.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn leave(&mut self, pool: Id, slot: usize, token: Id) -> Result<(), Refusal> {
        let member = self.of(pool)?;
        let Some(holder) = member.holders.get(&slot).filter(|holder| holder.token == token) else {
            return Ok(());
        };
        let incarnation = holder.incarnation;
        member.epochs.leave(slot, incarnation);
        member.holders.remove(&slot);
        // That a former client left is forgotten with this.
        self.fence_former(pool, slot, incarnation)
    }

    /// Records a client's epoch report, and returns those of all clients. A client that the daemon
    /// did not know is admitted first (E2a). With its first report here, the former clients of its slot are fenced.
    ///
    /// # Errors
    /// A later incarnation holds the client slot, or this one was evicted.
    pub fn report(
        &mut self,
        pool: Id,
        client: Holder,
        report: &EpochReport,
    ) -> Result<EpochReply, Refusal> {
        let (slot, incarnation) = (client.slot, client.incarnation);
        let member = self.of(pool)?;
        if member.epochs.has_left(slot, incarnation) {
            // E2a: a report from before the client left, which arrives late.
            return Err(Refusal::Evicted);
        }
        if member.holders.get(&slot) != Some(&client) {
            self.admit(pool, client)?;
        } else {
            self.fence_former(pool, slot, incarnation)?;
        }
        let member = self.of(pool)?;
        member.epochs.record(slot, incarnation, report);
        let clients = member.holders.values().map(|holder| (holder.slot, holder.incarnation));
        Ok(member.epochs.answer(clients, &member.fenced))
    }

    /// Returns the latest epoch in any report, and the epoch of each client.
    pub fn epochs(&self) -> (u64, Vec<ClientEpoch>) {
        let Some(member) = &self.member else { return (0, Vec::new()) };
        let epoch_of = |it: &Holder| member.epochs.epoch_of(it.slot, it.incarnation);
        (member.epochs.epoch(), member.holders.values().map(epoch_of).collect())
    }

    /// Fences a client slot up to `incarnation`, and frees it. Returns how many connections this
    /// ended.
    ///
    /// # Errors
    /// The daemon belongs to another pool.
    pub fn fence(&mut self, pool: Id, slot: usize, incarnation: u64) -> Result<usize, Refusal> {
        let member = self.of(pool)?;
        let fenced = member.fenced.entry(slot).or_default();
        *fenced = incarnation.max(*fenced);
        // The fence precedes the report that the slot is free.
        let connections = self.agent.fence(slot, incarnation);
        let member = self.of(pool)?;
        if member.holders.get(&slot).is_some_and(|holder| holder.incarnation <= incarnation) {
            member.holders.remove(&slot);
        }
        Ok(connections)
    }

    /// Fences the clients that had a slot before the one of this incarnation, unless that was done (O1). This one has
    /// the slot from a majority, or from etcd: so they left, or are about to be evicted.
    fn fence_former(&mut self, pool: Id, slot: usize, incarnation: u64) -> Result<(), Refusal> {
        let fenced = self.of(pool)?.fenced.get(&slot).copied().unwrap_or(0);
        if fenced < incarnation - 1 {
            self.fence(pool, slot, incarnation - 1)?;
        }
        Ok(())
    }

    fn of(&mut self, pool: Id) -> Result<&mut Member, Refusal> {
        let ours = self.member.as_ref().map(|member| member.record.id);
        let member = self.member.as_mut().filter(|member| member.record.id == pool);
        member.ok_or(Refusal::OtherPool { pool: ours })
    }
}

fn check(member: &Member, client: &Holder) -> Result<(), Refusal> {
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
    use crate::control::PoolSpec;

    const WISHES: PoolSpec = PoolSpec { nodes: 1, capacity: 64 << 20, max_clients: 4, slots: 6 };

    #[derive(Default)]
    struct Log(Vec<(usize, u64)>);

    impl FenceAgent for Log {
        fn join(&mut self, _: &PoolDescriptor, _: u8) -> Result<(), String> {
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

    fn membership() -> (Membership<Log>, Id) {
        let life = Id(7);
        let address = "127.0.0.1:7471".parse().expect("it is an address");
        let entry = NodeEntry { name: "a".into(), address, life, capacity: 64 << 20 };
        let record =
            PoolDescriptor::new("a".into(), vec![entry.clone()], &WISHES).expect("it is sound");
        let mut membership = Membership::new(entry, Log::default());
        membership.join(record.clone(), 0).expect("it is free");
        (membership, record.id)
    }

    #[test]
    fn a_slot_has_one_holder_and_an_incarnation_is_given_out_once() {
        let (mut membership, pool) = membership();
        membership.claim(pool, holder(0, 5)).expect("it is free");
        assert_eq!(membership.claim(pool, holder(0, 6)), Err(Refusal::Held(holder(0, 5))));
        assert_eq!(membership.claim(pool, holder(1, 5)), Err(Refusal::Stale { highest: 5 }));
        assert_eq!(membership.claim(pool, holder(4, 6)), Err(Refusal::Bounds));
        membership.leave(pool, 0, Id(5)).expect("it belongs to the pool");
        assert_eq!(membership.claim(pool, holder(1, 4)), Err(Refusal::Stale { highest: 5 }));
        membership.claim(pool, holder(0, 6)).expect("it is free again");
        membership.leave(pool, 0, Id(5)).expect("it belongs to the pool");
        assert_eq!(membership.holders(), [holder(0, 6)], "a former life cannot let go of the slot");
    }

    #[test]
    fn what_is_drawn_is_nobody_elses() {
        let (mut membership, pool) = membership();
        membership.claim(pool, holder(0, 5)).expect("it is free");
        assert_eq!(membership.draw(pool, &(5..9)), Err(Refusal::Stale { highest: 5 }));
        membership.draw(pool, &(6..9)).expect("they are new");
        assert_eq!(membership.draw(pool, &(8..12)), Err(Refusal::Stale { highest: 8 }));
        assert_eq!(membership.claim(pool, holder(1, 8)), Err(Refusal::Stale { highest: 8 }));
        membership.claim(pool, holder(1, 9)).expect("it is new");
        let last = WriteNumber::LAST_INCARNATION.0;
        assert_eq!(membership.draw(pool, &(last..last + 2)), Err(Refusal::Bounds));
        assert_eq!(membership.draw(pool, &(20..20)), Err(Refusal::Bounds));
        membership.draw(pool, &(last..last + 1)).expect("it is the last one");
    }

    /// Two clients claim one client slot with the same incarnation. One is granted it here, fails
    /// elsewhere and gives it back. The other got it from the other daemons, and is alive: it was
    /// taken for one that left.
    #[test]
    fn a_claim_that_is_given_back_does_not_leave_for_the_slots_next_holder() {
        let (mut membership, pool) = membership();
        let elsewhere = Holder { token: Id(77), ..holder(0, 5) };
        membership.claim(pool, holder(0, 5)).expect("it is free");
        membership.give_back(pool, 0, Id(77)).expect("it belongs to the pool");
        assert_eq!(membership.holders(), [holder(0, 5)], "another one's");
        membership.give_back(pool, 0, Id(5)).expect("it belongs to the pool");
        assert!(membership.holders().is_empty());
        let report = EpochReport { epoch: 3, renewed: 0, reached: 2 };
        let reply = membership.report(pool, elsewhere.clone(), &report).expect("it has its slot");
        assert_eq!(reply.left, []);
        assert_eq!(reply.clients, [ClientEpoch { slot: 0, incarnation: 5, reached: 2 }]);
        assert_eq!(membership.holders(), [elsewhere]);
    }

    #[test]
    fn an_evicted_client_is_fenced_and_does_not_come_back() {
        let (mut membership, pool) = membership();
        membership.claim(pool, holder(2, 3)).expect("it is free");
        assert_eq!(membership.fence(pool, 2, 3), Ok(1));
        assert_eq!(membership.agent().0, [(2, 3)]);
        assert!(membership.holders().is_empty());
        assert_eq!(membership.admit(pool, holder(2, 3)), Err(Refusal::Evicted));
        assert_eq!(membership.claim(pool, holder(2, 3)), Err(Refusal::Evicted));
        membership.claim(pool, holder(2, 4)).expect("it is another life");
        assert_eq!(membership.fence(pool, 2, 3), Ok(1), "late, and of the former life alone");
        assert_eq!(membership.holders(), [holder(2, 4)]);
    }

    #[test]
    fn a_client_that_is_admitted_fences_the_slot_s_former_lives() {
        let (mut membership, pool) = membership();
        membership.admit(pool, holder(1, 8)).expect("it is new");
        membership.admit(pool, holder(1, 8)).expect("it is asked for again");
        membership.admit(pool, holder(1, 9)).expect("it is later");
        assert_eq!(membership.agent().0.last(), Some(&(1, 8)));
        assert_eq!(membership.admit(pool, holder(1, 8)), Err(Refusal::Evicted));
        assert_eq!(membership.claim(pool, holder(0, 9)), Err(Refusal::Stale { highest: 9 }));
    }

    /// A client left, and so did the next one of its slot: nothing but the fence shows the first one.
    #[test]
    fn a_client_that_reports_first_fences_the_slot_s_former_lives() {
        let (mut membership, pool) = membership();
        let report = EpochReport { epoch: 1, renewed: 0, reached: 0 };
        for incarnation in [5, 6] {
            membership.claim(pool, holder(0, incarnation)).expect("it is free");
            let reply =
                membership.report(pool, holder(0, incarnation), &report).expect("it holds it");
            assert_eq!(reply.fenced, [(0, incarnation - 1)]);
            assert_eq!(reply.clients.len(), 1, "it goes on");
            membership.report(pool, holder(0, incarnation), &report).expect("it goes on");
            membership.leave(pool, 0, Id(incarnation.into())).expect("it belongs to the pool");
        }
        assert_eq!(membership.agent().0, [(0, 4), (0, 5)], "once each");
    }

    /// A client left. The next one of its slot reached too few daemons to begin, and left as well: it was forgotten
    /// of the first one that it had ended.
    #[test]
    fn a_client_that_leaves_before_it_reports_fences_the_slot_s_former_lives() {
        let (mut membership, pool) = membership();
        let report = EpochReport { epoch: 1, renewed: 0, reached: 0 };
        membership.claim(pool, holder(0, 5)).expect("it is free");
        membership.report(pool, holder(0, 5), &report).expect("it holds it");
        membership.leave(pool, 0, Id(5)).expect("it belongs to the pool");
        membership.claim(pool, holder(0, 7)).expect("it is free");
        membership.leave(pool, 0, Id(7)).expect("it belongs to the pool");
        membership.claim(pool, holder(1, 8)).expect("it is free");
        let reply = membership.report(pool, holder(1, 8), &report).expect("it holds it");
        assert_eq!((reply.left, reply.fenced), (vec![(0, 7)], vec![(0, 6), (1, 7)]));
    }

    #[test]
    fn a_daemon_belongs_to_one_pool_and_never_with_other_memory() {
        let (mut membership, pool) = membership();
        let entry = membership.entry().clone();
        let other =
            PoolDescriptor::new("a".into(), vec![entry.clone()], &WISHES).expect("it is sound");
        let refused = membership.join(other.clone(), 0);
        assert_eq!(refused, Err(Refusal::OtherPool { pool: Some(pool) }));
        assert!(membership.claim(other.id, holder(0, 1)).is_err());
        membership.release(pool).expect("it belongs to it");
        let gone = membership.claim(pool, holder(0, 9));
        assert_eq!(gone, Err(Refusal::OtherPool { pool: None }));
        assert_eq!(membership.entry().life, Id(8));
        assert!(matches!(membership.join(other, 0), Err(Refusal::Failed(_))), "another life");
    }
}

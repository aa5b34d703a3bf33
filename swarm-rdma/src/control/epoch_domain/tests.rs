//! Random schedules of clients and daemons: messages that are late or lost, a daemon that dies,
//! clients that join, leave, stop and are evicted one daemon at a time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use swarm_core::sim::seeds::{Playing, these_or_one};

use super::*;
use crate::control::{FenceAgent, Id, Membership, NodeEntry, PoolSpec};

const NODES: usize = 3;
const SLOTS: usize = 3;
const SCHEDULES: u64 = 100;
const STEPS: usize = 2000;

/// Node, client slot, and the incarnation up to which it was fenced there.
type Fences = Arc<Mutex<Vec<(usize, usize, u64)>>>;

/// A node without memory, and of which number.
struct Nothing(usize, Fences);

impl FenceAgent for Nothing {
    fn join(&mut self, _: &PoolDescriptor, _: u8) -> Result<(), String> {
        Ok(())
    }
    fn release(&mut self) -> Result<Id, String> {
        Ok(Id(0))
    }
    fn fence(&mut self, slot: usize, up_to: u64) -> usize {
        self.1.lock().expect("nobody panicked").push((self.0, slot, up_to));
        0
    }
}

/// A message in flight.
enum Message {
    Report { client: Holder, node: usize, report: EpochReport },
    EpochReply { client: u64, node: usize, reply: EpochReply },
    Fence { node: usize, slot: usize, incarnation: u64 },
}

/// A client.
struct Actor {
    domain: RdmaEpochs,
    /// The daemons that have answered so far.
    answered: Vec<usize>,
    has_begun: bool,
    /// Whether it has an operation in progress.
    is_inside: bool,
    /// Its calls of `new_generation`: the latest epoch at the time, and each client's generation.
    renewals: Vec<(u64, HashMap<u64, u64>)>,
    /// Where it is fenced.
    fenced: Vec<usize>,
}

impl Actor {
    fn client(&self) -> &Holder {
        &self.domain.shared.client
    }
}

struct World {
    rng: Rng,
    /// Whether clients get their slots in etcd, or from the daemons.
    has_etcd: bool,
    fences: Fences,
    record: PoolDescriptor,
    daemons: Vec<Membership<Nothing>>,
    dead: Option<usize>,
    messages: Vec<Message>,
    /// By incarnation: those that are not gone.
    actors: HashMap<u64, Actor>,
    /// Slots and incarnations of those that are.
    gone: Vec<(usize, u64)>,
    incarnations: u64,
}

impl World {
    fn new(seed: u64, has_etcd: bool) -> Self {
        let fences = Fences::default();
        let entry = |number: usize| NodeEntry {
            name: number.to_string(),
            address: format!("127.0.0.1:{}", 7000 + number).parse().expect("it is an address"),
            life: Id(1 + number as u128),
            capacity: 64 << 20,
        };
        let wishes = PoolSpec { nodes: NODES, capacity: 64 << 20, max_clients: SLOTS, slots: 6 };
        let entries: Vec<_> = (0..NODES).map(entry).collect();
        let record =
            PoolDescriptor::new("a".into(), entries.clone(), &wishes).expect("it is sound");
        let daemon = |(number, entry): (usize, NodeEntry)| {
            let mut membership = Membership::new(entry, Nothing(number, Arc::clone(&fences)));
            membership.join(record.clone(), number as u8).expect("it is free");
            membership
        };
        let daemons = entries.into_iter().enumerate().map(daemon).collect();
        let (dead, messages, actors, gone, incarnations) = Default::default();
        let rng = Rng::with_seed(seed);
        Self { rng, has_etcd, fences, record, daemons, dead, messages, actors, gone, incarnations }
    }

    fn step(&mut self) {
        match self.rng.u8(..24) {
            0 if self.has_etcd => self.come_by_etcd(),
            0 => self.come_by_claim(),
            1..6 => self.report(),
            6..18 if !self.messages.is_empty() => {
                // Mostly in order.
                let late = self.rng.u8(..8) == 0;
                let at = if late { self.rng.usize(..self.messages.len()) } else { 0 };
                let message = self.messages.remove(at);
                if self.rng.u8(..16) > 0 {
                    self.deliver(message);
                }
            }
            18..20 => self.begin_or_end(),
            20 => self.renew(),
            21 if self.rng.u8(..8) == 0 => self.leave(),
            22 if self.rng.u8(..8) == 0 => self.evict(),
            23 if self.rng.u8(..64) == 0 && self.dead.is_none() => {
                self.dead = Some(self.rng.usize(..NODES));
            }
            _ => {}
        }
        self.note_fences();
    }

    fn any(&mut self) -> Option<u64> {
        let mut there: Vec<u64> = self.actors.keys().copied().collect();
        there.sort_unstable();
        self.rng.choice(there)
    }

    /// A client takes a free client slot, as in etcd: a majority admits it, and fences its
    /// predecessor.
    fn come_by_etcd(&mut self) {
        let held = |slot| self.actors.values().any(|actor| actor.client().slot == slot);
        let Some(slot) = (0..SLOTS).find(|&slot| !held(slot)) else { return };
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let token = Id(incarnation.into());
        let client = Holder { slot, incarnation, token, label: String::new() };
        for node in self.some_majority() {
            let admitted = self.daemons[node].admit(self.record.id, client.clone());
            admitted.expect("it is later");
        }
        self.begins(client);
    }

    /// A client claims a slot that a majority of the daemons reports as free. It gives back what it was
    /// granted by fewer than a majority, of which daemons may not learn.
    fn come_by_claim(&mut self) {
        let nodes = self.some_majority();
        let held =
            |node: &usize, slot| self.daemons[*node].holders().iter().any(|it| it.slot == slot);
        let free = |slot: &usize| nodes.iter().all(|node| !held(node, *slot));
        let Some(slot) = (0..SLOTS).find(free) else { return };
        self.incarnations += 1;
        let highest = nodes.iter().map(|&node| self.daemons[node].highest()).max().unwrap_or(0);
        let incarnation = highest + 1;
        let token = Id(self.incarnations.into());
        let client = Holder { slot, incarnation, token, label: String::new() };
        let mut granted = Vec::new();
        for node in (0..NODES).filter(|&node| Some(node) != self.dead) {
            let arrives = self.rng.u8(..4) > 0;
            if arrives && self.daemons[node].claim(self.record.id, client.clone()).is_ok() {
                granted.push(node);
            }
        }
        if granted.len() >= self.record.majority() {
            return self.begins(client);
        }
        for node in granted {
            if self.rng.u8(..4) > 0 {
                let given = self.daemons[node].give_back(self.record.id, slot, token);
                given.expect("it is the pool's");
            }
        }
    }

    fn some_majority(&mut self) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..NODES).filter(|&node| Some(node) != self.dead).collect();
        self.rng.shuffle(&mut nodes);
        nodes.truncate(self.record.majority());
        nodes
    }

    fn begins(&mut self, client: Holder) {
        let incarnation = client.incarnation;
        let domain = RdmaEpochs { shared: Arc::new(Shared::new(&self.record, &client)) };
        let (answered, renewals, fenced) = Default::default();
        let (has_begun, is_inside) = (false, false);
        let actor = Actor { domain, answered, has_begun, is_inside, renewals, fenced };
        self.actors.insert(incarnation, actor);
    }

    fn report(&mut self) {
        let Some(client) = self.any() else { return };
        let (node, actor) = (self.rng.usize(..NODES), &self.actors[&client]);
        actor.domain.try_advance();
        let (client, report) = (actor.client().clone(), actor.domain.shared.report());
        self.messages.push(Message::Report { client, node, report });
    }

    fn begin_or_end(&mut self) {
        let Some(client) = self.any() else { return };
        let actor = self.actors.get_mut(&client).expect("it is there");
        if actor.is_inside {
            actor.domain.unpin();
        } else if actor.has_begun {
            actor.domain.pin();
        }
        actor.is_inside = actor.has_begun && !actor.is_inside;
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Report { node, .. } | Message::Fence { node, .. }
                if Some(node) == self.dead => {}
            Message::Report { client, node, report } => {
                let incarnation = client.incarnation;
                if let Ok(reply) = self.daemons[node].report(self.record.id, client, &report) {
                    self.messages.push(Message::EpochReply { client: incarnation, node, reply });
                }
            }
            Message::Fence { node, slot, incarnation } => {
                let fenced = self.daemons[node].fence(self.record.id, slot, incarnation);
                fenced.expect("it is the pool's");
            }
            Message::EpochReply { client, node, reply } => {
                let Some(actor) = self.actors.get_mut(&client) else { return };
                let verdict = actor.domain.shared.record_reply(node, reply);
                actor.answered.retain(|&other| other != node);
                actor.answered.push(node);
                if !actor.has_begun && actor.answered.len() >= self.record.majority() {
                    actor.domain.shared.begin();
                    actor.has_begun = true;
                }
                if let Verdict::Fence(slot, incarnation) = verdict {
                    self.fence_everywhere(slot, incarnation);
                }
            }
        }
    }

    fn fence_everywhere(&mut self, slot: usize, incarnation: u64) {
        let fence = |node| Message::Fence { node, slot, incarnation };
        self.messages.extend((0..NODES).map(fence));
    }

    /// A client that a majority has fenced is gone: it may go on without effect.
    fn note_fences(&mut self) {
        for (node, slot, up_to) in self.fences.lock().expect("nobody panicked").drain(..) {
            for actor in self.actors.values_mut() {
                let client = actor.client();
                if client.slot == slot && client.incarnation <= up_to {
                    actor.fenced.retain(|&other| other != node);
                    actor.fenced.push(node);
                }
            }
        }
        let majority = self.record.majority();
        let gone = self.actors.extract_if(|_, actor| actor.fenced.len() >= majority);
        self.gone.extend(gone.map(|(incarnation, actor)| (actor.client().slot, incarnation)));
    }

    fn evict(&mut self) {
        let Some(client) = self.any() else { return };
        self.fence_everywhere(self.actors[&client].client().slot, client);
    }

    /// A client leaves; not every daemon learns of it.
    fn leave(&mut self) {
        let Some(client) = self.any() else { return };
        if self.actors[&client].is_inside {
            return;
        }
        let actor = self.actors.remove(&client).expect("it is there");
        let Holder { slot, token, .. } = *actor.client();
        self.gone.push((slot, client));
        for node in 0..NODES {
            if Some(node) != self.dead && self.rng.u8(..4) > 0 {
                let left = self.daemons[node].leave(self.record.id, slot, token);
                left.expect("it is the pool's");
            }
        }
    }

    fn renew(&mut self) {
        let Some(client) = self.any() else { return };
        // A client that has not begun caches no location.
        let begun = self.actors.iter().filter(|(_, actor)| actor.has_begun);
        let generations = begun.map(|(&it, actor)| (it, actor.domain.generation())).collect();
        let actor = self.actors.get_mut(&client).expect("it is there");
        if actor.has_begun {
            actor.domain.new_generation();
            actor.renewals.push((actor.domain.epoch_bound(), generations));
        }
    }

    /// Checks that no client is more than one epoch behind the latest, nor has an older operation,
    /// and that a client beyond the latest epoch of a renewal has invalidated its cache since. None that is
    /// there has ended, as far as any of them knows.
    fn check(&self) {
        let allowed = self.actors.values().map(|actor| actor.domain.shared.replies().epoch);
        let latest = allowed.max().unwrap_or(0);
        for (client, actor) in self.actors.iter().filter(|(_, actor)| actor.has_begun) {
            assert!(
                actor.domain.epoch_bound() >= latest,
                "client {client} has not learned of {latest}"
            );
            let since = actor.domain.shared.since.load(Ordering::Relaxed);
            assert!(since == 0 || since + 1 >= latest, "client {client}: since {since}, {latest}");
            for (asked, before) in self.actors.values().flat_map(|other| &other.renewals) {
                let forgotten =
                    before.get(client).is_none_or(|&before| actor.domain.generation() > before);
                assert!(actor.domain.epoch() <= *asked || forgotten, "client {client}, {asked}");
            }
            for other in self.actors.values() {
                let Holder { slot, incarnation, .. } = *other.client();
                let has_ended = actor.domain.shared.replies().ended.has(slot, incarnation);
                assert!(!has_ended, "{client} knows that {incarnation} has ended, which lives");
            }
        }
    }
}

#[test]
fn nobody_is_more_than_one_epoch_behind() {
    let (mut epochs, mut ended) = (0, 0);
    let seeds = these_or_one(SCHEDULES);
    let schedules = seeds.end - seeds.start;
    for seed in seeds {
        let _playing = Playing::seed(seed);
        let mut world = World::new(seed, seed % 2 == 0);
        for step in 0..STEPS {
            world.step();
            let checked = catch_unwind(AssertUnwindSafe(|| world.check()));
            assert!(checked.is_ok(), "schedule {seed}, step {step}");
        }
        epochs += world.daemons.iter().map(|daemon| daemon.epochs().0).max().unwrap_or(0);
        let knows = |&(slot, incarnation): &(usize, u64)| {
            let has = |actor: &Actor| actor.domain.shared.replies().ended.has(slot, incarnation);
            world.actors.values().any(has)
        };
        ended += world.gone.iter().filter(|client| knows(client)).count() as u64;
    }
    println!("{epochs} epochs in {schedules} schedules, {ended} clients known to have ended");
    assert!(
        epochs > 5 * schedules && (schedules < SCHEDULES || ended > schedules),
        "{epochs}, {ended}: they go on"
    );
}

/// A restarted daemon refuses every client; those that wanted memory made hundreds of connections a
/// second to it.
#[test]
fn a_node_that_does_not_answer_is_asked_now_and_then() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let mut world = World::new(0, true);
    world.record.nodes[0].address = listener.local_addr().expect("it listens");
    let client = Holder { slot: 0, incarnation: 1, token: Id(1), label: String::new() };
    let shared = Arc::new(Shared::new(&world.record, &client));
    shared.wanted.store(u32::MAX, Ordering::Relaxed);
    let theirs = Arc::clone(&shared);
    let reporter = thread::spawn(move || theirs.report_to(0, &mpsc::channel().0, None));
    let began = Instant::now();
    for _ in 0..4 {
        drop(listener.accept());
    }
    assert!(began.elapsed() >= 2 * LATER, "{:?}", began.elapsed());
    shared.stopping.store(true, Ordering::Relaxed);
    drop(listener);
    reporter.join().expect("it ends");
}

/// Each is looked after once in a while, as long as it is asked about.
#[test]
fn a_client_that_is_asked_about_is_looked_after() {
    let world = World::new(0, true);
    let client = Holder { slot: 0, incarnation: 1, token: Id(1), label: String::new() };
    let domain = RdmaEpochs { shared: Arc::new(Shared::new(&world.record, &client)) };
    assert!(!domain.is_gone(1, Incarnation(7)) && !domain.is_gone(2, Incarnation(8)));
    assert_eq!(domain.shared.long_awaited(), None, "it is too early");
    let ages = |by: Duration, of: fn(&mut AwaitedClient) -> &mut Instant| {
        let mut replies = domain.shared.replies();
        let it = of(replies.awaited.get_mut(&(1, 7)).expect("it is awaited"));
        *it = it.checked_sub(by).expect("the host runs for longer");
    };
    ages(LONG, |it| &mut it.looked_after);
    assert_eq!(domain.shared.long_awaited(), Some((1, 7)));
    assert_eq!(domain.shared.long_awaited(), None, "not again so soon");
    ages(ASKED, |it| &mut it.asked);
    domain.shared.record_reply(0, EpochReply::default());
    let is_awaited = |client| domain.shared.replies().awaited.contains_key(&client);
    assert!(!is_awaited((1, 7)) && is_awaited((2, 8)), "nobody asks any more");
    let fenced = || EpochReply { fenced: vec![(2, 8)], ..EpochReply::default() };
    for node in 0..2 {
        assert!(!domain.is_gone(2, Incarnation(8)));
        domain.shared.record_reply(node, fenced());
    }
    assert!(domain.is_gone(2, Incarnation(8)));
    assert!(domain.shared.replies().awaited.is_empty(), "it is known to have ended");
}

/// etcd is so slow that all are due again when it has answered for one. The first of them had all turns.
#[test]
fn each_that_is_waited_for_has_its_turn() {
    let world = World::new(0, true);
    let client = Holder { slot: 0, incarnation: 1, token: Id(1), label: String::new() };
    let domain = RdmaEpochs { shared: Arc::new(Shared::new(&world.record, &client)) };
    let shared = &domain.shared;
    let all = [(1, 7), (2, 8), (2, 9)];
    assert!(!all.iter().any(|&(slot, session)| domain.is_gone(slot, Incarnation(session))));
    let held = ClientEpoch { slot: 1, incarnation: 3, reached: 0 };
    let now = Instant::now();
    shared.replies().held = Some(BlockingClient { client: held, since: now, looked_after: now });
    let turns = |count: usize| {
        let turn = |_| {
            let mut replies = shared.replies();
            let Replies { held, awaited, .. } = &mut *replies;
            let held = held.iter_mut().map(|it| &mut it.looked_after);
            for it in held.chain(awaited.values_mut().map(|it| &mut it.looked_after)) {
                *it = it.checked_sub(LONG).expect("the host runs for longer");
            }
            drop(replies);
            shared.long_awaited().expect("all are due")
        };
        (0..count).map(turn).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(turns(3), all.into(), "the one that blocks the epoch is left alone");
    shared.wanted.store(1, Ordering::Relaxed);
    assert_eq!(turns(4).len(), 4, "memory is wanted");
}

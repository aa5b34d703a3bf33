//! Nodes' memories, pending chains, completions and time.
//!
//! **Invariant:** a chain id is in exactly one place: in its queue's `posted`, in its queue's
//! `finished`, delivered, or free. A completion future that still exists owns it, unless it is
//! posted as `detached`.

use core::ops::Range;
use core::task::Poll;
use std::collections::VecDeque;
use std::vec::Vec;

use fastrand::Rng;

use super::chain::{Chain, Memory, mix};
use super::scheduler::Setup;
use super::trace::{Step, Trace};
use crate::fabric::{MAX_VERBS, NodeDown, Verb};
use crate::node::{Address, NodeId};

/// The start of clients' clocks, so that clocks that are behind do not start below zero.
const EPOCH: i64 = 10_000_000;
/// Nanoseconds that a look at a clock takes.
const LOOK: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeState {
    Up,
    /// Nothing happens there until it resumes.
    Frozen,
    /// Gone for good; reported unless `silent`.
    Crashed {
        silent: bool,
    },
}

#[derive(Debug)]
struct Node {
    memory: Memory,
    state: NodeState,
}

/// A client's pending chains to a node, and their completions.
#[derive(Debug, Default)]
struct Queue {
    posted: VecDeque<usize>,
    finished: Vec<usize>,
    /// After this many words the rest is lost: the client died.
    budget: Option<u64>,
    /// A hash of all that the client received.
    replies_hash: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// In its queue's `posted`; `detached` if no completion waits for it.
    Posted {
        detached: bool,
    },
    /// In its queue's `finished`; `Err` if the client is to learn that the node is down.
    Finished(Result<(), NodeDown>),
    /// Returned to the client.
    Delivered(Result<(), NodeDown>),
    /// Never to complete.
    Swallowed,
    Free,
}

#[derive(Debug)]
struct Entry {
    chain: Chain,
    queue: usize,
    /// Its number among its client's chains.
    number: u64,
    fate: Fate,
}

/// An unreliable clock: of four periods, it stands still during the second, and is behind by `back`
/// during the fourth.
#[derive(Clone, Copy, Debug)]
struct Fits {
    every: u64,
    back: u64,
}

impl Fits {
    fn show(self, time: u64) -> u64 {
        let turn = time / self.every;
        match turn % 4 {
            1 => turn * self.every,
            3 => time.saturating_sub(self.back),
            _ => time,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    dead: bool,
    skew: i64,
    drift: i64,
    fits: Option<Fits>,
    /// Grows with all news for the client's tasks.
    news: u64,
    /// Number of chains that it posted.
    posts: u64,
    /// How often its tasks were polled.
    polls: u64,
}

/// Words of some nodes.
pub(super) type Places = Vec<(NodeId, Range<u64>)>;

/// All that clients share.
#[derive(Debug)]
pub(super) struct World {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    queues: Vec<Queue>,
    entries: Vec<Entry>,
    free: Vec<usize>,
    rng: Rng,
    seed: u64,
    tear: f64,
    prompt: f64,
    pub(super) time: u64,
    /// Whether chains on synchronous fabrics run without others in between.
    pub(super) calm: bool,
    pub(super) trace: Option<Trace>,
    /// Poisoned words, and the client that will reuse them.
    forbidden: Vec<(usize, Places)>,
}

impl World {
    pub(super) fn new(setup: &Setup, seed: u64) -> Self {
        let Setup { nodes, clients, words, .. } = *setup;
        let node = |_| Node { memory: Memory::new(words), state: NodeState::Up };
        Self {
            nodes: (0..nodes).map(node).collect(),
            clients: std::vec![Client::default(); clients],
            queues: (0..clients * nodes).map(|_| Queue::default()).collect(),
            entries: Vec::new(),
            free: Vec::new(),
            rng: Rng::with_seed(seed),
            seed,
            tear: setup.tear,
            prompt: setup.prompt,
            time: 0,
            calm: false,
            trace: None,
            forbidden: Vec::new(),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn queue(&self, client: usize, node: NodeId) -> usize {
        client * self.nodes.len() + node.index()
    }

    pub(super) fn log(&mut self, step: impl FnOnce() -> Step) {
        if let Some(trace) = &mut self.trace {
            trace.0.push(step());
        }
    }

    // What clients do.

    pub(super) fn post(&mut self, client: usize, node: NodeId, verbs: &[Verb<'_>]) -> usize {
        assert!(verbs.len() <= MAX_VERBS, "a chain holds at most {MAX_VERBS} verbs");
        assert!(!self.clients[client].dead, "client {client} is dead and posts");
        self.allow(client, node, verbs);
        let queue = self.queue(client, node);
        let id = self.entry(queue);
        self.entries[id].number = self.clients[client].posts;
        self.clients[client].posts += 1;
        self.entries[id].chain.load(client, verbs);
        match self.nodes[node.index()].state {
            NodeState::Up | NodeState::Frozen => {
                self.entries[id].fate = Fate::Posted { detached: false };
                self.queues[queue].posted.push_back(id);
                self.finish_if_over(queue);
                self.perhaps_at_once(queue);
            }
            NodeState::Crashed { silent } => self.lose(id, silent),
        }
        id
    }

    pub(super) fn poll(&mut self, id: usize) -> Poll<Result<Vec<u64>, NodeDown>> {
        let Fate::Delivered(result) = self.entries[id].fate else { return Poll::Pending };
        let reply = self.entries[id].chain.take_reply();
        self.release(id);
        Poll::Ready(result.map(|()| reply))
    }

    /// Records that the completion future is gone.
    pub(super) fn detach(&mut self, id: usize) {
        match self.entries[id].fate {
            Fate::Posted { .. } => self.entries[id].fate = Fate::Posted { detached: true },
            Fate::Finished(_) => {
                let queue = self.entries[id].queue;
                self.queues[queue].finished.retain(|&other| other != id);
                self.release(id);
            }
            Fate::Delivered(_) | Fate::Swallowed => self.release(id),
            Fate::Free => unreachable!("a chain has one completion"),
        }
    }

    pub(super) fn now(&mut self, client: usize) -> u64 {
        self.time += LOOK;
        let Client { skew, drift, fits, .. } = self.clients[client];
        let time = self.time as i64;
        let time = EPOCH + time + time / 1_000_000 * drift + time % 1_000_000 * drift / 1_000_000;
        let time = (time + skew).max(0) as u64;
        fits.map_or(time, |fits| fits.show(time))
    }

    pub(super) fn set_clock(&mut self, client: usize, skew: i64, drift: i64) {
        self.clients[client].skew = skew;
        self.clients[client].drift = drift;
    }

    pub(super) fn set_clock_fits(&mut self, client: usize, every: u64, back: u64) {
        self.clients[client].fits = Some(Fits { every, back });
    }

    pub(super) fn news(&self, client: usize) -> u64 {
        self.clients[client].news
    }

    pub(super) fn polls(&self, client: usize) -> u64 {
        self.clients[client].polls
    }

    /// Records that a task of the client is about to be polled.
    pub(super) fn polled(&mut self, client: usize) {
        self.clients[client].polls += 1;
        self.log(|| Step::Poll(client));
    }

    pub(super) fn wake(&mut self, client: usize) {
        self.clients[client].news += 1;
    }

    // What happens to chains.

    /// Returns whether the first chain of `queue` can take a step.
    pub(super) fn can_step(&self, queue: usize) -> bool {
        !self.queues[queue].posted.is_empty()
            && self.nodes[queue % self.nodes.len()].state == NodeState::Up
    }

    pub(super) fn can_deliver(&self, queue: usize) -> bool {
        !self.queues[queue].finished.is_empty()
    }

    /// Lets the first chain of `queue` access a word: word number `word` of the current verb, or a
    /// random one. Returns which, or `None` for all that are left.
    pub(super) fn step(&mut self, queue: usize, word: Option<usize>) -> Option<u32> {
        let (client, node) = self.ends(queue);
        let id = self.queues[queue].posted[0];
        let memory = &mut self.nodes[node.index()].memory;
        let trace = &mut self.trace;
        let log = |word| {
            if let Some(trace) = trace {
                trace.0.push(Step::Word(client, node, word));
            }
        };
        let chain = &mut self.entries[id].chain;
        let touched = match word {
            Some(word) => {
                chain.touch(memory, word, log);
                Some(word as u32)
            }
            None => chain.step(memory, &mut self.rng, self.tear, log),
        };
        self.stepped(queue);
        touched
    }

    /// Returns whether the first chain of `queue` has accessed all words of a verb but one.
    pub(super) fn has_one_word_left(&self, queue: usize) -> bool {
        let first = self.queues[queue].posted.front();
        first.is_some_and(|&id| self.entries[id].chain.has_one_word_left())
    }

    /// Lets the first chain of `queue` access this word, if it can, or the rest of the verb.
    pub(super) fn step_again(&mut self, queue: usize, word: Option<u32>) {
        let id = self.queues[queue].posted[0];
        match word.filter(|&word| self.entries[id].chain.has_left(word)) {
            Some(word) => {
                self.step(queue, Some(word as usize));
            }
            None => self.step_verb(queue),
        }
    }

    /// Lets the first chain of `queue` do the rest of the current verb, in order.
    pub(super) fn step_verb(&mut self, queue: usize) {
        let (client, node) = self.ends(queue);
        let id = self.queues[queue].posted[0];
        let trace = &mut self.trace;
        self.entries[id].chain.whole(&mut self.nodes[node.index()].memory, |word| {
            if let Some(trace) = trace {
                trace.0.push(Step::Word(client, node, word));
            }
        });
        self.stepped(queue);
    }

    /// Lets the first chain of `queue` access the first word that is left of the current verb.
    pub(super) fn step_word(&mut self, queue: usize) {
        let (client, node) = self.ends(queue);
        let id = self.queues[queue].posted[0];
        let trace = &mut self.trace;
        self.entries[id].chain.next_word(&mut self.nodes[node.index()].memory, |word| {
            if let Some(trace) = trace {
                trace.0.push(Step::Word(client, node, word));
            }
        });
        self.stepped(queue);
    }

    /// Returns a hash of what a client has received from all nodes.
    pub(super) fn replies_hash(&self, client: usize) -> u64 {
        let queues = &self.queues[client * self.nodes.len()..][..self.nodes.len()];
        queues.iter().fold(0, |hash, queue| mix(hash, queue.replies_hash))
    }

    /// Returns whether a completion that the client waits for is still to come.
    pub(super) fn awaits(&self, client: usize) -> bool {
        let waited_for = |id: &usize| self.entries[*id].fate != Fate::Posted { detached: true };
        let queues = &self.queues[client * self.nodes.len()..][..self.nodes.len()];
        queues.iter().any(|queue| !queue.finished.is_empty() || queue.posted.iter().any(waited_for))
    }

    /// Returns a hash of the nodes' memories and of all pending chains.
    pub(super) fn print(&self) -> u64 {
        let nodes = self.nodes.iter().fold(0, |hash, node| mix(hash, node.memory.print()));
        self.queues.iter().fold(nodes, |hash, queue| {
            let hash = mix(mix(hash, queue.replies_hash), queue.posted.len() as u64);
            let hash = queue.posted.iter().fold(hash, |h, &id| self.entries[id].chain.print(h));
            queue.finished.iter().fold(hash, |h, &id| self.entries[id].chain.print(mix(h, 1)))
        })
    }

    /// Poisons these words until the client WRITEs to some of them again: any other verb there
    /// accesses reclaimed memory.
    pub(super) fn forbid(&mut self, client: usize, words: Places) {
        for (node, words) in &words {
            self.nodes[node.index()].memory.forbid(words.clone(), Some(client));
        }
        self.forbidden.push((client, words));
    }

    /// Unpoisons these words of every node.
    pub(super) fn permit(&mut self, words: Range<u64>) {
        for node in &mut self.nodes {
            node.memory.permit(words.clone());
        }
        let elsewhere = |(_, of): &(NodeId, Range<u64>)| !words.contains(&of.start);
        self.forbidden.retain(|(_, places)| places.iter().all(elsewhere));
    }

    /// Poisons what is poisoned at node `former` at node `node` too, which takes its place: a WRITE there
    /// takes the words of all nodes as well.
    pub(super) fn succeed(&mut self, former: NodeId, node: NodeId) {
        for (client, places) in &mut self.forbidden {
            if let Some((_, words)) = places.iter().find(|(of, _)| *of == former).cloned() {
                self.nodes[node.index()].memory.forbid(words.clone(), Some(*client));
                places.push((node, words));
            }
        }
    }

    /// Transfers what one client was to reuse to another.
    pub(super) fn bequeath(&mut self, from: usize, to: usize) {
        for (owner, places) in self.forbidden.iter_mut().filter(|(owner, _)| *owner == from) {
            *owner = to;
            for (node, words) in places {
                self.nodes[node.index()].memory.forbid(words.clone(), Some(to));
            }
        }
    }

    /// Unpoisons the words that the client was to reuse and that these verbs take. A WRITE takes
    /// them. So does a CAS of a first word from 0 if an object differs between nodes: away from its
    /// home a bucket's cell has only that word.
    fn allow(&mut self, client: usize, node: NodeId, verbs: &[Verb<'_>]) {
        let takes = |words: &Range<u64>, homed: bool| {
            verbs.iter().any(|verb| match *verb {
                Verb::Write { at, .. } => words.contains(&at.0),
                Verb::Cas { at, expect: 0, .. } => homed && at.0 == words.start,
                _ => false,
            })
        };
        let mut at = 0;
        while let Some((owner, words)) = self.forbidden.get(at) {
            let homed = words.iter().any(|(_, of)| of.start != words[0].1.start);
            let taken = |(of, words): &(NodeId, Range<u64>)| *of == node && takes(words, homed);
            if *owner == client && words.iter().any(taken) {
                for (node, words) in self.forbidden.swap_remove(at).1 {
                    self.nodes[node.index()].memory.forbid(words, None);
                }
            } else {
                at += 1;
            }
        }
    }

    /// Returns how many chains the client posted.
    pub(super) fn posts(&self, client: usize) -> u64 {
        self.clients[client].posts
    }

    /// Returns the number of the client's oldest pending chain.
    pub(super) fn oldest_under_way(&self, client: usize) -> u64 {
        let queues = client * self.nodes()..(client + 1) * self.nodes();
        let oldest = self.queues[queues].iter().filter_map(|queue| queue.posted.front());
        let numbers = oldest.map(|&id| self.entries[id].number);
        numbers.min().unwrap_or(self.posts(client))
    }

    /// Returns how many chains of `queue` are pending.
    pub(super) fn posted(&self, queue: usize) -> usize {
        self.queues[queue].posted.len()
    }

    /// Delivers the completion of `queue` that has waited longest.
    pub(super) fn deliver_oldest(&mut self, queue: usize) {
        self.deliver(queue, 0);
    }

    /// Delivers a random completion of `queue`. Returns its position among those that wait.
    pub(super) fn deliver_any(&mut self, queue: usize) -> usize {
        let index = self.rng.usize(..self.queues[queue].finished.len());
        self.deliver(queue, index);
        index
    }

    /// Delivers the completion of `queue` at this position among those that wait, or the last.
    pub(super) fn deliver(&mut self, queue: usize, index: usize) {
        let finished = &mut self.queues[queue].finished;
        let index = index.min(finished.len() - 1);
        let id = finished.remove(index);
        let Fate::Finished(result) = self.entries[id].fate else {
            unreachable!("only finished chains are in finished")
        };
        let replies_hash = mix(self.queues[queue].replies_hash, u64::from(result.is_ok()));
        self.queues[queue].replies_hash = self.entries[id].chain.print(replies_hash);
        self.entries[id].fate = Fate::Delivered(result);
        let (client, node) = self.ends(queue);
        self.clients[client].news += 1;
        self.log(|| Step::Deliver(client, node, result.is_ok()));
    }

    // What happens to nodes and clients.

    pub(super) fn node_state(&self, node: NodeId) -> NodeState {
        self.nodes[node.index()].state
    }

    pub(super) fn freeze(&mut self, node: NodeId) {
        assert_eq!(self.node_state(node), NodeState::Up, "{node} is away already");
        self.nodes[node.index()].state = NodeState::Frozen;
        self.log(|| Step::NodeFreeze(node));
    }

    pub(super) fn thaw(&mut self, node: NodeId) {
        assert_eq!(self.node_state(node), NodeState::Frozen, "{node} is not frozen");
        self.nodes[node.index()].state = NodeState::Up;
        self.log(|| Step::NodeThaw(node));
    }

    pub(super) fn crash_node(&mut self, node: NodeId, silent: bool) {
        self.nodes[node.index()].state = NodeState::Crashed { silent };
        self.log(|| Step::NodeCrash(node));
        for client in 0..self.clients.len() {
            let queue = self.queue(client, node);
            for id in std::mem::take(&mut self.queues[queue].posted) {
                self.lose(id, silent);
            }
        }
    }

    /// Breaks a connection: the client learns that the node is down, and can post again. Its
    /// pending chains are lost from some point on, unless `late`: then they still take effect,
    /// before any that are posted from now on.
    pub(super) fn disconnect(&mut self, client: usize, node: NodeId, late: bool) {
        self.log(|| Step::Disconnect(client, node));
        let queue = self.queue(client, node);
        for id in std::mem::take(&mut self.queues[queue].posted) {
            if late {
                let stray = self.entry(queue);
                self.entries[stray].chain = std::mem::take(&mut self.entries[id].chain);
                self.entries[stray].fate = Fate::Posted { detached: true };
                self.queues[queue].posted.push_back(stray);
            }
            self.lose(id, false);
        }
    }

    pub(super) fn is_dead(&self, client: usize) -> bool {
        self.clients[client].dead
    }

    /// Kills the client, whose futures are dropped already. At each node, all of its pending chains
    /// take effect, or nothing more, or only some words.
    pub(super) fn crash_client(&mut self, client: usize) {
        self.clients[client].dead = true;
        self.log(|| Step::ClientCrash(client));
        let mut rng = self.own_rng(client);
        for node in 0..self.nodes.len() {
            let queue = self.queue(client, NodeId(node as u8));
            match rng.u8(..4) {
                0 | 1 => {}
                2 => self.cut(queue),
                _ => {
                    let most = 1 << rng.u8(0..7);
                    self.queues[queue].budget = Some(rng.u64(1..=most));
                }
            }
        }
    }

    /// Marks a client as dead that has no pending chains.
    pub(super) fn mark_dead(&mut self, client: usize) {
        self.clients[client].dead = true;
        self.log(|| Step::ClientCrash(client));
    }

    /// Loses the pending chains.
    pub(super) fn cut(&mut self, queue: usize) {
        for id in std::mem::take(&mut self.queues[queue].posted) {
            self.lose(id, true);
        }
    }

    pub(super) fn word(&self, node: NodeId, at: Address) -> u64 {
        self.nodes[node.index()].memory.get(at)
    }

    pub(super) fn set_word(&mut self, node: NodeId, at: Address, value: u64) {
        self.nodes[node.index()].memory.set(at, value);
    }

    /// Completes a chain when it is posted, with all before it, for nodes that are close enough.
    fn perhaps_at_once(&mut self, queue: usize) {
        let (client, _) = self.ends(queue);
        if self.prompt == 0.0 || self.own_rng(client).f64() >= self.prompt {
            return;
        }
        while self.can_step(queue) {
            self.step_verb(queue);
        }
        while self.can_deliver(queue) {
            self.deliver_oldest(queue);
        }
    }

    /// Runs the client's chains to `node` to their end, and meanwhile some words of others' chains.
    pub(super) fn go_on_until_over(&mut self, client: usize, node: NodeId) {
        let queue = self.queue(client, node);
        while self.calm && self.can_step(queue) {
            self.step_verb(queue);
        }
        let rng = self.own_rng(client);
        let others = std::mem::replace(&mut self.rng, rng);
        while self.can_step(queue) {
            let other = self.rng.usize(..2 * self.queues.len());
            let next =
                if other < self.queues.len() && self.can_step(other) { other } else { queue };
            self.step(next, None);
            self.time += 1;
        }
        self.rng = others;
        // A synchronous node that does not answer has not taken the chain: it never takes effect
        // later.
        self.cut(queue);
        while self.can_deliver(queue) {
            self.deliver_oldest(queue);
        }
    }

    /// Lets chains of all clients do some words, while this one is in the middle of a step.
    pub(super) fn go_on(&mut self, client: usize, words: u8) {
        if self.calm {
            return;
        }
        let rng = self.own_rng(client);
        let others = std::mem::replace(&mut self.rng, rng);
        for _ in 0..words {
            let queue = self.rng.usize(..self.queues.len());
            if self.can_step(queue) {
                self.step(queue, None);
                self.time += 1;
            }
        }
        self.rng = others;
    }

    /// Returns randomness for what a client does now. It depends on the client's own past alone, so
    /// it is the same if others act differently.
    fn own_rng(&self, client: usize) -> Rng {
        Rng::with_seed(mix(mix(self.seed, client as u64), self.clients[client].posts))
    }

    fn ends(&self, queue: usize) -> (usize, NodeId) {
        (queue / self.nodes.len(), NodeId((queue % self.nodes.len()) as u8))
    }

    fn entry(&mut self, queue: usize) -> usize {
        if let Some(id) = self.free.pop() {
            self.entries[id].queue = queue;
            return id;
        }
        self.entries.push(Entry { chain: Chain::default(), queue, number: 0, fate: Fate::Free });
        self.entries.len() - 1
    }

    fn release(&mut self, id: usize) {
        self.entries[id].fate = Fate::Free;
        self.free.push(id);
    }

    fn stepped(&mut self, queue: usize) {
        self.finish_if_over(queue);
        if let Some(budget) = &mut self.queues[queue].budget {
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                self.cut(queue);
            }
        }
    }

    /// Removes chains from the head of `queue` that have nothing left to do.
    fn finish_if_over(&mut self, queue: usize) {
        while let Some(&id) = self.queues[queue].posted.front()
            && self.entries[id].chain.is_over()
        {
            self.queues[queue].posted.pop_front();
            if self.entries[id].fate == (Fate::Posted { detached: true }) {
                self.release(id);
            } else {
                self.entries[id].fate = Fate::Finished(Ok(()));
                self.queues[queue].finished.push(id);
            }
        }
    }

    /// Ends chain `id`, which is in no queue: it takes no further effect.
    fn lose(&mut self, id: usize, silent: bool) {
        if self.entries[id].fate == (Fate::Posted { detached: true }) {
            self.release(id);
        } else if silent {
            self.entries[id].fate = Fate::Swallowed;
        } else {
            self.entries[id].fate = Fate::Finished(Err(NodeDown));
            let queue = self.entries[id].queue;
            self.queues[queue].finished.push(id);
        }
    }
}

//! Scripted scenarios, played step by step.
//!
//! A scenario test calls these instead of [`Sim::run`]: it determines which client is polled, how
//! far which chains take effect, and which completions arrive.

use super::scheduler::Sim;
use crate::node::NodeId;

/// Maximum number of rounds of [`Sim::finish`].
const ROUNDS: usize = 100_000;

impl Sim {
    /// Polls each task of a client once: it runs until it waits.
    pub fn poll_once(&mut self, client: usize) {
        self.poll_client(client);
    }

    /// Polls one task of a client, by its position among the client's tasks that are not done: it
    /// runs until it waits, and the others do not.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn poll_task(&mut self, client: usize, task: usize) {
        let own = |&index: &usize| self.tasks[index].client == client;
        let index = (0..self.tasks.len()).filter(own).nth(task);
        self.poll(index.expect("the client has no such task"));
    }

    /// Lets the client's next chain to `node` access these words of the current verb, in this
    /// order, each counted from the verb's first.
    ///
    /// # Panics
    /// If there is no chain, or no such word that was not accessed yet.
    pub fn take_words(&mut self, client: usize, node: NodeId, words: &[usize]) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        for &word in words {
            assert!(world.can_step(queue), "client {client} has nothing on its way to {node}");
            world.step(queue, Some(word));
        }
    }

    /// Lets the client's next chain to `node` do `verbs` more verbs (the first being the rest of
    /// the current one).
    ///
    /// # Panics
    /// If there is none.
    pub fn take_verbs(&mut self, client: usize, node: NodeId, verbs: usize) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        for _ in 0..verbs {
            assert!(world.can_step(queue), "client {client} has nothing on its way to {node}");
            world.step_verb(queue);
        }
    }

    /// Lets the client's next `chains` chains to `node` take effect.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn take_chains(&mut self, client: usize, node: NodeId, chains: usize) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        let posted = world.posted(queue);
        assert!(
            posted >= chains,
            "client {client} has only {posted} chains on their way to {node}"
        );
        while world.posted(queue) > posted - chains {
            world.step_verb(queue);
        }
    }

    /// Lets all chains of the client to `node` take effect.
    pub fn take_all(&mut self, client: usize, node: NodeId) {
        let chains = self.on_their_way(client, node);
        self.take_chains(client, node, chains);
    }

    /// Returns how many chains of the client to `node` are pending.
    pub fn on_their_way(&self, client: usize, node: NodeId) -> usize {
        let world = self.world();
        world.posted(world.queue(client, node))
    }

    /// Loses the client's pending chains to `node` without notice.
    pub fn lose_chains(&mut self, client: usize, node: NodeId) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        world.cut(queue);
    }

    /// Delivers all completions of the client's chains to `node`.
    pub fn deliver(&mut self, client: usize, node: NodeId) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        while world.can_deliver(queue) {
            world.deliver_oldest(queue);
        }
    }

    /// Does one roundtrip of a client to `nodes`: its chains there take effect, the completions
    /// arrive, the client is polled.
    pub fn roundtrip(&mut self, client: usize, nodes: &[NodeId]) {
        for &node in nodes {
            self.take_all(client, node);
            self.deliver(client, node);
        }
        self.poll_once(client);
    }

    /// Does roundtrips of a client to `nodes` until its tasks are done; nothing happens elsewhere.
    /// Returns `false` if they are not done after very many.
    pub fn finish(&mut self, client: usize, nodes: &[NodeId]) -> bool {
        for _ in 0..ROUNDS {
            if self.tasks(client) == 0 {
                return true;
            }
            self.roundtrip(client, nodes);
        }
        self.tasks(client) == 0
    }

    /// Crashes `node`, for good. Chains to it end as node down, or never if it is `silent`.
    pub fn crash_node(&mut self, node: NodeId, silent: bool) {
        self.world().crash_node(node, silent);
    }

    /// Pauses `node`: nothing happens there until it resumes. Chains that are pending by then still
    /// take effect.
    pub fn freeze_node(&mut self, node: NodeId) {
        self.world().freeze(node);
    }

    /// Resumes a paused node.
    pub fn thaw_node(&mut self, node: NodeId) {
        self.world().thaw(node);
    }

    /// Breaks a client's connection to a node: pending chains end as node down. If `late`, they
    /// take effect anyway, before any that are posted from now on.
    pub fn disconnect(&mut self, client: usize, node: NodeId, late: bool) {
        self.world().disconnect(client, node, late);
    }

    /// Kills a client at its current await. At each node, its pending chains take effect, or stop
    /// somewhere.
    pub fn crash_client(&mut self, client: usize) {
        self.drop_tasks(client);
        self.world().crash_client(client);
    }
}

//! Stories played step by step.
//!
//! A test that tells a story calls these instead of [`Sim::run`]: it says who is polled, which
//! chains take effect how far, and which completions arrive.

use super::scheduler::Sim;
use crate::node::NodeId;

/// How often [`Sim::finish`] goes round before it gives up.
const ROUNDS: usize = 100_000;

impl Sim {
    /// Polls each task of a client once: it goes on until it waits.
    pub fn poll_once(&mut self, client: usize) {
        self.poll_client(client);
    }

    /// Polls one task of a client, by its place among those that the client was given and that are
    /// not done: it goes on until it waits, and the others do not.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn poll_task(&mut self, client: usize, task: usize) {
        let own = |&index: &usize| self.tasks[index].client == client;
        let index = (0..self.tasks.len()).filter(own).nth(task);
        self.poll(index.expect("the client has no such task"));
    }

    /// The client's next chain to `node` touches these words of the verb under way, in this order,
    /// each counted from the verb's first.
    ///
    /// # Panics
    /// If there is no chain, or no such word that was not touched yet.
    pub fn take_words(&mut self, client: usize, node: NodeId, words: &[usize]) {
        let mut world = self.world();
        let queue = world.queue(client, node);
        for &word in words {
            assert!(world.can_step(queue), "client {client} has nothing on its way to {node}");
            world.step(queue, Some(word));
        }
    }

    /// The client's next chain to `node` does `verbs` more verbs (or what is left of the one under
    /// way, and so on).
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

    /// The client's next `chains` chains to `node` take effect.
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

    /// All chains of the client to `node` take effect.
    pub fn take_all(&mut self, client: usize, node: NodeId) {
        let chains = self.on_their_way(client, node);
        self.take_chains(client, node, chains);
    }

    /// How many chains of the client to `node` are not over.
    pub fn on_their_way(&self, client: usize, node: NodeId) -> usize {
        let world = self.world();
        world.posted(world.queue(client, node))
    }

    /// The client's chains to `node` that are not over are lost without a word.
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

    /// One roundtrip of a client to `nodes`: what is on its way there takes effect, the completions
    /// arrive, the client is polled.
    pub fn roundtrip(&mut self, client: usize, nodes: &[NodeId]) {
        for &node in nodes {
            self.take_all(client, node);
            self.deliver(client, node);
        }
        self.poll_once(client);
    }

    /// Roundtrips of a client to `nodes` until its tasks are done; nothing happens elsewhere.
    /// `false` if they are not done after very many.
    pub fn finish(&mut self, client: usize, nodes: &[NodeId]) -> bool {
        for _ in 0..ROUNDS {
            if self.tasks(client) == 0 {
                return true;
            }
            self.roundtrip(client, nodes);
        }
        self.tasks(client) == 0
    }

    /// `node` crashes, for good. Chains to it end as node down, or never if it is `silent`.
    pub fn crash_node(&mut self, node: NodeId, silent: bool) {
        self.world().crash_node(node, silent);
    }

    /// Nothing happens at `node` until it goes on; what is on its way there by then still takes
    /// effect.
    pub fn freeze_node(&mut self, node: NodeId) {
        self.world().freeze(node);
    }

    /// A frozen node goes on.
    pub fn thaw_node(&mut self, node: NodeId) {
        self.world().thaw(node);
    }

    /// A client's connection to a node breaks: what is on its way ends as node down. It takes
    /// effect all the same if it is `late`, in front of whatever is posted from now on.
    pub fn disconnect(&mut self, client: usize, node: NodeId, late: bool) {
        self.world().disconnect(client, node, late);
    }

    /// A client dies at the await where it is. At each node, what it had on its way takes effect,
    /// or stops somewhere.
    pub fn crash_client(&mut self, client: usize) {
        self.drop_tasks(client);
        self.world().crash_client(client);
    }
}

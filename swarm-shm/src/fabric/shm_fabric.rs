//! The fabric over mapped memory: a chain runs in the caller, synchronously.

use core::cell::Cell;
use core::future::{Ready, ready};
use std::sync::Arc;

use swarm_core::fabric::{Fabric, NodeDown, Store, Swap, Verb};
use swarm_core::node::{Address, MAX_NODES, NodeId};

use crate::clients::epoch_domain::ShmEpochs;
use crate::fabric::reply::{Replies, Reply, SHORT_WORDS};
use crate::files::mapping::{Mapping, Window};
use crate::fork::Origin;
use crate::members::Members;
use crate::pool::Pool;
use crate::sigbus::any_lost;
use crate::words::chain::{
    FIRST_WORD, clear, fence_behind_write, fetch, load, prefetch, prefetch_change, run, write_cas,
    write_cas_cas, write_cas_load,
};
use crate::words::sync::Word;

/// Windows for nodes: a power of two, so that finding a node takes no branch.
const WINDOWS: usize = (MAX_NODES + 1).next_power_of_two();

/// One client's access to the nodes of a pool.
///
/// `Send`, not `Sync`: each thread opens its own with [`Pool::fabric`]. It keeps the pool's memory
/// mapped for as long as it lives, and that of a node that was replaced until it has
/// [taken up](Fabric::reconfigure) the next file. A chain takes effect within [`post`](Fabric::post), and its
/// completion is ready at once.
#[derive(Debug)]
pub struct ShmFabric {
    /// The nodes' words after their headers. A missing node's window is empty, as are those past
    /// the last node: a verb's bounds check refuses both without a check of their own.
    windows: [Window; WINDOWS],
    nodes: usize,
    /// The pool, if its nodes may be replaced meanwhile, and the configuration by which the windows
    /// are those of its nodes.
    pool: Option<Pool>,
    taken_up: Cell<[u64; MAX_NODES]>,
    replies: Replies,
    /// Whether no fence followed this client's last store.
    unfenced: Cell<bool>,
    /// The process that owns it: none, once the client is cut off.
    origin: Cell<Origin>,
}

impl Pool {
    /// Returns access to the nodes for one client.
    ///
    /// # Panics
    /// The pool was opened to [read only](crate::OpenOptions::read_only).
    pub fn fabric(&self) -> ShmFabric {
        assert!(!self.is_read_only(), "the pool was opened to read alone");
        ShmFabric::new(self)
    }

    /// Returns access to the nodes that posts READs only.
    pub fn read_fabric(&self) -> ReadFabric {
        ReadFabric::new(ShmFabric::new(self))
    }
}

impl ShmFabric {
    fn new(pool: &Pool) -> Self {
        let windows = std::array::from_fn(|_| Window::empty(FIRST_WORD as usize));
        let fabric = Self::over(windows, pool.geometry().nodes, Some(pool.clone()));
        fabric.look_through(&pool.take_up());
        fabric
    }

    /// Returns access to one of a pool's nodes; the others are down.
    pub(crate) fn of_one(nodes: usize, node: NodeId, mapping: &Arc<Mapping>) -> Self {
        let windows = std::array::from_fn(|other| match other == node.index() {
            true => Window::new(mapping, FIRST_WORD as usize),
            false => Window::empty(FIRST_WORD as usize),
        });
        Self::over(windows, nodes, None)
    }

    fn over(windows: [Window; WINDOWS], nodes: usize, pool: Option<Pool>) -> Self {
        Self {
            windows,
            nodes,
            pool,
            taken_up: Cell::new([0; MAX_NODES]),
            replies: Replies::new(),
            unfenced: Cell::new(false),
            origin: Cell::new(Origin::current()),
        }
    }

    /// Has the windows show these nodes.
    fn look_through(&self, members: &Members) {
        for (node, window) in self.windows.iter().enumerate() {
            // SAFETY: the words that a window lends are used within the method of this type that
            // took them, none of which calls this one; replies are copies. No other thread has the
            // fabric, as it is not `Sync`.
            unsafe { window.change(members.mapping(node)) };
        }
        self.taken_up.set(*members.words());
    }

    #[inline(always)]
    fn words(&self, node: NodeId) -> &[Word] {
        self.windows[node.index() % WINDOWS].words()
    }

    /// Returns whether the memory of `node` [is lost](crate::sigbus) to this process: the node does
    /// not answer. S11: a chain asks after its loads and CASes, each of which a fence follows.
    /// Zeros in place of lost memory are no vote, and a CAS there swapped nothing that others see.
    #[inline(always)]
    fn is_lost(&self, node: NodeId) -> bool {
        any_lost() && self.windows[node.index() % WINDOWS].is_lost()
    }
}

impl Fabric for ShmFabric {
    type EpochDomain = ShmEpochs;
    type Reply<'f> = Reply<'f>;
    type Completion<'f> = Ready<Result<Reply<'f>, NodeDown>>;

    #[inline(always)]
    fn is_near(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        self.origin.get().is_elsewhere()
    }

    fn cut_off(&self) {
        self.origin.set(Origin::nowhere());
    }

    /// H9: chains go to a former life until here, and none does behind it.
    #[cold]
    fn reconfigure(&self) {
        let Some(pool) = &self.pool else { return };
        let members = pool.take_up();
        if *members.words() != self.taken_up.get() {
            self.look_through(&members);
        }
    }

    #[inline(always)]
    fn nodes(&self) -> usize {
        self.nodes
    }

    #[inline(always)]
    fn expect(&self, node: NodeId, at: Address, words: usize) {
        prefetch(self.words(node), at, words);
    }

    #[inline(always)]
    fn expect_change(&self, node: NodeId, at: Address, words: usize) {
        prefetch_change(self.words(node), at, words);
    }

    #[inline(always)]
    fn prefetch_local<T>(&self, local: &T) {
        crate::words::sync::prefetch(core::ptr::from_ref(local));
    }

    #[inline(always)]
    fn load<const N: usize>(&self, node: NodeId, at: Address) -> Option<[u64; N]> {
        let loaded = load(self.words(node), at, &self.unfenced).ok()?;
        if self.is_lost(node) { None } else { Some(loaded) }
    }

    #[inline(always)]
    fn fetch(&self, node: NodeId, at: Address, words: usize) -> Option<Reply<'_>> {
        let memory = self.words(node);
        // A long reply must be one that the node can give, before a buffer is allocated for it.
        if words > SHORT_WORDS && words > memory.len() {
            return None;
        }
        let mut buffer = self.replies.take(words);
        match fetch(memory, at, &mut buffer[..words], &self.unfenced) {
            Ok(()) if !self.is_lost(node) => Some(self.replies.lend(buffer, words)),
            _ => {
                self.replies.take_back(buffer);
                None
            }
        }
    }

    #[inline(always)]
    fn write_cas_load<const N: usize>(
        &self,
        node: NodeId,
        store: Store<'_>,
        swap: Swap,
        at: Address,
    ) -> Option<(u64, [u64; N])> {
        let done = write_cas_load(self.words(node), store, swap, at, &self.unfenced).ok()?;
        if self.is_lost(node) { None } else { Some(done) }
    }

    #[inline(always)]
    fn write_cas_cas(&self, node: NodeId, store: Store<'_>, swaps: [Swap; 2]) -> Option<u64> {
        let found = write_cas_cas(self.words(node), store, swaps, &self.unfenced).ok()?;
        if self.is_lost(node) { None } else { Some(found) }
    }

    #[inline(always)]
    fn write_cas(&self, node: NodeId, store: Option<Store<'_>>, swap: Swap) {
        // No caller waits for it.
        let _ = write_cas(self.words(node), store, swap, &self.unfenced);
    }

    #[inline(always)]
    fn clear<const N: usize>(&self, node: NodeId, at: &[Address]) -> Option<()> {
        let done = clear::<N>(self.words(node), at, &self.unfenced);
        // S11: the check below comes after the WRITEs: those to a lost node's pages do not count.
        fence_behind_write(&self.unfenced);
        if done.is_err() || self.is_lost(node) { None } else { Some(()) }
    }

    /// Runs the chain. A verb outside the node's memory touches nothing and ends the chain as if
    /// the node did not answer.
    #[inline(always)]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let memory = self.words(node);
        let words = chain.iter().fold(0_usize, |sum, verb| sum.saturating_add(verb.yields()));
        // A long reply must be one that the node can give, before a buffer is allocated for it. And
        // a store to the pages of a lost node takes memory.
        let is_too_long = || chain.iter().any(|verb| verb.yields() > memory.len());
        if (words > SHORT_WORDS && is_too_long()) || self.is_lost(node) {
            return ready(Err(NodeDown));
        }
        let mut buffer = self.replies.take(words);
        let done = run(memory, chain, &self.unfenced, &mut buffer[..words]);
        // S11: the check below also comes after a final WRITE: one to a lost node's pages does not
        // count.
        fence_behind_write(&self.unfenced);
        match done {
            Ok(()) if (!chain.is_empty() || !memory.is_empty()) && !self.is_lost(node) => {
                ready(Ok(self.replies.lend(buffer, words)))
            }
            _ => {
                self.replies.take_back(buffer);
                ready(Err(NodeDown))
            }
        }
    }
}

/// Access to a pool's nodes by READs only. A chain with any other verb is not posted, as if its
/// node did not answer. Memory may be reused while it is read, as this reader is in no epoch table.
#[derive(Debug)]
pub struct ReadFabric(ShmFabric);

impl ReadFabric {
    pub(crate) fn new(fabric: ShmFabric) -> Self {
        Self(fabric)
    }
}

impl Fabric for ReadFabric {
    type EpochDomain = ShmEpochs;
    type Reply<'f> = Reply<'f>;
    type Completion<'f> = Ready<Result<Reply<'f>, NodeDown>>;

    fn is_near(&self) -> bool {
        true
    }

    fn is_cut_off(&self) -> bool {
        self.0.is_cut_off()
    }

    fn cut_off(&self) {
        self.0.cut_off();
    }

    fn reconfigure(&self) {
        self.0.reconfigure();
    }

    fn nodes(&self) -> usize {
        self.0.nodes()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let reads = |verb: &Verb<'_>| matches!(verb, Verb::Read { .. });
        if !chain.iter().all(reads) {
            return ready(Err(NodeDown));
        }
        self.0.post(node, chain)
    }
}

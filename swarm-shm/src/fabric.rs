//! The fabric over mapped memory: a chain runs in the caller, at once.

use core::cell::Cell;
use core::future::{Ready, ready};

use swarm_core::fabric::{Fabric, NodeDown, Store, Swap, Verb};
use swarm_core::node::{Address, MAX_NODES, NodeId};

use crate::board::PoolBoard;
use crate::chain::{
    FIRST_WORD, fetch, load, prefetch, prefetch_change, run, write_cas, write_cas_load,
};
use crate::fork::Origin;
use crate::mapping::Window;
use crate::pool::Pool;
use crate::reply::{Replies, Reply, SHORT_WORDS};
use crate::sync::Word;

/// Slots for nodes: a power of two, so that finding a node takes no branch.
const WINDOWS: usize = (MAX_NODES + 1).next_power_of_two();

/// One client's access to the nodes of a pool.
///
/// `Send`, not `Sync`: each thread opens its own with [`Pool::fabric`]. It keeps the pool's memory
/// mapped for as long as it lives. A chain takes effect within [`post`](Fabric::post) and its
/// completion is ready from the beginning.
#[derive(Debug)]
pub struct ShmFabric {
    /// The nodes' words behind their headers. A missing node's window is empty, as are those past
    /// the last node: the bounds check of a verb notices them with no check of their own.
    windows: [Window; WINDOWS],
    nodes: usize,
    replies: Replies,
    /// Whether the last store of this client has no fence behind it.
    unfenced: Cell<bool>,
    /// Whose it is: nobody's, once the client is cut off.
    origin: Cell<Origin>,
}

impl ShmFabric {
    pub(crate) fn new(pool: &Pool) -> Self {
        let windows = std::array::from_fn(|node| match pool.mapping(node) {
            Some(mapping) => Window::new(mapping, FIRST_WORD as usize),
            None => Window::empty(),
        });
        let nodes = pool.geometry().nodes;
        let (replies, unfenced) = (Replies::new(), Cell::new(false));
        Self { windows, nodes, replies, unfenced, origin: Cell::new(Origin::here()) }
    }

    #[inline(always)]
    fn words(&self, node: NodeId) -> &[Word] {
        self.windows[node.index() % WINDOWS].words()
    }
}

impl Fabric for ShmFabric {
    type Board = PoolBoard;
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
    fn bring<T>(&self, local: &T) {
        crate::sync::prefetch(core::ptr::from_ref(local));
    }

    #[inline(always)]
    fn load<const N: usize>(&self, node: NodeId, at: Address) -> Option<[u64; N]> {
        load(self.words(node), at, &self.unfenced).ok()
    }

    #[inline(always)]
    fn fetch(&self, node: NodeId, at: Address, words: usize) -> Option<Reply<'_>> {
        let memory = self.words(node);
        // Before a buffer is made for it, a long reply must be one that the node can give.
        if words > SHORT_WORDS && words > memory.len() {
            return None;
        }
        let mut buffer = self.replies.take(words);
        match fetch(memory, at, &mut buffer[..words], &self.unfenced) {
            Ok(()) => Some(self.replies.lend(buffer, words)),
            Err(NodeDown) => {
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
        write_cas_load(self.words(node), store, swap, at, &self.unfenced).ok()
    }

    #[inline(always)]
    fn write_cas(&self, node: NodeId, store: Option<Store<'_>>, swap: Swap) {
        // Nobody waits for it.
        let _ = write_cas(self.words(node), store, swap, &self.unfenced);
    }

    /// Runs the chain. A verb that reaches outside of the node's memory touches nothing and ends
    /// the chain as though the node did not answer.
    #[inline(always)]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let memory = self.words(node);
        let words = chain.iter().fold(0_usize, |sum, verb| sum.saturating_add(verb.yields()));
        // Before a buffer is made for it, a long reply must be one that the node can give.
        if words > SHORT_WORDS && chain.iter().any(|verb| verb.yields() > memory.len()) {
            return ready(Err(NodeDown));
        }
        let mut buffer = self.replies.take(words);
        match run(memory, chain, &self.unfenced, &mut buffer[..words]) {
            Ok(()) if !chain.is_empty() || !memory.is_empty() => {
                ready(Ok(self.replies.lend(buffer, words)))
            }
            _ => {
                self.replies.take_back(buffer);
                ready(Err(NodeDown))
            }
        }
    }
}

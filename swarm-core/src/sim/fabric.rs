//! A client's view of the simulated world.

use core::future::{Future, poll_fn};
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;
use std::string::ToString;
use std::vec::Vec;

use super::trace::Step;
use super::world::World;
use crate::clock::Clock;
use crate::fabric::{EpochDomain, Fabric, NodeDown, Verb};
use crate::node::NodeId;

/// A client's connections to the simulated nodes.
#[derive(Clone, Debug)]
pub struct SimFabric {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) client: usize,
    /// Whether a chain is done when `post` returns. Meanwhile chains of other clients run, word by
    /// word.
    pub(super) near: bool,
}

impl SimFabric {
    /// Lets others run once.
    pub async fn turn(&self) {
        let mut waited = false;
        poll_fn(|_| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            self.world.borrow_mut().wake(self.client);
            Poll::Pending
        })
        .await;
    }

    /// Returns whether `client` is dead, and nothing that it posted can take effect any more.
    pub fn is_gone(&self, client: usize) -> bool {
        self.world.borrow().is_dead(client) && self.is_still(client)
    }

    /// Returns whether nothing that `client` has posted can take effect any more.
    pub fn is_still(&self, client: usize) -> bool {
        let world = self.world.borrow();
        world.oldest_under_way(client) == world.posts(client)
    }

    /// Poisons these words until this client WRITEs to some of them: a verb that begins with one of
    /// them before that accesses reclaimed memory.
    ///
    /// # Panics
    /// The run of the schedule panics at such a verb.
    pub fn forbid(&self, words: Vec<(NodeId, Range<u64>)>) {
        self.world.borrow_mut().forbid(self.client, words);
    }

    /// Poisons at `node`, which takes the place of `former`, what is poisoned there.
    pub fn succeed(&self, former: NodeId, node: NodeId) {
        self.world.borrow_mut().succeed(former, node);
    }

    /// Unpoisons these words of every node.
    pub fn permit(&self, words: Range<u64>) {
        self.world.borrow_mut().permit(words);
    }

    /// Transfers words that are poisoned until `dead` WRITEs to them to this client.
    pub fn inherit(&self, dead: usize) {
        self.world.borrow_mut().bequeath(dead, self.client);
    }

    /// Lets chains of all clients do up to this many words, in the middle of one step of this
    /// client. For code with steps of its own that the simulator does not know.
    pub fn go_on(&self, words: u8) {
        self.world.borrow_mut().go_on(self.client, words);
    }

    /// Adds a line to the trace, if there is one.
    pub fn note(&self, text: impl core::fmt::Display) {
        self.world.borrow_mut().log(|| Step::Note(self.client, text.to_string()));
    }
}

/// A pending chain to a simulated node.
#[derive(Debug)]
pub struct SimCompletion<'f> {
    fabric: &'f SimFabric,
    /// `None` once the result was returned.
    chain: Option<usize>,
}

impl Future for SimCompletion<'_> {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let chain = self.chain.expect("a completion is not polled after it was ready");
        let polled = self.fabric.world.borrow_mut().poll(chain);
        if polled.is_ready() {
            self.chain = None;
        }
        polled
    }
}

impl Drop for SimCompletion<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain {
            self.fabric.world.borrow_mut().detach(chain);
        }
    }
}

impl Fabric for SimFabric {
    type EpochDomain = Box<dyn EpochDomain>;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = SimCompletion<'f>;

    fn is_near(&self) -> bool {
        self.near
    }

    fn nodes(&self) -> usize {
        self.world.borrow().nodes()
    }

    fn posted(&self) -> u64 {
        self.world.borrow().posts(self.client)
    }

    fn oldest_under_way(&self) -> u64 {
        self.world.borrow().oldest_under_way(self.client)
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> SimCompletion<'f> {
        let mut world = self.world.borrow_mut();
        let chain = world.post(self.client, node, chain);
        if self.near {
            world.go_on_until_over(self.client, node);
        }
        SimCompletion { fabric: self, chain: Some(chain) }
    }
}

/// A client's clock. It advances with every step, and a little with each look.
#[derive(Clone, Debug)]
pub struct SimClock {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) client: usize,
}

impl Clock for SimClock {
    fn now(&self) -> u64 {
        self.world.borrow_mut().now(self.client)
    }
}

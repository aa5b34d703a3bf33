//! Objects that processes coordinate by: each is a key, and its state is that key's value, in a
//! cell. It is opened by its name, by any client.
//!
//! | file | concept |
//! | --- | --- |
//! | `lock`, `rw_lock`, `semaphore` | one holder at a time; many that read or one that writes; permits |
//! | `once` | what is done once |
//! | `guard` | what a holder has: its token, and the duty to leave |
//! | `barrier`, `latch` | members that wait for each other; a count to wait for |
//! | `barrier_state` | the state of a barrier |
//! | `atomic`, `guarded` | values that are changed as a whole; with the features `zerocopy` and `serde` |
//! | `blocking` | the same for programs without `async` |
//! | `waiting` | entering a queue, waiting, leaving; places that were left half-way |
//! | `turnstile` | the state: holders, tokens, and a queue in order of arrival |
//! | `seat` | who holds or waits: a client's slot and session |
//! | `cell` | kind and state in one value |
//! | `pace` | how often a client that waits looks |
//! | `kind`, `error` | what a key holds; what an operation on an object failed for |
//!
//! **Death is a fact.** A client that ends, in whatever way, leaves its places in all objects: another one that
//! comes by takes them away once it [is known to have ended](swarm_core::fabric::EpochDomain::is_gone) (O1). On
//! shared memory the kernel knows at once. Behind RDMA a majority of the memory nodes has to fence it: once its lease
//! in etcd is over and somebody waits, or when an operator evicts it. A client that is stopped, or does not poll its
//! futures, has not ended: it keeps what it holds until it goes on, or is [evicted](Lock::evict). (Behind RDMA with
//! etcd, clients that wait evict one that is stopped for longer than its lease: it looks dead.)
//!
//! **A token is larger than all before it.** Each holder gets one (O2), and what a lock guards outside of its
//! cell should be fenced with it: a client that was evicted may not know yet.
//!
//! **What locks do not do.** A value under another key, written by a holder that died, may surface after the
//! next holder has taken over: a write is not undone by the death of its writer. The next holder
//! [learns](Guard::is_unsettled) that, and can [settle](Guard::settle) such keys (O7). State that must change with a
//! lock belongs into one value, which [`update_with`](crate::Client::update_with), an `Atomic` or a `Guarded`
//! changes as a whole, without a lock.
//!
//! **Programs** to copy, in the repository's `examples/rust`: `leader_election`, `job_queue` (which loses no job, whichever process is killed),
//! `rate_limiter` (one value, and no lock) and `config_watch`.
//!
//! **Threads and tasks** that share a handle have the same of it: [`Store::lock`](crate::Store::lock) and so on, and without `async`
//! [`BlockingStore::lock`](crate::store::BlockingStore::lock). There what is held borrows nothing, and neither a holder nor a waiter keeps
//! one of the handle's clients.
//!
//! **Deleting** the key of an object ends it, and its tokens begin anew: delete it when nobody uses it. A plain
//! write of the key makes it something else, and all uses of the object end in [`ObjectError::OtherKind`].

#[cfg(feature = "zerocopy")]
mod atomic;
mod barrier;
mod barrier_state;
mod blocking;
mod cell;
mod error;
mod guard;
#[cfg(feature = "serde")]
mod guarded;
mod kind;
mod latch;
mod lock;
mod once;
pub(crate) mod pace;
mod rw_lock;
mod seat;
mod semaphore;
pub(crate) mod turnstile;
pub(crate) mod waiting;

#[cfg(test)]
mod tests;

#[cfg(feature = "zerocopy")]
pub use atomic::{Atomic, BlockingAtomic};
pub use barrier::{Barrier, BarrierView, Member};
pub use barrier_state::MAX_MEMBERS;
pub use blocking::{
    BlockingBarrier, BlockingDoing, BlockingGuard, BlockingLatch, BlockingLock, BlockingMember,
    BlockingOnce, BlockingRwLock, BlockingSemaphore,
};
pub use error::ObjectError;
pub use guard::Guard;
#[cfg(feature = "serde")]
pub use guarded::{BlockingGuarded, Guarded};
pub use kind::ObjectKind;
pub use latch::Latch;
pub use lock::Lock;
pub use once::{Doing, Once};
pub use rw_lock::RwLock;
pub use seat::Seat;
pub use semaphore::Semaphore;
pub use turnstile::{Holder, MAX_HOLDERS, MAX_WAITERS, QueueView};

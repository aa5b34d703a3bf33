//! Objects that processes coordinate by: each is a key, and its state is that key's value, in a
//! [cell](crate::ops::keyed). It is opened by its name, by whoever has a client.
//!
//! | file | concept |
//! | --- | --- |
//! | `lock` | one holder at a time |
//! | `guard` | what a holder has: its token, and the duty to leave |
//! | `blocking` | the same for programs without `async` |
//! | `waiting` | entering a queue, waiting, leaving; places that were left half-way |
//! | `turnstile` | the state: holders, tokens, and a queue in order of arrival |
//! | `seat` | who holds or waits: a client's slot and session |
//! | `pace` | how often who waits looks |
//! | `kind`, `error` | what a key holds; what an operation on an object failed for |
//!
//! **Death is a fact.** A client that ends, in whatever way, leaves its places in all objects: whoever comes by takes them away
//! once the client [is known to have ended](swarm_core::fabric::EpochDomain::is_gone) (L1). On shared memory the kernel knows at once. A client that is stopped, or
//! does not poll its futures, has not ended: it keeps what it holds until it goes on, or is [evicted](Lock::evict).
//!
//! **A token is larger than all before it.** Each holder gets one (L2), and what a lock guards outside of its cell should be
//! fenced with it: who was evicted may not know yet.
//!
//! **What locks do not do.** A value under another key, written by a holder that died, may surface after the next holder has taken
//! over: a write is not undone by the death of its writer. State that must change with a lock belongs into one value, which
//! [`update_with`](crate::Client::update_with) changes as a whole, without a lock.
//!
//! **Deleting** the key of an object ends it, and its tokens begin anew: delete it when nobody uses it. A plain write of the key
//! makes it something else, and all uses of the object end in [`ObjectError::OtherKind`].

mod blocking;
mod error;
mod guard;
mod kind;
mod lock;
mod pace;
mod seat;
mod turnstile;
mod waiting;

#[cfg(test)]
mod tests;

pub use blocking::{BlockingGuard, BlockingLock};
pub use error::ObjectError;
pub use guard::Guard;
pub use kind::ObjectKind;
pub use lock::Lock;
pub use seat::Seat;
pub use turnstile::{Holder, MAX_HOLDERS, MAX_WAITERS, QueueView};

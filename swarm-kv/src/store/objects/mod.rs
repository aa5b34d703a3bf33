//! [Objects](crate::objects) and watched keys of a handle: what is held borrows nothing, and no client is in use while something is
//! held or waited for.
//!
//! A place in an object names one of the handle's clients, which lives as long as the handle does, and what is held keeps the handle.
//! Each look, and each change, is made by whichever client is lent out for it. So any number of tasks wait with a few clients, and
//! what is done under a lock takes none of another's.
//!
//! | file | concept |
//! | --- | --- |
//! | `lock`, `guard` | locks, readers-writer locks and semaphores; what a holder has |
//! | `once`, `latch`, `barrier` | what is done once; a count to wait for; members that wait for each other |
//! | `atomic`, `guarded` | values that are changed as a whole; with the features `zerocopy` and `serde` |
//! | `watch` | a key, as it changes |
//! | `blocking` | the same for programs without `async` |
//! | `looks`, `pause` | looking again and again, and the time in between |
//! | `place` | a place in an object, and places that were left half-way |

#[cfg(feature = "zerocopy")]
mod atomic;
mod barrier;
mod blocking;
mod guard;
#[cfg(feature = "serde")]
mod guarded;
mod latch;
mod lock;
mod looks;
mod once;
mod pause;
mod place;
mod watch;

#[cfg(test)]
mod tests;

#[cfg(feature = "zerocopy")]
pub use atomic::StoreAtomic;
pub use barrier::{StoreBarrier, StoreMember};
pub use blocking::BlockingObject;
pub use guard::StoreGuard;
#[cfg(feature = "serde")]
pub use guarded::StoreGuarded;
pub use latch::StoreLatch;
pub use lock::{StoreLock, StoreRwLock, StoreSemaphore};
pub use once::{Begun, StoreDoing, StoreOnce};
pub use pause::Pause;
pub(super) use place::LeftPlaces;
pub use watch::StoreWatch;

//! The store for C and C++: `include/swarm.h` is made from this crate, `include/swarm.hpp` lies over it.
//!
//! **Invariant:** *nothing that a caller passes in, and nothing that goes wrong in here, unwinds or aborts a program in C*. Each call
//! goes through [`status::call`], which catches panics; each argument through [`arguments`], which refuses NULL and lengths that
//! cannot be. What a caller must see to himself is that a pointer which is not NULL points to what the header says.
//!
//! | file | concept |
//! | --- | --- |
//! | `status` | what a call comes to: a status, and an error's text |
//! | `arguments` | what callers pass in, and where results go |
//! | `store` | a handle: opened, reopened, closed |
//! | `blocking` | operations that return when they are done |
//! | `cursor` | keys, one by one |
//! | `operation` | operations that are submitted, and polled |
//! | `lock`, `guard`, `view` | locks and the like; what their holders have; who they are |
//! | `latch`, `barrier` | counts and members that are waited for |
//! | `atomic`, `guarded` | values that change as a whole |
//! | `watch` | keys that are watched |
//! | `wait` | waiting, for so long at most |
#![expect(non_camel_case_types, reason = "they are named as C names them")]

mod arguments;
pub mod status;

// In the header's order.
pub mod store;

pub mod blocking;
pub mod cursor;
pub mod operation;

pub mod guard;
pub mod lock;
pub mod view;

pub mod barrier;
pub mod latch;

pub mod atomic;
pub mod guarded;

mod wait;
pub mod watch;

/// Bytes of the longest key. The shortest has one.
pub const SWARM_MAX_KEY: usize = 255;
/// Bytes of the longest value: 1 MiB. The shortest has none.
pub const SWARM_MAX_VALUE: usize = 1048576;
/// Bytes of an error's message, with the zero byte at its end.
pub const SWARM_MESSAGE: usize = 1024;

/// Holders of one object at most.
pub const SWARM_MAX_HOLDERS: usize = 32;
/// Clients that wait for one object in order of arrival, at most. More of them try again until there is room.
pub const SWARM_MAX_WAITERS: usize = 32;
/// Members of one barrier at most.
pub const SWARM_MAX_MEMBERS: usize = 32;
/// A timeout that is never over.
pub const SWARM_FOREVER: u64 = 0xffff_ffff_ffff_ffff;

const _: () = assert!(SWARM_MAX_HOLDERS == swarm_kv::objects::MAX_HOLDERS);
const _: () = assert!(SWARM_MAX_WAITERS == swarm_kv::objects::MAX_WAITERS);
const _: () = assert!(SWARM_MAX_MEMBERS == swarm_kv::objects::MAX_MEMBERS);
const _: () = assert!(SWARM_MAX_KEY == swarm_core::layout::MAX_KEY);
const _: () = assert!(SWARM_MAX_VALUE == swarm_core::layout::MAX_VALUE);

//! Verbs and epochs on shared words: all that loom explores.

#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
pub(crate) mod chain;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
pub(crate) mod epochs;
#[cfg(not(loom))]
pub(crate) mod remote_free;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
pub(crate) mod sync;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
pub(crate) mod waits;

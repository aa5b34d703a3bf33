//! Whether a client goes on by itself.

/// The state of a slot's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClientState {
    /// It lives, by its lock.
    Alive,
    /// It lives, but was stopped, as by SIGSTOP: its operations wait until it continues.
    Stopped,
    /// It lives, but was frozen with its control group, such as a paused container:
    /// [`frozen`](crate::frozen) returns by which file.
    Frozen,
    /// It died without leaving. Its slot is free.
    Dead,
}

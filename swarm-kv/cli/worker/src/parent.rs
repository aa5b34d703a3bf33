//! The channel between a worker and its parent process or thread.

use crate::failure::Failure;
use crate::job::{Message, Order};

/// The interval between progress reports of a client that works for long.
pub(crate) const REPORT_EVERY_NS: u64 = 50_000_000;

/// A worker's channel to its parent.
pub trait ParentChannel {
    /// Sends a message.
    ///
    /// # Errors
    /// The parent has ended.
    fn send(&self, message: Message) -> Result<(), Failure>;
    /// Waits for a command.
    ///
    /// # Errors
    /// The parent has ended.
    fn wait(&self) -> Result<Order, Failure>;
}

//! One client's view of the replicas: its preferred majority, its rounds, and the votes in them.

mod group;
mod round;
mod votes;

pub use group::{Group, Session, SlowPathCounts, Timeouts, Unfinished};
pub use round::{Event, Round};
pub use votes::{Next, VoteCollector};

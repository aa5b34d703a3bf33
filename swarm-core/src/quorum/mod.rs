//! One client's view of the replicas: which majority it turns to, its rounds, and the votes in them.

mod gather;
mod group;
mod round;

pub use gather::{Gathering, Next};
pub use group::{Events, Group, Patience, Session, Unfinished};
pub use round::{Event, Round};

//! What the other tests rest on: the simulator, the explorer of schedules, the shrinking of what fails, the suite for
//! fabrics, and the checker of histories.

mod conformance;
mod explore;
mod history;
mod shrink;
mod sim;

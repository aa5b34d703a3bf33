//! The foundations of the other tests: the simulator, the explorer of schedules, the shrinking of
//! failures, the suite for fabrics, the checker of histories; and models of reclamation by eras.

mod conformance;
mod create;
mod eras;
mod eras_lines;
mod eras_pool;
mod explore;
mod history;
mod shrink;
mod sim;

//! The cell: by itself, in scripted scenarios, and in all schedules of small races. They are one
//! program, as each would compile the protocol anew. Random schedules are a program of their own,
//! which mutations build by the dozen.

mod alone;
mod common;
mod explore;
mod increments;
mod stopped_proposer;
mod stories;

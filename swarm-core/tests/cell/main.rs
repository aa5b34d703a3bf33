//! The cell: by itself, in stories, and in all schedules of small races. One program, as each would build the protocol
//! anew. Random schedules have their own, which mutations build by the dozen.

mod alone;
mod common;
mod explore;
mod stopped_proposer;
mod stories;

//! The register: by itself, in stories, in all schedules of small races, and against adversaries. One program, as each
//! would build the protocols anew. Random schedules have their own, which mutations build by the dozen.

mod alone;
mod bounds;
mod common;
mod explore;
mod gives_up;
mod stories;

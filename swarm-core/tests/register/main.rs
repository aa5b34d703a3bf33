//! The register: by itself, in scripted scenarios, in all schedules of small races, and against
//! adversaries. They are one program, as each would compile the protocols anew. Random schedules
//! are a program of their own, which mutations build by the dozen.

mod alone;
mod bounds;
mod common;
mod explore;
mod gives_up;
mod stories;

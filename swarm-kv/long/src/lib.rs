//! Nothing but tests of swarm-kv, in `tests`. They are a package of their own since packages are what
//! Cargo optimises apart: these compute for so long that it pays to build them optimised.

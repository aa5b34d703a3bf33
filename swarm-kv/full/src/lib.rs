//! Nothing but tests of swarm-kv with full pools, in `tests`. They are a package of their own since packages are what
//! Cargo optimises apart. At level 2 no generic code comes from a crate below, which is not optimised: all of the store
//! is generated with the tests.

//! A pool's files: their headers and contents, and how they are mapped.

pub(crate) mod backing;
pub(crate) mod configuration;
pub(crate) mod control;
pub(crate) mod header;
pub(crate) mod mapping;
pub(crate) mod node;
pub(crate) mod numa;
pub(crate) mod pages;
pub(crate) mod range_lock;
pub(crate) mod switch;

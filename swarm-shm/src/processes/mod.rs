//! The processes behind client slots: which hold one, whether they run, and which have long been stopped in the middle of an
//! operation.

pub(crate) mod freezer;
pub(crate) mod halt;
pub(crate) mod left_alone;
pub(crate) mod process;
pub(crate) mod state;
pub(crate) mod stopped;

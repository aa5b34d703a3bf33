//! The index: extendible hashing over cells. A cell's record is a bucket; a register or a bucket is
//! created together with the record that names it first.

pub(crate) mod bucket;
pub(crate) mod created;
pub(crate) mod keyed_cell;
pub(crate) mod lookup;

//! What lies where: registers, buffers, cells and records, word by word.
//!
//! ```text
//! register:  0  stamp slots [6]
//!            6  created          creation time in nanoseconds since the pool's creation
//!            7  number           of the write that created it: the time and this are its identity
//!            8  in-place copy    at home only: a buffer's image, stamp instead of lock
//!
//!            header              at home in the granule after the copy, elsewhere at 8:
//!            0  shape            [ predecessor's pointer 40 | its class 16 | key length 8 ]
//!            1  predecessor      number of the register that this one replaced, or 0
//!            2  origin           the last stamp there, whose value it began with, or 0
//!            3  checksum         of number, shape, predecessor, origin and key
//!            4  key              bytes, up to a whole word
//!
//! buffer:    0  lock             changed by CAS alone
//!            1  rewrite          timestamp of the verified rewrite, sealed with the checksum
//!            2  number           of the write
//!            3  length, register [ register's pointer 40 | value's length, bytes 24 ]
//!            4  guess            timestamp under which the write was posted
//!            5  checksum
//!            6  value
//!
//! cell:      0  word             changed by CAS alone
//!            1  in-place copy    at the home node only: word, checksum, length (words), payload
//!
//!            of a key: a register's layout, with the word in place of the first stamp slot
//!            1  reserved         five words: the first for when the key expires
//!            6  created, number  as of a register; then, as there, header and key, at home behind
//!            8  in-place copy    as above
//!
//! record:    0  accepted         ballot; changed by CAS alone, only ever grows
//!            1  base             word that named the record that it builds on
//!            2  writer           number of the change
//!            3  length           of the payload, words
//!            4  checksum
//!            5  payload
//! ```

pub mod buffer;
mod bytes;
pub mod cell;
mod class;
mod geometry;
mod identity;
mod place;
mod placement;
pub mod record;
mod regions;
pub mod register;

pub use buffer::{BufferHeader, MAX_VALUE, checksum};
pub use bytes::{bytes, words_for};
pub use cell::cell_checksum;
pub use class::{ChunkClass, SizeClass};
pub use geometry::{
    BOOTSTRAP_RECORDS, BUCKET_PAYLOAD, BadGeometry, Geometry, HEADER_BYTES, LAYOUT_VERSION,
    MAX_CAPACITY, MAX_CHUNKS, MAX_CLIENTS, MIN_CAPACITY,
};
pub use identity::Identity;
pub use place::Location;
pub use placement::{Placement, ReplicaSet};
pub use record::RecordHeader;
pub(crate) use register::has_key;
pub use register::{
    Header, MAX_IN_PLACE, MAX_KEY, Predecessor, SLOTS, Shape, header, words_in_place,
};

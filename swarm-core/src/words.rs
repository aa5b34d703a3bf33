//! The words that the protocols compare and swap.
//!
//! ```text
//! stamp = [ timestamp | pointer | verified | frozen ]     0 = empty
//! cell  = [ ballot    | pointer | confirmed    | accepted ]   0 = vacant, confirmed and accepted
//! lock  = [ write number              | mode ]            0 = never locked
//! ```
//!
//! A pointer has just enough bits for a node's memory; timestamps and ballots get all others. The
//! split is a pool's [`WordFormat`]. (§4.2 of the paper has 32 and 31 bits.)

use core::cmp::Ordering;
use core::fmt;

use bitflags::bitflags;

/// Bytes in a granule, the unit of pointers.
pub const GRANULE: usize = 64;
/// Words in a granule.
pub const GRANULE_WORDS: usize = GRANULE / 8;

const FLAG_BITS: u32 = 2;

/// An object's address in the memory of every node, in granules. 0 is null.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Pointer(pub u64);

impl Pointer {
    /// The null pointer.
    pub const NULL: Self = Self(0);

    /// Returns whether this is null.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// Ticks of wall-clock time since a register's creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The timestamp with which a register is created.
    pub const FIRST: Self = Self(1);
}

/// The number of a round of a cell: odd for classic rounds, even for fast ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Ballot(pub u64);

bitflags! {
    /// Flags of a stamp.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct StampFlags: u64 {
        /// The write is known to be complete.
        const VERIFIED = 2;
        /// The register is being relocated; no writer's CAS may succeed here again.
        const FROZEN = 1;
    }

    /// Flags of a cell's word.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CellFlags: u64 {
        /// The record is confirmed: more than one fast round's unfinished proposal.
        const CONFIRMED = 2;
        /// The record was accepted under this ballot, not merely kept by a promise.
        const ACCEPTED = 1;
    }
}

/// A write's position in a register's order. Compared without the frozen bit.
#[derive(Clone, Copy, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// No write yet: below every other stamp.
    pub const EMPTY: Self = Self(0);

    /// Returns whether the write is known to be complete.
    pub fn is_verified(self) -> bool {
        self.0 & StampFlags::VERIFIED.bits() != 0
    }

    /// Returns whether the register is being relocated.
    pub fn is_frozen(self) -> bool {
        self.0 & StampFlags::FROZEN.bits() != 0
    }

    /// Returns the same stamp for a slot that no writer's CAS may change again.
    #[must_use]
    pub fn frozen(self) -> Self {
        Self(self.0 | StampFlags::FROZEN.bits())
    }

    /// Returns the same write's stamp, known to be complete.
    #[must_use]
    pub fn verified(self) -> Self {
        Self(self.0 | StampFlags::VERIFIED.bits())
    }

    /// Returns the same write's stamp, not known to be complete.
    #[must_use]
    pub fn guessed(self) -> Self {
        Self(self.0 & !StampFlags::VERIFIED.bits())
    }

    /// Returns whether both are of the same write under the same timestamp, verified or not.
    pub fn same_write(self, other: Self) -> bool {
        (self.0 ^ other.0) >> FLAG_BITS == 0
    }

    fn rank(self) -> u64 {
        self.0 & !StampFlags::FROZEN.bits()
    }
}

impl PartialEq for Stamp {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Stamp {}

impl PartialOrd for Stamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Stamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamp({:#x}", self.0 >> FLAG_BITS)?;
        if self.is_verified() {
            f.write_str(" verified")?;
        }
        if self.is_frozen() {
            f.write_str(" frozen")?;
        }
        f.write_str(")")
    }
}

/// A cell's word at one node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct CellWord(pub u64);

impl CellWord {
    /// Returns whether the record is more than one fast round's unfinished proposal.
    pub fn is_confirmed(self) -> bool {
        self.0 == 0 || self.0 & CellFlags::CONFIRMED.bits() != 0
    }

    /// Returns whether the record was accepted under the word's ballot.
    pub fn is_accepted(self) -> bool {
        self.0 == 0 || self.0 & CellFlags::ACCEPTED.bits() != 0
    }
}

impl fmt::Debug for CellWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellWord({:#x}", self.0 >> FLAG_BITS)?;
        if self.is_confirmed() {
            f.write_str(" confirmed")?;
        }
        if self.is_accepted() {
            f.write_str(" accepted")?;
        }
        f.write_str(")")
    }
}

/// How a pool splits its words between pointer and timestamp or ballot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordFormat {
    /// Bits of a pointer: nodes of 2 to this power granules. Timestamps and ballots have the other
    /// bits, except two.
    pub pointer_bits: u32,
    /// A tick of a timestamp is 2 to this power nanoseconds. A register can be written for as many
    /// ticks as a timestamp counts; then it must be relocated.
    pub tick_shift: u32,
}

impl WordFormat {
    /// Returns the timestamp that only a delete has.
    pub fn deleted(self) -> Timestamp {
        Timestamp(u64::MAX >> (self.pointer_bits + FLAG_BITS))
    }

    /// Returns the largest ballot.
    pub fn last_ballot(self) -> Ballot {
        Ballot(u64::MAX >> (self.pointer_bits + FLAG_BITS))
    }

    /// Makes a stamp.
    pub fn stamp(self, timestamp: Timestamp, pointer: Pointer, flags: StampFlags) -> Stamp {
        debug_assert!(timestamp <= self.deleted() && pointer.0 >> self.pointer_bits == 0);
        Stamp(self.pack(timestamp.0, pointer) | flags.bits())
    }

    /// Returns a stamp's timestamp.
    pub fn timestamp(self, stamp: Stamp) -> Timestamp {
        Timestamp(stamp.0 >> (self.pointer_bits + FLAG_BITS))
    }

    /// Returns where a stamp's buffer lies.
    pub fn pointer(self, stamp: Stamp) -> Pointer {
        self.unpack(stamp.0)
    }

    /// Returns whether a stamp is a delete's.
    pub fn is_deleted(self, stamp: Stamp) -> bool {
        self.timestamp(stamp) == self.deleted()
    }

    /// Returns a delete's stamp: the same for all clients, as it needs no buffer.
    pub fn deletion(self) -> Stamp {
        self.stamp(self.deleted(), Pointer::NULL, StampFlags::VERIFIED)
    }

    /// Makes a cell's word.
    pub fn cell(self, ballot: Ballot, record: Pointer, flags: CellFlags) -> CellWord {
        debug_assert!(ballot <= self.last_ballot() && record.0 >> self.pointer_bits == 0);
        CellWord(self.pack(ballot.0, record) | flags.bits())
    }

    /// Returns a cell word's ballot.
    pub fn ballot(self, word: CellWord) -> Ballot {
        Ballot(word.0 >> (self.pointer_bits + FLAG_BITS))
    }

    /// Returns where a cell word's record lies.
    pub fn record(self, word: CellWord) -> Pointer {
        self.unpack(word.0)
    }

    /// Converts nanoseconds to ticks.
    pub fn ticks(self, nanoseconds: u64) -> u64 {
        nanoseconds >> self.tick_shift
    }

    /// Converts a timestamp's ticks to nanoseconds.
    pub fn nanoseconds(self, timestamp: Timestamp) -> u64 {
        timestamp.0.checked_shl(self.tick_shift).unwrap_or(u64::MAX)
    }

    fn pack(self, high: u64, pointer: Pointer) -> u64 {
        (high << (self.pointer_bits + FLAG_BITS)) | (pointer.0 << FLAG_BITS)
    }

    fn unpack(self, word: u64) -> Pointer {
        Pointer((word >> FLAG_BITS) & ((1 << self.pointer_bits) - 1))
    }
}

/// One life of a client, or another supply of write numbers for it: given out once, growing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Incarnation(pub u64);

/// The writer of a value: a client, until it abandons a write.
///
/// Readers take a writer's second write of a register as proof that its first is complete. A client
/// that abandons one therefore continues as another writer (G4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Writer(u64);

/// A write's number: unique in the pool, and always growing within a buffer. 62 bits.
///
/// `[ incarnation: 36 bits | abandoned writes: 13 bits | counter: 13 bits ]`. A counter that
/// overflows makes another writer, which is harmless. A client whose numbers are used up continues
/// under another incarnation ([`Group::keep_next_incarnation`](crate::quorum::Group::keep_next_incarnation)). There are
/// enough of them for two years in a pool that is opened a thousand times a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct WriteNumber(pub u64);

impl WriteNumber {
    const COUNTER_BITS: u32 = 26;
    const WRITER_BITS: u32 = 13;
    /// The largest counter.
    pub const LAST_COUNTER: u64 = (1 << Self::COUNTER_BITS) - 1;
    /// The largest incarnation.
    pub const LAST_INCARNATION: Incarnation = Incarnation((1 << 36) - 1);

    /// Makes a write number.
    pub fn new(incarnation: Incarnation, counter: u64) -> Self {
        debug_assert!(incarnation <= Self::LAST_INCARNATION && counter <= Self::LAST_COUNTER);
        Self((incarnation.0 << Self::COUNTER_BITS) | counter)
    }

    /// Returns the client's incarnation that it belongs to.
    pub fn incarnation(self) -> Incarnation {
        Incarnation(self.0 >> Self::COUNTER_BITS)
    }

    /// Returns the writer.
    pub fn writer(self) -> Writer {
        Writer(self.0 >> Self::WRITER_BITS)
    }

    /// Returns the counter of the first write as another writer, after the write with `counter`.
    pub(crate) fn next_writer(counter: u64) -> u64 {
        ((counter >> Self::WRITER_BITS) + 1) << Self::WRITER_BITS
    }
}

/// The purpose of a timestamp lock (§3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// Taken by a reader, which returns the guess's value.
    Read = 1,
    /// Taken by the writer, which writes again under a fresh timestamp.
    Write = 2,
}

/// A buffer's lock: changed only by CAS, and only grows (L1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockWord(pub u64);

impl LockWord {
    /// Returns the lock for write `number`, taken in `mode`.
    pub fn new(number: WriteNumber, mode: LockMode) -> Self {
        Self((number.0 << 2) | mode as u64)
    }

    /// Returns the write for which it was last taken.
    pub fn number(self) -> WriteNumber {
        WriteNumber(self.0 >> 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

    #[test]
    fn stamps_order_by_timestamp_pointer_verified() {
        let stamp = |t, p, f| FORMAT.stamp(Timestamp(t), Pointer(p), f);
        let none = StampFlags::empty();
        let ordered = [
            Stamp::EMPTY,
            stamp(1, 9, none),
            stamp(1, 9, StampFlags::VERIFIED),
            stamp(1, 10, none),
            stamp(2, 1, none),
            stamp(FORMAT.deleted().0, 1, StampFlags::VERIFIED),
        ];
        assert!(ordered.is_sorted());
        assert_eq!(stamp(2, 1, StampFlags::FROZEN), stamp(2, 1, none));
        assert!(stamp(1, 9, none).same_write(stamp(1, 9, StampFlags::VERIFIED)));
        assert!(!stamp(1, 9, none).same_write(stamp(1, 8, none)));
    }

    #[test]
    fn words_come_apart_as_they_went_together() {
        let stamp = FORMAT.stamp(Timestamp(77), Pointer(0x3f_ffff), StampFlags::VERIFIED);
        assert_eq!(FORMAT.timestamp(stamp), Timestamp(77));
        assert_eq!(FORMAT.pointer(stamp), Pointer(0x3f_ffff));
        let word = FORMAT.cell(Ballot(5), Pointer(3), CellFlags::ACCEPTED);
        assert_eq!(FORMAT.ballot(word), Ballot(5));
        assert_eq!(FORMAT.record(word), Pointer(3));
        assert!(word.is_accepted() && !word.is_confirmed());
        assert!(CellWord(0).is_accepted() && CellWord(0).is_confirmed());
    }

    #[test]
    fn locks_grow_with_the_write_number() {
        let one = WriteNumber::new(Incarnation(1), WriteNumber::LAST_COUNTER);
        let two = WriteNumber::new(Incarnation(2), 0);
        assert!(one < two && two.incarnation() == Incarnation(2));
        assert_eq!(LockWord::new(two, LockMode::Read).number(), two);
    }

    #[test]
    fn a_client_that_abandons_a_write_goes_on_as_another_writer() {
        let number = |counter| WriteNumber::new(Incarnation(1), counter);
        assert_eq!(number(1).writer(), number(2).writer());
        assert!(number(2).writer() < number(WriteNumber::next_writer(2)).writer());
        assert_eq!(number(WriteNumber::next_writer(2)).incarnation(), Incarnation(1));
    }
}

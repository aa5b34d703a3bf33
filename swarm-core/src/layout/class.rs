//! What a chunk holds, and how large its objects are.

use crate::words::GRANULE_WORDS;

const SIZE_BITS: u32 = 11;
const UNIFORM: u16 = 0x1000;
const ALL_BUT_ONE: u16 = 0x1800;
const ALL_NODES: u16 = 0x0800;
const LARGE: u16 = 0x0200;
const LARGE_TAIL: u16 = 0x0201;
const HOMED: u16 = 0x8000;

/// What a chunk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChunkClass {
    /// Objects of one size, the same at every node.
    Uniform(SizeClass),
    /// Buffers, each at all nodes but one (M3).
    AllButOne(SizeClass),
    /// Buffers that all nodes hold, of an even number of granules.
    AllNodes(SizeClass),
    /// Objects that each have a home node, where they are larger.
    Homed {
        /// Granules at other nodes than home: 1 to 7.
        small: u8,
        /// Size at home.
        full: SizeClass,
    },
    /// The first chunk of a run that holds one large object.
    Large,
    /// The other chunks of a run.
    LargeTail,
}

impl ChunkClass {
    /// Encodes it as 16 bits, never 0, of which the second-highest is 0.
    ///
    /// ```text
    /// plain   [ 00010 | size 11 ]            run  0x0200, its other chunks  0x0201
    /// lean    [ 00011 | size 11 ]
    /// wide    [ 00001 | size 11 ]
    /// homed   [ 10 | small 3 | size 11 ]
    /// ```
    pub fn encode(self) -> u16 {
        match self {
            Self::Uniform(size) => UNIFORM | size.0,
            Self::AllButOne(size) => ALL_BUT_ONE | size.0,
            Self::AllNodes(size) => ALL_NODES | size.0,
            Self::Homed { small, full } => HOMED | (u16::from(small) << SIZE_BITS) | full.0,
            Self::Large => LARGE,
            Self::LargeTail => LARGE_TAIL,
        }
    }

    /// Decodes 16 bits.
    pub fn decode(code: u16) -> Option<Self> {
        let size = SizeClass(code % (1 << SIZE_BITS)).checked();
        let small = (code >> SIZE_BITS) as u8 % 8;
        match code {
            LARGE => Some(Self::Large),
            LARGE_TAIL => Some(Self::LargeTail),
            _ if code >> SIZE_BITS == UNIFORM >> SIZE_BITS => size.map(Self::Uniform),
            _ if code >> SIZE_BITS == ALL_BUT_ONE >> SIZE_BITS => size.map(Self::AllButOne),
            _ if code >> SIZE_BITS == ALL_NODES >> SIZE_BITS => size.map(Self::AllNodes),
            _ if code >> 14 == HOMED >> 14 && small > 0 => {
                size.map(|full| Self::Homed { small, full })
            }
            _ => None,
        }
    }
}

/// A size class: 1 to 32 granules, then sixteen steps to each doubling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(u16);

impl SizeClass {
    /// A doubling has 2 to this power steps.
    const STEP_BITS: u64 = 4;
    /// Number of classes that are one granule larger than the one before.
    const EVEN: u64 = 2 << Self::STEP_BITS;
    /// 2^26 granules.
    const LAST: u16 = 367;

    /// Returns the smallest class of at least `granules` granules.
    pub fn for_granules(granules: u64) -> Self {
        let granules = granules.max(1);
        if granules <= Self::EVEN {
            return Self((granules - 1) as u16);
        }
        let doubling = u64::from((granules - 1).ilog2());
        let step = 1 << (doubling - Self::STEP_BITS);
        let steps = (granules - (1 << doubling)).div_ceil(step);
        let before = (doubling - Self::STEP_BITS - 1) << Self::STEP_BITS;
        Self((Self::EVEN - 1 + before + steps) as u16)
    }

    /// Returns the smallest class of at least `words` words.
    pub fn for_words(words: usize) -> Self {
        Self::for_granules((words as u64).div_ceil(GRANULE_WORDS as u64))
    }

    /// Returns its number of granules.
    pub fn granules(self) -> u64 {
        let index = u64::from(self.0);
        let Some(later) = index.checked_sub(Self::EVEN) else { return index + 1 };
        let doublings = later >> Self::STEP_BITS;
        let steps = later % (1 << Self::STEP_BITS) + 1;
        (Self::EVEN << doublings) + (steps << (doublings + 1))
    }

    fn checked(self) -> Option<Self> {
        (self.0 <= Self::LAST).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_tight_and_monotone() {
        for granules in 1..20_000 {
            let size = SizeClass::for_granules(granules);
            assert!(size.granules() >= granules, "{granules}");
            if size.0 > 0 {
                assert!(SizeClass(size.0 - 1).granules() < granules, "{granules}");
            }
        }
        assert_eq!(SizeClass::for_granules(33).granules(), 34);
        assert_eq!(SizeClass(SizeClass::LAST).granules(), 1 << 26);
    }

    #[test]
    fn classes_come_apart_as_they_went_together() {
        for class in [
            ChunkClass::Uniform(SizeClass::for_granules(40)),
            ChunkClass::Homed { small: 6, full: SizeClass::for_granules(70) },
            ChunkClass::Large,
            ChunkClass::LargeTail,
        ] {
            assert_eq!(ChunkClass::decode(class.encode()), Some(class));
        }
        assert_eq!(ChunkClass::decode(0), None);
        assert_eq!(ChunkClass::decode(0xffff), None);
    }
}

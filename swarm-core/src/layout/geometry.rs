//! The parameters of a pool, and their bounds. All else follows from them: `regions.rs` derives
//! what lies where in every node's memory.

use super::register::SLOTS;
use crate::words::{GRANULE, WordFormat};

/// The feature of pools in which keys may be cells.
const FEATURE_KEYED_CELLS: u64 = 1;
/// The layout version that this code reads and writes.
pub const LAYOUT_VERSION: u32 = 13;
/// Bytes at the beginning of a node's memory that belong to the transport.
pub const HEADER_BYTES: u64 = 4096;
/// Maximum number of chunks of a pool.
pub const MAX_CHUNKS: usize = 2048;
/// Maximum number of clients of a pool.
pub const MAX_CLIENTS: usize = 1024;
/// The smallest capacity of a node, in bytes.
pub const MIN_CAPACITY: u64 = 4 << 20;
/// The largest capacity of a node, in bytes.
pub const MAX_CAPACITY: u64 = 1 << 44;
/// Maximum payload of a bucket's record in words, and the default: with its header it fills eight
/// granules.
pub const BUCKET_PAYLOAD: usize = 59;
/// Number of bootstrap records: chunk-map records that a client slot may propose before it owns a
/// chunk.
pub const BOOTSTRAP_RECORDS: u64 = 8;

const MIN_CHUNK: u64 = 64 << 10;
/// The chunk size at [`MAX_CAPACITY`].
const MAX_CHUNK: u64 = MAX_CAPACITY / MAX_CHUNKS as u64;
const BYTES_PER_BUCKET: u64 = 32 << 10;
/// Enough to record that a bucket was split.
const MIN_BUCKET_PAYLOAD: usize = 8;
const TICK_SHIFT: u32 = 6;

/// What lies where in every node's memory. The fields are what a pool's header stores; all else
/// follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The index of this replica group in the pool.
    pub group: u32,
    /// Memory nodes in the group.
    pub nodes: usize,
    /// Bytes of each node's memory.
    pub capacity: u64,
    /// Client slots.
    pub max_clients: usize,
    /// Bytes of a chunk: a power of two.
    pub chunk_bytes: u64,
    /// The index begins with 2 to this power buckets.
    pub bucket_bits: u32,
    /// Maximum payload of a bucket's record in words, at most [`BUCKET_PAYLOAD`]. Small buckets
    /// split sooner.
    pub bucket_payload: usize,
    /// How words are split.
    pub format: WordFormat,
    /// Number of a register's [`SLOTS`] stamp slots that writers use: a client's is its number
    /// modulo this. With a slot for each writer a CAS succeeds at once; with one slot for all, a
    /// CAS that succeeds proves what a READ of the slots would show.
    pub slots: usize,
    /// Seed of the hash of keys.
    pub hash_seed: u64,
    /// Whether keys may be cells, as in every new pool: programs that do not know such keys refuse
    /// the pool.
    pub keyed_cells: bool,
}

/// Why a pool cannot have the requested geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BadGeometry {
    /// The number of nodes is none of 1, 3, 5 and 7.
    Nodes(usize),
    /// The capacity is outside [`MIN_CAPACITY`] to [`MAX_CAPACITY`], in bytes.
    Capacity(u64),
    /// The number of clients is outside 1 to [`MAX_CLIENTS`].
    Clients(usize),
    /// The number of stamp slots in use is outside 1 to [`SLOTS`].
    Slots(usize),
    /// Pointers of this many bits do not suffice for the capacity, or are too wide.
    PointerBits(u32),
    /// The clients' areas would take more than half of the capacity.
    TooSmall {
        /// The capacity in bytes.
        capacity: u64,
        /// The smallest capacity in bytes that suffices, as does every larger one.
        needed: u64,
    },
    /// Stored fields that contradict each other.
    Inconsistent,
}

impl core::fmt::Display for BadGeometry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Nodes(n) => write!(f, "a pool has 1, 3, 5 or 7 memory nodes, not {n}"),
            Self::Capacity(bytes) => write!(
                f,
                "a node's capacity is {MIN_CAPACITY} bytes to {MAX_CAPACITY} bytes, not {bytes}"
            ),
            Self::Clients(n) => {
                write!(f, "a pool is made for 1 to {MAX_CLIENTS} clients, not {n}")
            }
            Self::Slots(n) => write!(f, "writers use 1 to {SLOTS} stamp slots, not {n}"),
            Self::PointerBits(bits) => {
                write!(f, "pointers have as many bits as the capacity needs, to 39, not {bits}")
            }
            Self::TooSmall { capacity, needed } => write!(
                f,
                "more than half of {capacity} bytes a node would go to the clients' areas; \
                 give it at least {needed} bytes, or fewer clients"
            ),
            Self::Inconsistent => f.write_str("the stored geometry contradicts itself"),
        }
    }
}

impl core::error::Error for BadGeometry {}

impl Geometry {
    /// Returns the geometry of a new pool.
    ///
    /// # Errors
    /// A parameter is out of its bounds, or the capacity is too small for that many clients.
    pub fn new(
        nodes: usize,
        capacity: u64,
        max_clients: usize,
        hash_seed: u64,
    ) -> Result<Self, BadGeometry> {
        check_numbers(nodes, capacity, max_clients)?;
        let geometry = Self::of(nodes, capacity, max_clients, hash_seed);
        geometry.check()?;
        Ok(geometry)
    }

    /// Returns the layout of a pool with these parameters, which are within their bounds, even if
    /// it does not fit.
    fn of(nodes: usize, capacity: u64, max_clients: usize, hash_seed: u64) -> Self {
        let chunk_bytes = capacity.div_ceil(MAX_CHUNKS as u64).next_power_of_two().max(MIN_CHUNK);
        let pointer_bits = granule_bits(capacity) + u32::from(nodes >= 3);
        let with = |chunk_bytes| Self {
            group: 0,
            nodes,
            capacity,
            max_clients,
            chunk_bytes,
            bucket_bits: (capacity / BYTES_PER_BUCKET).ilog2(),
            bucket_payload: BUCKET_PAYLOAD,
            format: WordFormat { pointer_bits, tick_shift: TICK_SHIFT },
            slots: SLOTS,
            hash_seed,
            keyed_cells: true,
        };
        let (many, fewer) = (with(chunk_bytes), with(2 * chunk_bytes));
        // Each client's area holds records of the chunk map: half as many chunks make them half as
        // long.
        let crowded = many.is_too_small() && many.chunks() > MAX_CHUNKS / 2;
        if crowded { fewer } else { many }
    }

    /// Returns the smallest capacity, in bytes, that suffices for that many clients, as does every
    /// larger one.
    ///
    /// A capacity may fail although a smaller one suffices: the index doubles at once, and chunks
    /// are whole. So this searches downwards for the first one that fails. It starts at the largest
    /// capacity for which larger chunks than 64 KiB may be chosen; above it clients' areas take
    /// less than half of any capacity. The steps are of one chunk, as nothing changes in between.
    fn enough(nodes: usize, max_clients: usize) -> u64 {
        let most = MAX_CHUNKS as u64 / 2;
        let least = MIN_CAPACITY / MIN_CHUNK;
        let is_too_small =
            |chunks: &u64| Self::of(nodes, chunks * MIN_CHUNK, max_clients, 0).is_too_small();
        let last = (least..=most).rev().find(is_too_small);
        last.map_or(MIN_CAPACITY, |last| (last + 1) * MIN_CHUNK)
    }

    /// Returns the same geometry with this many stamp slots in use.
    ///
    /// # Errors
    /// There are fewer, or `slots` is 0.
    pub fn with_slots(self, slots: usize) -> Result<Self, BadGeometry> {
        let geometry = Self { slots, ..self };
        geometry.check()?;
        Ok(geometry)
    }

    /// Returns the same geometry, in which keys may be cells, as in every new pool, or not.
    #[must_use]
    pub fn with_keyed_cells(self, keyed_cells: bool) -> Self {
        Self { keyed_cells, ..self }
    }

    /// Returns the features of a pool that a program must know to use it, one a bit.
    pub fn features(&self) -> u64 {
        if self.keyed_cells { FEATURE_KEYED_CELLS } else { 0 }
    }

    /// Returns the same geometry, of a pool with these features; or those that this code does not
    /// know.
    ///
    /// # Errors
    /// Features that this code does not know.
    pub fn with_features(self, features: u64) -> Result<Self, u64> {
        match features & !FEATURE_KEYED_CELLS {
            0 => Ok(self.with_keyed_cells(features & FEATURE_KEYED_CELLS != 0)),
            unknown => Err(unknown),
        }
    }

    /// Returns the same geometry with pointers of this many bits, at least as many as the capacity
    /// needs. Timestamps and ballots get fewer: with 38, timestamps end a second after a register's
    /// creation. For tests of what happens then.
    ///
    /// # Errors
    /// They do not suffice for the capacity, or are too many.
    pub fn with_pointer_bits(self, pointer_bits: u32) -> Result<Self, BadGeometry> {
        let geometry = Self { format: WordFormat { pointer_bits, ..self.format }, ..self };
        geometry.check().map_err(|_| BadGeometry::PointerBits(pointer_bits))?;
        Ok(geometry)
    }

    /// Checks that the fields are within bounds and consistent.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), BadGeometry> {
        check_numbers(self.nodes, self.capacity, self.max_clients)?;
        if !(1..=SLOTS).contains(&self.slots) {
            return Err(BadGeometry::Slots(self.slots));
        }
        let bits = self.format.pointer_bits;
        if !self.chunk_bytes.is_power_of_two()
            || !(MIN_CHUNK..=MAX_CHUNK).contains(&self.chunk_bytes)
            || self.capacity / self.chunk_bytes > MAX_CHUNKS as u64
            || !(16..=39).contains(&bits)
            || granule_bits(self.capacity) + u32::from(self.nodes >= 3) > bits
            || self.format.tick_shift > 20
            || self.bucket_bits > 30
            || !(MIN_BUCKET_PAYLOAD..=BUCKET_PAYLOAD).contains(&self.bucket_payload)
        {
            return Err(BadGeometry::Inconsistent);
        }
        if self.is_too_small() {
            let (capacity, needed) = (self.capacity, Self::enough(self.nodes, self.max_clients));
            // A new pool of that capacity would have another layout.
            let is_other = capacity >= needed;
            return Err(if is_other {
                BadGeometry::Inconsistent
            } else {
                BadGeometry::TooSmall { capacity, needed }
            });
        }
        Ok(())
    }

    /// Returns whether clients' areas and the index take more than half of it.
    fn is_too_small(&self) -> bool {
        self.chunks() < 2 * self.first_chunk()
    }
}

/// Checks that these are within their bounds.
fn check_numbers(nodes: usize, capacity: u64, max_clients: usize) -> Result<(), BadGeometry> {
    if !matches!(nodes, 1 | 3 | 5 | 7) {
        return Err(BadGeometry::Nodes(nodes));
    }
    if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
        return Err(BadGeometry::Capacity(capacity));
    }
    if !(1..=MAX_CLIENTS).contains(&max_clients) {
        return Err(BadGeometry::Clients(max_clients));
    }
    Ok(())
}

/// Returns the number of bits of a granule's number.
pub(crate) fn granule_bits(capacity: u64) -> u32 {
    (capacity / GRANULE as u64).next_power_of_two().ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    /// The capacity that a refusal recommended was refused in turn, more than eight times.
    #[test]
    fn what_a_refusal_recommends_suffices_and_less_does_not() {
        for nodes in [1, 3, 5, 7] {
            let mut refused = 0;
            for clients in (1..=MAX_CLIENTS).step_by(11).chain([1000, MAX_CLIENTS]) {
                let new = |capacity| Geometry::new(nodes, capacity, clients, 1);
                let Err(bad) = new(MIN_CAPACITY) else { continue };
                let BadGeometry::TooSmall { needed, .. } = bad else { panic!("{bad}") };
                refused += 1;
                let of = format!("{needed} bytes for {clients} clients of {nodes} nodes");
                // Every smaller capacity is refused with the same recommendation.
                for less in [MIN_CHUNK, 1] {
                    let capacity = needed - less;
                    let outcome = BadGeometry::TooSmall { capacity, needed };
                    assert_eq!(new(capacity), Err(outcome), "{of}");
                }
                // Every larger one suffices, up to where chunks double again, and beyond.
                for chunks in 0..2 * MAX_CHUNKS as u64 {
                    let capacity = needed + chunks * MIN_CHUNK;
                    assert!(new(capacity).is_ok(), "{capacity}, {of}");
                }
                assert!(new(1 << 30).is_ok() && new(MAX_CAPACITY).is_ok(), "{of}");
            }
            assert!(refused > 0, "{nodes} nodes");
        }
    }

    #[test]
    fn a_default_pool_spends_little_on_itself() {
        let geometry = Geometry::new(3, 256 << 20, 64, 1).expect("geometry");
        assert_eq!(geometry.format.pointer_bits, 23);
        assert!(geometry.first_chunk() < geometry.chunks() / 40);
    }

    /// What ARCHITECTURE.md says about how long timestamps last, (m).
    #[test]
    fn timestamps_end_sooner_in_a_larger_pool() {
        let lasts = |nodes, capacity| {
            let format = Geometry::new(nodes, capacity, 64, 1).expect("geometry").format;
            let seconds = format.nanoseconds(format.deleted()) as f64 / 1e9;
            (format.pointer_bits, seconds.round() as u64)
        };
        assert_eq!(lasts(3, 256 << 20), (23, 35_184));
        assert_eq!(lasts(1, 256 << 20), (22, 70_369));
        assert_eq!(lasts(3, 3 << 30), (27, 2_199));
        assert_eq!(lasts(3, 64 << 30), (31, 137));
        assert_eq!(lasts(3, 1 << 40), (35, 9));
        // The maximum.
        assert_eq!(lasts(7, MAX_CAPACITY), (39, 1));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        assert_eq!(Geometry::new(2, 256 << 20, 64, 1), Err(BadGeometry::Nodes(2)));
        assert_eq!(Geometry::new(3, 1, 64, 1), Err(BadGeometry::Capacity(1)));
        assert_eq!(Geometry::new(3, 256 << 20, 0, 1), Err(BadGeometry::Clients(0)));
        let sound = Geometry::new(3, 256 << 20, 64, 1).expect("geometry");
        assert_eq!(sound.slots, SLOTS);
        assert!(sound.with_pointer_bits(38).is_ok());
        for bits in [22, 40] {
            assert_eq!(sound.with_pointer_bits(bits), Err(BadGeometry::PointerBits(bits)));
        }
        assert_eq!(sound.with_slots(0), Err(BadGeometry::Slots(0)));
        assert_eq!(sound.with_slots(SLOTS + 1), Err(BadGeometry::Slots(SLOTS + 1)));
        assert!(matches!(
            Geometry::new(3, MIN_CAPACITY, MAX_CLIENTS, 1),
            Err(BadGeometry::TooSmall { .. })
        ));
    }
}

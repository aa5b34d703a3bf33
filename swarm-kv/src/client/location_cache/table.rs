//! One table with a line for each register, and the keys beside them.
//!
//! ```text
//! block:  8 slots of 64 bytes      hash, identity, what was observed, location, shape
//!         8 keys of 32 bytes       up to 24 bytes, and the era in which it was cached
//! ```
//!
//! A key's hash names a block, a first place in it, and a second block for when the first is full.
//! A hit reads two lines, slot and key of the first place, neither of whose addresses depends on
//! the other. A slot is a key's if the whole key is beside it, with the present era (S5); zeroed
//! memory is of no era. So a new era drops all entries at once, and a new table touches none of its
//! memory. With half as many places again as entries, hardly any key finds both of its blocks full.

use swarm_core::layout::{Identity, Location, Shape};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::register::{Register, Seen};
use swarm_core::words::{GRANULE_WORDS, Pointer, Stamp, WriteNumber};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref,
};

/// Keys up to this length lie beside the slots.
const INLINE_KEY: usize = 24;
/// Places in a block.
const WAYS: usize = 8;
/// Hits of an entry that count.
const MAX_HITS: u8 = 3;
/// Bytes and words of a processor's cache line.
const LINE: usize = 64;
const LINE_WORDS: usize = LINE / 8;
const BLOCK_WORDS: usize = size_of::<Block>() / 8;
const _: () = assert!(size_of::<Slot>() == LINE && size_of::<Block>().is_multiple_of(LINE));
/// Bits of a home node, below the count of hits.
const HOME_BITS: u32 = 4;
const WORD_BITS: u32 = GRANULE_WORDS.ilog2();

/// What is known of one register: a line.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Slot {
    hash: u64,
    created_at: u64,
    number: u64,
    own: u64,
    last: u64,
    stride: u32,
    /// The lower bits of the pointer, the offset at home and the offset elsewhere, in granules.
    low: [u32; 3],
    /// The higher bits.
    high: [u8; 3],
    /// The home node, and the count of hits.
    home_hits: u8,
    room: u16,
    own_at: u8,
    key_length: u8,
}

/// A key, and the era in which it was cached.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Key {
    bytes: [u8; INLINE_KEY],
    era: u64,
}

/// Slots for keys, and the keys that have them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Block {
    slots: [Slot; WAYS],
    keys: [Key; WAYS],
}

impl Slot {
    /// Makes a slot from a key's register. `None` if a field does not fit; in any pool all do.
    fn new(hash: u64, key: &[u8], register: &Register) -> Option<Self> {
        let Register { place, identity, .. } = register;
        let (seen, Shape { key_length, capacity }) = (register.seen(), register.shape());
        if place.home.0 >> HOME_BITS != 0 || key_length != key.len() {
            return None;
        }
        let [pointer, at_home, elsewhere] =
            [Some(place.pointer.0), granules(place.at_home), granules(place.elsewhere)];
        let apart = [pointer?, at_home?, elsewhere?];
        if apart.iter().any(|granules| granules >> 40 != 0) {
            return None;
        }
        Some(Self {
            hash,
            created_at: identity.created_at,
            number: identity.number.0,
            own: seen.own.0,
            last: seen.last.0,
            stride: place.stride,
            low: apart.map(|granules| granules as u32),
            high: apart.map(|granules| (granules >> 32) as u8),
            home_hits: place.home.0,
            room: u16::try_from(capacity).ok()?,
            own_at: seen.own_at.bits(),
            key_length: u8::try_from(key_length).ok()?,
        })
    }

    /// Returns the words at home that a read takes.
    #[inline(always)]
    pub(super) fn words(&self) -> usize {
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        Shape { key_length, capacity }.value_words()
    }

    /// Returns where the register lies.
    #[inline(always)]
    pub(super) fn place(&self) -> Location {
        let [low, high] = [self.low.map(u64::from), self.high.map(u64::from)];
        Location {
            pointer: Pointer(low[0] | (high[0] << 32)),
            home: NodeId(self.home_hits % (1 << HOME_BITS)),
            at_home: (low[1] | (high[1] << 32)) << WORD_BITS,
            elsewhere: (low[2] | (high[2] << 32)) << WORD_BITS,
            stride: self.stride,
        }
    }

    /// Returns the register.
    #[inline(always)]
    pub(super) fn register(&self) -> Register {
        let identity = Identity { created_at: self.created_at, number: WriteNumber(self.number) };
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        let seen = Seen {
            own: Stamp(self.own),
            own_at: NodeSet::from_bits(self.own_at),
            last: Stamp(self.last),
        };
        Register::new(self.place(), identity, Shape { key_length, capacity }).with_seen(seen)
    }

    /// Stores what was observed of the register.
    #[inline(always)]
    pub(super) fn saw(&mut self, register: &Register) {
        let Seen { own, own_at, last } = register.seen();
        (self.own, self.own_at, self.last) = (own.0, own_at.bits(), last.0);
    }

    fn hits(&self) -> u8 {
        self.home_hits >> HOME_BITS
    }

    fn set_hits(&mut self, hits: u8) {
        self.home_hits = (self.home_hits % (1 << HOME_BITS)) | (hits << HOME_BITS);
    }
}

/// Converts words to granules, if they are whole ones.
fn granules(words: u64) -> Option<u64> {
    words.is_multiple_of(GRANULE_WORDS as u64).then_some(words >> WORD_BITS)
}

/// Whether two keys of up to 24 bytes are equal: compares a few words that may overlap, without a
/// call.
#[inline(always)]
fn same(one: &[u8], other: &[u8]) -> bool {
    let length = one.len();
    if length != other.len() || length < 8 {
        return one == other;
    }
    let last = length - 8;
    one[..8] == other[..8]
        && one[last..] == other[last..]
        && (last <= 8 || one[8..16] == other[8..16])
}

/// A place in the table.
#[derive(Clone, Copy)]
pub(crate) struct ObjectIndex {
    block: usize,
    way: usize,
}

/// Slots and keys.
pub(super) struct Table {
    words: Box<[u64]>,
    /// Words before the first whole line.
    skip: usize,
    blocks: usize,
    /// Longer keys, by place. Empty as long as there was none.
    long: Vec<Option<Box<[u8]>>>,
    /// Entries of other eras are dropped.
    era: u64,
    /// Entries of this era, and how many there may be.
    live: usize,
    most: usize,
    /// Where the search for an entry to evict begins.
    hand: usize,
}

impl Table {
    /// Makes a table for `entries` keys, or for as many as there is memory for.
    pub(super) fn new(entries: usize) -> Self {
        let most = entries.max(1);
        let mut blocks = most.saturating_add(most / 2).div_ceil(WAYS);
        let words = loop {
            // Not of a type that is aligned to lines: the system's allocator would write the zeros.
            let length = blocks.checked_mul(BLOCK_WORDS).and_then(|it| it.checked_add(LINE_WORDS));
            match length.map(<[u64]>::new_box_zeroed_with_elems) {
                Some(Ok(words)) => break words,
                _ => blocks = (blocks / 2).max(1),
            }
        };
        let skip = words.as_ptr().align_offset(LINE).min(LINE_WORDS);
        Self { words, skip, blocks, long: Vec::new(), era: 1, live: 0, most, hand: 0 }
    }

    /// Drops all entries.
    pub(super) fn forget(&mut self) {
        self.era += 1;
        self.live = 0;
    }

    /// Returns the slot of a key with this hash, probably.
    #[inline(always)]
    pub(super) fn glance(&self, hash: u64) -> Option<&Slot> {
        let slot = self.slot(self.first(hash));
        if slot.hash == hash { Some(slot) } else { self.search(hash) }
    }

    /// Returns slot and key of the first place for this hash.
    #[inline(always)]
    pub(super) fn lines(&self, hash: u64) -> (&Slot, &Key) {
        let first = self.first(hash);
        (self.slot(first), self.key(first))
    }

    #[inline(never)]
    fn search(&self, hash: u64) -> Option<&Slot> {
        let found = self.places(hash).find(|&at| self.slot(at).hash == hash)?;
        Some(self.slot(found))
    }

    /// Returns the place and the slot of a key, and counts a hit.
    #[inline(always)]
    pub(super) fn lookup(&mut self, hash: u64, key: &[u8]) -> Option<(ObjectIndex, &Slot)> {
        let first = self.first(hash);
        // The slot within each branch: the first one then takes no other bounds check.
        let (at, slot) = if self.is(first, hash, key) {
            (first, self.slot_mut(first))
        } else {
            let at = self.find(hash, key)?;
            (at, self.slot_mut(at))
        };
        if slot.hits() < MAX_HITS {
            slot.set_hits(slot.hits() + 1);
        }
        Some((at, slot))
    }

    /// Returns a register of a key with this hash.
    pub(super) fn by_hash(&self, hash: u64) -> Option<Register> {
        let is = |&at: &ObjectIndex| self.slot(at).hash == hash && self.is_live(at);
        let at = self.places(hash).find(is)?;
        Some(self.slot(at).register())
    }

    /// Stores a key's register.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], register: &Register) {
        let Some(fresh) = Slot::new(hash, key, register) else { return self.remove(hash, key) };
        if let Some(at) = self.find(hash, key) {
            let slot = self.slot_mut(at);
            let hits = slot.hits();
            *slot = fresh;
            slot.set_hits(hits);
            return;
        }
        let at = self.vacancy(hash);
        *self.slot_mut(at) = fresh;
        self.name(at, key);
    }

    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) {
        if let Some(at) = self.find(hash, key) {
            self.vacate(at);
        }
    }

    #[inline(always)]
    fn block(&self, index: usize) -> &Block {
        let words = self.words[self.skip + index * BLOCK_WORDS..].first_chunk::<BLOCK_WORDS>();
        transmute_ref!(words.expect("a block of the table"))
    }

    #[inline(always)]
    fn block_mut(&mut self, index: usize) -> &mut Block {
        let at = self.skip + index * BLOCK_WORDS;
        let words = self.words[at..].first_chunk_mut::<BLOCK_WORDS>();
        transmute_mut!(words.expect("a block of the table"))
    }

    #[inline(always)]
    fn slot(&self, ObjectIndex { block, way }: ObjectIndex) -> &Slot {
        &self.block(block).slots[way % WAYS]
    }

    #[inline(always)]
    pub(super) fn slot_mut(&mut self, ObjectIndex { block, way }: ObjectIndex) -> &mut Slot {
        &mut self.block_mut(block).slots[way % WAYS]
    }

    #[inline(always)]
    fn key(&self, ObjectIndex { block, way }: ObjectIndex) -> &Key {
        &self.block(block).keys[way % WAYS]
    }

    /// Whether the place holds an entry.
    #[inline(always)]
    fn is_live(&self, at: ObjectIndex) -> bool {
        self.key(at).era == self.era
    }

    /// Returns a key's first place.
    #[inline(always)]
    fn first(&self, hash: u64) -> ObjectIndex {
        let block = (u128::from(hash) * self.blocks as u128) >> 64;
        ObjectIndex { block: block as usize, way: hash as usize % WAYS }
    }

    /// Returns all places that a key may have, in the order of the search.
    fn places(&self, hash: u64) -> impl Iterator<Item = ObjectIndex> + use<> {
        let of_block = |ObjectIndex { block, way }| {
            (0..WAYS).map(move |step| ObjectIndex { block, way: (way + step) % WAYS })
        };
        of_block(self.first(hash)).chain(of_block(self.first(hash.rotate_left(32))))
    }

    #[inline(never)]
    fn find(&self, hash: u64, key: &[u8]) -> Option<ObjectIndex> {
        self.places(hash).find(|&at| self.is(at, hash, key))
    }

    /// Whether a place is this key's: the whole key counts, not its hash (S5).
    #[inline(always)]
    fn is(&self, at: ObjectIndex, hash: u64, key: &[u8]) -> bool {
        let (block, way) = (self.block(at.block), at.way % WAYS);
        let (slot, name) = (&block.slots[way], &block.keys[way]);
        slot.hash == hash
            && usize::from(slot.key_length) == key.len()
            && name.era == self.era
            && match name.bytes.get(..key.len()) {
                Some(stored) => same(stored, key),
                None => self.is_long(at, key),
            }
    }

    #[inline(never)]
    fn is_long(&self, at: ObjectIndex, key: &[u8]) -> bool {
        self.long[at.block * WAYS + at.way].as_deref() == Some(key)
    }

    /// Assigns a vacant place to a key.
    fn name(&mut self, at: ObjectIndex, key: &[u8]) {
        let (mut name, index) =
            (Key { bytes: [0; INLINE_KEY], era: self.era }, at.block * WAYS + at.way);
        match name.bytes.get_mut(..key.len()) {
            Some(bytes) => bytes.copy_from_slice(key),
            None => {
                if self.long.is_empty() {
                    self.long = vec![None; self.blocks * WAYS];
                }
                self.long[index] = Some(key.into());
            }
        }
        self.block_mut(at.block).keys[at.way] = name;
        self.live += 1;
    }

    /// Drops the entry at a place.
    fn vacate(&mut self, at: ObjectIndex) {
        self.block_mut(at.block).keys[at.way].era = 0;
        self.live -= 1;
    }

    /// Returns a vacant place for a key with this hash. Another entry may be evicted for it.
    fn vacancy(&mut self, hash: u64) -> ObjectIndex {
        let vacant = self.places(hash).find(|&at| !self.is_live(at));
        let at = match vacant {
            Some(at) if self.live < self.most => at,
            vacant => {
                let evicted = self.evict(hash);
                vacant.unwrap_or(evicted)
            }
        };
        // A long key that was there before.
        if let Some(long) = self.long.get_mut(at.block * WAYS + at.way) {
            *long = None;
        }
        at
    }

    /// Vacates one of the places for this hash; if none is taken, another place.
    fn evict(&mut self, hash: u64) -> ObjectIndex {
        self.hand = self.hand.wrapping_add(1);
        let mut places: heapless::Vec<ObjectIndex, { 2 * WAYS }> = self.places(hash).collect();
        places.rotate_left(self.hand % (2 * WAYS));
        for _ in 0..=MAX_HITS {
            for &at in &places {
                if self.is_live(at) && self.slot(at).hits() == 0 {
                    self.vacate(at);
                    return at;
                }
            }
            for &at in &places {
                let slot = self.slot_mut(at);
                slot.set_hits(slot.hits().saturating_sub(1));
            }
        }
        let all = self.blocks * WAYS;
        let from = self.hand % all;
        let place = |at: usize| ObjectIndex { block: at / WAYS, way: at % WAYS };
        let live = (from..all).chain(0..from).map(place).find(|&at| self.is_live(at));
        let at = live.expect("as many entries as there may be");
        self.vacate(at);
        at
    }
}

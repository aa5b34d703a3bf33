//! One table with a line for each register, and the keys beside them.
//!
//! ```text
//! block:  8 slots of 64 bytes      hash, identity, what was seen, place, shape
//!         8 keys of 32 bytes       up to 24 bytes, and the era in which it was remembered
//! ```
//!
//! A key's hash names a block, a place in it to begin with, and a second block for when the first is full. A hit takes two
//! lines, of which neither's place depends on the other: slot and key of the place to begin with. A slot is the key's whose whole key
//! is beside it, of the present era; memory that is zero is of none. So all is forgotten at once by another era, and a
//! table that is new touches none of its memory. For one half more places than entries, hardly any
//! key finds both of its blocks full.

use swarm_core::layout::{Identity, Place, Shape};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::register::{Register, Seen};
use swarm_core::words::{GRANULE_WORDS, Pointer, Stamp, WriteNumber};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref,
};

/// Keys up to this long lie beside the slots.
const INLINE_KEY: usize = 24;
/// Places in a block.
const WAYS: usize = 8;
/// How often an entry is met that counts.
const MOST_MET: u8 = 3;
/// Bytes and words of a processor's cache line.
const LINE: usize = 64;
const LINE_WORDS: usize = LINE / 8;
const BLOCK_WORDS: usize = size_of::<Block>() / 8;
const _: () = assert!(size_of::<Slot>() == LINE && size_of::<Block>().is_multiple_of(LINE));
/// Bits of a home node, in front of how often it was met.
const HOME_BITS: u32 = 4;
const WORD_BITS: u32 = GRANULE_WORDS.ilog2();

/// What is known of one register: a line.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Slot {
    hash: u64,
    birth: u64,
    number: u64,
    own: u64,
    last: u64,
    stride: u32,
    /// The lower bits of pointer, place at home and place elsewhere, in granules.
    low: [u32; 3],
    /// The higher bits.
    high: [u8; 3],
    /// The home node, and how often it was met.
    home_met: u8,
    room: u16,
    own_at: u8,
    key_length: u8,
}

/// A key, and when it was remembered.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Key {
    bytes: [u8; INLINE_KEY],
    era: u64,
}

/// Slots that a key may have, and the keys that have them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Block {
    slots: [Slot; WAYS],
    keys: [Key; WAYS],
}

impl Slot {
    /// What is known of a key's register. `None` if that does not fit, which it does in any pool.
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
            birth: identity.birth,
            number: identity.number.0,
            own: seen.own.0,
            last: seen.last.0,
            stride: place.stride,
            low: apart.map(|granules| granules as u32),
            high: apart.map(|granules| (granules >> 32) as u8),
            home_met: place.home.0,
            room: u16::try_from(capacity).ok()?,
            own_at: seen.own_at.bits(),
            key_length: u8::try_from(key_length).ok()?,
        })
    }

    /// Words at home that a read takes.
    #[inline(always)]
    pub(super) fn words(&self) -> usize {
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        Shape { key_length, capacity }.value_words()
    }

    /// Where it lies.
    #[inline(always)]
    pub(super) fn place(&self) -> Place {
        let [low, high] = [self.low.map(u64::from), self.high.map(u64::from)];
        Place {
            pointer: Pointer(low[0] | (high[0] << 32)),
            home: NodeId(self.home_met % (1 << HOME_BITS)),
            at_home: (low[1] | (high[1] << 32)) << WORD_BITS,
            elsewhere: (low[2] | (high[2] << 32)) << WORD_BITS,
            stride: self.stride,
        }
    }

    /// What is known of the register.
    #[inline(always)]
    pub(super) fn register(&self) -> Register {
        let identity = Identity { birth: self.birth, number: WriteNumber(self.number) };
        let (key_length, capacity) = (usize::from(self.key_length), usize::from(self.room));
        let seen = Seen {
            own: Stamp(self.own),
            own_at: NodeSet::from_bits(self.own_at),
            last: Stamp(self.last),
        };
        Register::new(self.place(), identity, Shape { key_length, capacity }).with_seen(seen)
    }

    /// Takes in what was seen of the register.
    #[inline(always)]
    pub(super) fn saw(&mut self, register: &Register) {
        let Seen { own, own_at, last } = register.seen();
        (self.own, self.own_at, self.last) = (own.0, own_at.bits(), last.0);
    }

    fn met(&self) -> u8 {
        self.home_met >> HOME_BITS
    }

    fn set_met(&mut self, met: u8) {
        self.home_met = (self.home_met % (1 << HOME_BITS)) | (met << HOME_BITS);
    }
}

/// Words as granules, if they are whole ones.
fn granules(words: u64) -> Option<u64> {
    words.is_multiple_of(GRANULE_WORDS as u64).then_some(words >> WORD_BITS)
}

/// Whether two keys are the same, of up to 24 bytes: a few words that may overlap, without a call.
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
pub(crate) struct Spot {
    block: usize,
    way: usize,
}

/// Slots and keys.
pub(super) struct Table {
    words: Box<[u64]>,
    /// Words in front of the first whole line.
    skip: usize,
    blocks: usize,
    /// Keys that are longer, by place. Empty as long as there was none.
    long: Vec<Option<Box<[u8]>>>,
    /// What was remembered in another era is forgotten.
    era: u64,
    /// Entries of this era, and how many there may be.
    live: usize,
    most: usize,
    /// Where the search for what has to go begins.
    hand: usize,
}

impl Table {
    /// Room for `entries` keys, or as many as there is memory for.
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

    /// Forgets everything.
    pub(super) fn forget(&mut self) {
        self.era += 1;
        self.live = 0;
    }

    /// Where a key of this hash probably is, and the slot there if it has the hash: else it is the place to begin with.
    #[inline(always)]
    pub(super) fn glance(&self, hash: u64) -> (Spot, Option<&Slot>) {
        let first = self.first(hash);
        let slot = self.slot(first);
        if slot.hash == hash { (first, Some(slot)) } else { self.search(hash) }
    }

    /// Slot and key that a key of this hash has to begin with.
    #[inline(always)]
    pub(super) fn lines(&self, hash: u64) -> (&Slot, &Key) {
        let first = self.first(hash);
        (self.slot(first), self.key(first))
    }

    #[inline(never)]
    fn search(&self, hash: u64) -> (Spot, Option<&Slot>) {
        let found = self.places(hash).find(|&at| self.slot(at).hash == hash);
        (found.unwrap_or(self.first(hash)), found.map(|at| self.slot(at)))
    }

    /// What is known of a key, which is met once more, where [`glance`](Self::glance) found it or elsewhere.
    #[inline(always)]
    pub(super) fn meet(&mut self, glanced: Spot, hash: u64, key: &[u8]) -> Option<&mut Slot> {
        let slot = if self.is(glanced, hash, key) {
            self.slot_mut(glanced)
        } else {
            let at = self.find(hash, key)?;
            self.slot_mut(at)
        };
        if slot.met() < MOST_MET {
            slot.set_met(slot.met() + 1);
        }
        Some(slot)
    }

    /// A register of a key of this hash.
    pub(super) fn by_hash(&self, hash: u64) -> Option<Register> {
        let is = |&at: &Spot| self.slot(at).hash == hash && self.is_live(at);
        let at = self.places(hash).find(is)?;
        Some(self.slot(at).register())
    }

    /// Takes in what is known of a key's register.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], register: &Register) {
        let Some(fresh) = Slot::new(hash, key, register) else { return self.remove(hash, key) };
        if let Some(at) = self.find(hash, key) {
            let slot = self.slot_mut(at);
            let met = slot.met();
            *slot = fresh;
            slot.set_met(met);
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
    fn slot(&self, Spot { block, way }: Spot) -> &Slot {
        &self.block(block).slots[way % WAYS]
    }

    #[inline(always)]
    fn slot_mut(&mut self, Spot { block, way }: Spot) -> &mut Slot {
        &mut self.block_mut(block).slots[way % WAYS]
    }

    #[inline(always)]
    fn key(&self, Spot { block, way }: Spot) -> &Key {
        &self.block(block).keys[way % WAYS]
    }

    /// Whether something is remembered there.
    #[inline(always)]
    fn is_live(&self, at: Spot) -> bool {
        self.key(at).era == self.era
    }

    /// A key's place to begin with.
    #[inline(always)]
    fn first(&self, hash: u64) -> Spot {
        let block = (u128::from(hash) * self.blocks as u128) >> 64;
        Spot { block: block as usize, way: hash as usize % WAYS }
    }

    /// All places that a key may have, in the order in which it is looked for.
    fn places(&self, hash: u64) -> impl Iterator<Item = Spot> + use<> {
        let of_block = |Spot { block, way }| {
            (0..WAYS).map(move |step| Spot { block, way: (way + step) % WAYS })
        };
        of_block(self.first(hash)).chain(of_block(self.first(hash.rotate_left(32))))
    }

    #[inline(never)]
    fn find(&self, hash: u64, key: &[u8]) -> Option<Spot> {
        self.places(hash).find(|&at| self.is(at, hash, key))
    }

    /// Whether a place is this key's: two keys of one hash are told apart.
    #[inline(always)]
    fn is(&self, at: Spot, hash: u64, key: &[u8]) -> bool {
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
    fn is_long(&self, at: Spot, key: &[u8]) -> bool {
        self.long[at.block * WAYS + at.way].as_deref() == Some(key)
    }

    /// Writes down whose a vacant place is from here on.
    fn name(&mut self, at: Spot, key: &[u8]) {
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

    /// Forgets what is remembered there.
    fn vacate(&mut self, at: Spot) {
        self.block_mut(at.block).keys[at.way].era = 0;
        self.live -= 1;
    }

    /// A vacant place for a key of this hash. Something else may have to go for it.
    fn vacancy(&mut self, hash: u64) -> Spot {
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

    /// Vacates one of the places that a key of this hash may have. Where none is taken, another one.
    fn evict(&mut self, hash: u64) -> Spot {
        self.hand = self.hand.wrapping_add(1);
        let mut places: heapless::Vec<Spot, { 2 * WAYS }> = self.places(hash).collect();
        places.rotate_left(self.hand % (2 * WAYS));
        for _ in 0..=MOST_MET {
            for &at in &places {
                if self.is_live(at) && self.slot(at).met() == 0 {
                    self.vacate(at);
                    return at;
                }
            }
            for &at in &places {
                let slot = self.slot_mut(at);
                slot.set_met(slot.met().saturating_sub(1));
            }
        }
        let all = self.blocks * WAYS;
        let from = self.hand % all;
        let place = |at: usize| Spot { block: at / WAYS, way: at % WAYS };
        let live = (from..all).chain(0..from).map(place).find(|&at| self.is_live(at));
        let at = live.expect("as many entries as there may be");
        self.vacate(at);
        at
    }
}

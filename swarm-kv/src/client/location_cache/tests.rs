use std::collections::HashMap;

use swarm_core::layout::{
    ChunkClass, Geometry, Identity, Location, MAX_CAPACITY, Shape, SizeClass,
};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::register::Seen;
use swarm_core::words::{GRANULE_WORDS, Pointer, Stamp, WriteNumber};

use super::*;

/// All of a register that must be returned, frozen bits and all.
fn all(register: &Register) -> (Location, Identity, Shape, [u64; 2], NodeSet) {
    let Seen { own, own_at, last } = register.seen();
    (register.place, register.identity, register.shape(), [own.0, last.0], own_at)
}

/// Some register of a key of this length.
fn some(rng: &mut fastrand::Rng, key_length: usize) -> Register {
    let mut word = || rng.u64(..(1 << 38)) * GRANULE_WORDS as u64;
    let (at_home, elsewhere) = (word(), word());
    let pointer = Pointer(rng.u64(..(1 << 40)));
    let home = NodeId(rng.u8(..7));
    let place = Location { pointer, home, at_home, elsewhere, stride: rng.u32(..) };
    let identity = Identity { created_at: rng.u64(..), number: WriteNumber(rng.u64(..)) };
    let shape = Shape { key_length, capacity: usize::from(rng.u16(..)) };
    let own_at = NodeSet::from_bits(rng.u8(..128));
    let seen = Seen { own: Stamp(rng.u64(..)), own_at, last: Stamp(rng.u64(..)) };
    Register::new(place, identity, shape).with_seen(seen)
}

fn some_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let length = match rng.u8(..4) {
        0 => 24,
        1 => rng.usize(25..=255),
        _ => rng.usize(1..=24),
    };
    // Keys that differ in one byte, anywhere, and keys that begin alike.
    let mut key = vec![7; length];
    key[rng.usize(..length)] = rng.u8(..4);
    key
}

/// Compares with a map of what was put in last: random insertions, lookups, writes, removals and
/// generations, of keys many of which share a hash. The cache returns only what was put in last for
/// this very key in this generation, and holds no more entries than it has room for.
#[test]
fn what_is_remembered_is_what_was_put_in_last() {
    for (room, hashes) in [(1, 3), (2, 3), (8, 5), (8, 1000), (1000, 11), (1000, 1 << 40)] {
        let mut rng = fastrand::Rng::with_seed(room as u64 ^ hashes);
        let cache = LocationCache::new(room, 0);
        let mut model: HashMap<Vec<u8>, (u64, Register)> = HashMap::new();
        let (mut generation, mut hits, mut last) = (0, 0, vec![1]);
        for step in 0..15_000 {
            let key = if rng.u8(..3) == 0 { last } else { some_key(&mut rng) };
            last = key.clone();
            let hash = (hash_key(&key, 0) % hashes).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let known = cache.get(hash, &key);
            let put = model.get(&key);
            if let Some(known) = known {
                let (_, put) = put.expect("it was put in, in this generation");
                assert_eq!(all(&known), all(put), "{room}, {hashes}: step {step}");
                hits += 1;
            }
            match rng.u8(..16) {
                0..8 => {
                    let register = some(&mut rng, key.len());
                    // What an operation of an earlier generation found is not cached.
                    cache.update(hash, &key, &some(&mut rng, key.len()), generation + 1);
                    cache.update(hash, &key, &register, generation);
                    assert!(cache.get(hash, &key).is_some(), "what comes has room");
                    model.insert(key, (hash, register));
                }
                8..12 => {
                    let seen = some(&mut rng, key.len()).seen();
                    if let Some(mut cached) = cache.lookup(hash, &key) {
                        cached.register = cached.register.with_seen(seen);
                        cache.saw(&cached);
                        let (_, put) = model.get_mut(&key).expect("it was put in");
                        *put = put.with_seen(seen);
                    }
                }
                12..15 => {
                    cache.remove(hash, &key);
                    assert!(cache.get(hash, &key).is_none());
                    model.remove(&key);
                }
                _ if rng.u8(..200) == 0 => {
                    generation += 1;
                    cache.renew(generation);
                    model.clear();
                }
                _ => {
                    if let Some(register) = cache.by_hash(hash) {
                        let mut of_hash = model.values().filter(|(other, _)| *other == hash);
                        assert!(of_hash.any(|(_, put)| all(put) == all(&register)));
                    }
                }
            }
            // Only now and then: another key's entry shows above.
            if step % 1000 == 999 {
                let remembered = |(key, (hash, _)): &(&Vec<u8>, &(u64, Register))| {
                    cache.get(*hash, key).is_some()
                };
                assert!(model.iter().filter(remembered).count() <= room);
            }
        }
        assert!(hits > 100, "{room}, {hashes}: {hits} hits show something");
    }
}

/// Nearly as many keys as there is room for are cached, also after others that were dropped.
#[test]
fn there_is_room_for_as_many_keys_as_were_asked_for() {
    let mut rng = fastrand::Rng::with_seed(1);
    for room in [1, 2, 8, 1000, 5000] {
        let cache = LocationCache::new(room, 0);
        for generation in 0..3_u64 {
            cache.renew(generation);
            let key = |number: usize| (number as u64 ^ (generation << 32)).to_le_bytes();
            for number in 0..room {
                cache.insert(&key(number), some(&mut rng, 8), generation);
            }
            let is_there = |number| cache.get(hash_key(&key(number), 0), &key(number)).is_some();
            let there = (0..room).filter(|&number| is_there(number)).count();
            assert!(there >= room - room / 200, "{there} of {room}");
        }
    }
}

/// Keys with one hit each pass through a cache full of keys with many hits.
#[test]
fn what_is_met_again_outlasts_a_scan() {
    let (mut rng, cache) = (fastrand::Rng::with_seed(1), LocationCache::new(1000, 0));
    let key = |number: u64| number.to_le_bytes();
    let get = |number| cache.get(hash_key(&key(number), 0), &key(number)).is_some();
    let mut put = |number| cache.insert(&key(number), some(&mut rng, 8), 0);
    (0..500).for_each(&mut put);
    for scanned in 1000..11_000 {
        put(scanned);
        if scanned % 10 == 0 {
            assert!((0..500).filter(|&number| get(number)).count() > 0);
        }
    }
    let there = (0..500).filter(|&number| get(number)).count();
    assert!(there >= 450, "{there} of 500");
}

/// The largest numbers that there are in any pool.
#[test]
fn a_place_in_the_largest_pool_comes_back() {
    for nodes in [1, 3, 7] {
        let geometry = Geometry::new(nodes, MAX_CAPACITY, 64, 1).expect("geometry");
        let cache = LocationCache::new(8, 0);
        for (small, granules) in [(2, 3), (2, 70), (7, 8), (7, 4000)] {
            let class = ChunkClass::Homed { small, full: SizeClass::for_granules(granules) };
            let shape = crate::index::bucket::shape(class, 3).expect("a key of three bytes fits");
            let first = geometry.chunk_granules() * (geometry.chunks() as u64 - 1) + 1;
            let last = first + nodes as u64 * geometry.objects(class) - 1;
            let place = geometry.homed_place(Pointer(last), class).expect("an object");
            let identity = Identity { created_at: u64::MAX, number: WriteNumber(u64::MAX >> 2) };
            let register = Register::new(place, identity, shape);
            cache.insert(b"key", register, 0);
            let known = cache.get(hash_key(b"key", 0), b"key").expect("it fits");
            assert_eq!(all(&known), all(&register));
        }
    }
}

/// A write was under way when its client entered another generation: the location that it wrote to
/// may be reused soon.
#[test]
fn what_a_write_of_an_earlier_generation_learnt_is_not_taken_in() {
    let (cache, key) = (LocationCache::new(4, 0), b"key");
    let hash = hash_key(key, 0);
    let register = |pointer| {
        let identity = Identity { created_at: 1, number: WriteNumber(1) };
        let shape = Shape { key_length: key.len(), capacity: 1 };
        Register::new(Location::everywhere(Pointer(pointer), NodeId(0)), identity, shape)
    };
    let remembered = || cache.get(hash, key).map(|register| register.place.pointer);
    cache.renew(1);
    cache.update(hash, key, &register(7), 0);
    assert_eq!(remembered(), None);
    cache.update(hash, key, &register(8), 1);
    cache.update(hash, key, &register(7), 0);
    assert_eq!(remembered(), Some(Pointer(8)));
}

/// What there is no memory for is not cached.
#[test]
fn more_than_there_is_memory_for_may_be_asked_for() {
    let (cache, register) = (LocationCache::new(usize::MAX, 0), some(&mut fastrand::Rng::new(), 3));
    cache.insert(b"key", register, 0);
    assert!(cache.get(hash_key(b"key", 0), b"key").is_some());
}

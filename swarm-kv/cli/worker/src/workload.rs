//! YCSB's workloads: the sequence of operations and keys, made before the measurement.
//!
//! Operations are an array of words, and keys an array of bytes, so the measured loop neither draws
//! nor formats anything.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::distribution::{Distribution, Pick, Picker};

/// The system that keeps the replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Safe-Guess: linearizable, one roundtrip in the common case
    Swarm,
    /// ABD over plain memory: linearizable, writes take two roundtrips
    DmAbd,
    /// One copy per key, no replication: the floor
    Raw,
}

/// A mix of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// 50 % get, 50 % update
    A,
    /// 95 % get, 5 % update
    B,
    /// 100 % get
    C,
    /// 95 % get, 5 % insert
    D,
    /// 50 % get, 50 % read-modify-write
    F,
}

impl Mix {
    /// Returns the percentage of gets, and the kind of the other operations.
    pub fn shares(self) -> (u32, Kind) {
        match self {
            Self::A => (50, Kind::Update),
            Self::B => (95, Kind::Update),
            Self::C => (100, Kind::Get),
            Self::D => (95, Kind::Insert),
            Self::F => (50, Kind::ReadModifyWrite),
        }
    }
}

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Get.
    Get,
    /// Update.
    Update,
    /// Insert of a new key.
    Insert,
    /// Get, and update of the same key.
    ReadModifyWrite,
}

impl Kind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Get, Self::Update, Self::Insert, Self::ReadModifyWrite];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::ReadModifyWrite => "read_modify_write",
        }
    }
}

/// An operation: kind and key number in a word.
#[derive(Clone, Copy)]
pub struct Op(u32);

impl Op {
    const KEY_BITS: u32 = 30;
    /// The maximum number of keys.
    pub const MAX_KEYS: usize = 1 << Self::KEY_BITS;

    fn new(kind: Kind, key: usize) -> Self {
        debug_assert!(key < Self::MAX_KEYS);
        Self(((kind as u32) << Self::KEY_BITS) | key as u32)
    }

    /// Returns the kind.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        Kind::ALL[(self.0 >> Self::KEY_BITS) as usize]
    }

    /// Returns the key's number.
    #[inline]
    pub(crate) fn key(self) -> usize {
        (self.0 & ((1 << Self::KEY_BITS) - 1)) as usize
    }
}

/// Keys of one size, one after the other.
pub struct Keys {
    size: usize,
    bytes: Vec<u8>,
}

impl Keys {
    /// Returns the bytes that the numbers of `count` keys take.
    pub fn smallest_size(count: usize) -> usize {
        count.saturating_sub(1).checked_ilog10().map_or(1, |digits| digits as usize + 1)
    }

    /// Makes keys 0 to `count`, each of `size` bytes: `user`, if there is room, and the number.
    pub(crate) fn new(count: usize, size: usize) -> Self {
        let prefix = if size >= 4 + Self::smallest_size(count) { "user" } else { "" };
        let mut bytes = vec![b'0'; count * size];
        for (mut number, key) in bytes.chunks_exact_mut(size).enumerate() {
            key[..prefix.len()].copy_from_slice(prefix.as_bytes());
            let mut digit = size;
            while number > 0 {
                digit -= 1;
                key[digit] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        Self { size, bytes }
    }

    /// Returns the number of a key of any size and count, if it is one of these keys.
    pub fn number(key: &[u8]) -> Option<usize> {
        let digits = key.strip_prefix(b"user").unwrap_or(key);
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Returns a key.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.size..][..self.size]
    }
}

/// The operations of one client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The mix of operations.
    pub mix: Mix,
    /// The distribution of keys.
    pub distribution: Distribution,
    /// The number of loaded keys.
    pub keys: usize,
    /// The number of the first new key: no key with this or a larger number exists.
    pub first_new: usize,
    /// The operations of all clients together.
    pub ops: usize,
    /// The number of this client.
    pub client: usize,
    /// The number of clients.
    pub clients: usize,
    /// The random seed.
    pub seed: u64,
}

impl Plan {
    /// Returns the number of this client's operations.
    pub(crate) fn own_ops(&self) -> usize {
        self.ops / self.clients + usize::from(self.client < self.ops % self.clients)
    }

    /// Returns this client's operations, and the number of keys after them.
    ///
    /// The numbers of new keys alternate between the clients.
    pub(crate) fn operations(&self) -> (Vec<Op>, usize) {
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(self.client as u64);
        let mut rng = SmallRng::seed_from_u64(seed);
        let (gets, other) = self.mix.shares();
        let mut inserted = 0;
        let mut picker = Picker::new(self.distribution, self.keys);
        let ops = (0..self.own_ops())
            .map(|_| {
                let kind = if rng.random_range(0..100) < gets { Kind::Get } else { other };
                if kind == Kind::Insert {
                    inserted += 1;
                    return Op::new(kind, self.new_key(inserted));
                }
                Op::new(
                    kind,
                    match picker.pick(&mut rng, inserted) {
                        Pick::Loaded(key) => key,
                        Pick::Inserted(nth) => self.new_key(nth),
                    },
                )
            })
            .collect();
        (ops, self.new_key(inserted.max(1)) + 1)
    }

    /// Returns the number of this client's `nth` new key, from 1.
    fn new_key(&self, nth: usize) -> usize {
        self.first_new + (nth - 1) * self.clients + self.client
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn plan(mix: Mix, distribution: Distribution) -> Plan {
        let (keys, first_new) = (1000, 1500);
        Plan { mix, distribution, keys, first_new, ops: 40_001, client: 1, clients: 2, seed: 7 }
    }

    #[test]
    fn shares_are_the_workloads() {
        for mix in [Mix::A, Mix::B, Mix::C, Mix::D, Mix::F] {
            let (ops, _) = plan(mix, Distribution::Zipfian).operations();
            assert_eq!(ops.len(), 20_000);
            let (share, other) = mix.shares();
            let gets = ops.iter().filter(|op| op.kind() == Kind::Get).count();
            assert!(gets.abs_diff(200 * share as usize) < 400, "{mix:?} has {gets} gets");
            assert!(ops.iter().all(|op| op.kind() == Kind::Get || op.kind() == other));
        }
    }

    #[test]
    fn a_seed_gives_the_same_operations_and_clients_differ() {
        let words = |p: Plan| p.operations().0.iter().map(|op| op.0).collect::<Vec<_>>();
        let one = plan(Mix::A, Distribution::Zipfian);
        assert_eq!(words(one), words(one));
        assert_ne!(words(one), words(Plan { client: 0, ..one })[..20_000]);
        assert_ne!(words(one), words(Plan { seed: 8, ..one }));
    }

    #[test]
    fn new_keys_are_new_and_reads_only_meet_keys_that_are_there() {
        let mut seen = HashSet::new();
        for client in 0..2 {
            let (ops, keys) = Plan { client, ..plan(Mix::D, Distribution::Latest) }.operations();
            let mut own = HashSet::new();
            for op in ops {
                assert!(op.key() < keys);
                match op.kind() {
                    Kind::Insert => assert!(seen.insert(op.key()) && own.insert(op.key())),
                    _ => assert!(op.key() < 1000 || own.contains(&op.key())),
                }
            }
            assert!(own.iter().all(|&key| key >= 1500));
        }
    }

    #[test]
    fn keys_have_their_size_and_differ() {
        let keys = Keys::new(1001, 24);
        assert_eq!(keys.get(1000), b"user00000000000000001000");
        assert_eq!(Keys::new(1000, 3).get(999), b"999");
        assert_eq!(Keys::number(keys.get(1000)), Some(1000));
        assert_eq!(Keys::number(b"007"), Some(7));
        assert_eq!([&b"user"[..], b"", b"a7", b"\xff", b"7 "].map(Keys::number), [None; 5]);
        assert_eq!(Keys::smallest_size(1000), 3);
        assert_eq!(Keys::smallest_size(1001), 4);
        assert_eq!(Keys::smallest_size(1), 1);
    }
}

//! The heap map: whose each chunk is, and how a client makes chunks its own.
//!
//! One cell says it for all chunks, two to a word: `[ slot 16 | class 16 ]`, 0 = free. A chunk that
//! has an owner keeps it. Each change takes a record, and whoever would change the map needs memory
//! for that first: a slot has a few *seeds* for the time before it owns a chunk for records, and
//! whatever is claimed afterwards sees to the next ones. A claim that is lost gives its record back
//! where that can be, so that however many clients come for their first chunks at once, none is
//! left without.

use swarm_core::cell::{self, Birth, Births, CellRef, Proposal, Proposed};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::geometry::{Class, SEED_RECORDS};
use swarm_core::group::Group;
use swarm_core::layout::record;
use swarm_core::words::Pointer;

use super::counter::{raise_counter, read_counters};
use super::{CLAIM_TRIES, DAMAGED, FEW_RECORDS, Heap, Kind};
use crate::error::Error;

/// Chunks claimed at once at most.
const MAX_CLAIM: usize = 8;
/// Nanoseconds of one try at most that the pause after it goes by.
const LONGEST_CLAIM: u64 = 200_000;

/// Nothing is born with a heap map's record.
struct NoBirths;

impl Births for NoBirths {
    fn births(&self, _payload: &[u64], _each: &mut dyn FnMut(Birth)) {}
}

impl Heap {
    /// Makes free chunks this slot's, unless the map shows that one already is.
    pub(super) async fn claim<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
    ) -> Result<(), Error> {
        let cell = self.map_cell();
        let (since, deadline) = (group.clock().now(), group.patience().deadline);
        for attempt in 0..CLAIM_TRIES {
            let begun = group.clock().now();
            if begun.saturating_sub(since) >= deadline {
                break;
            }
            let view = self.read_map(group).await?;
            if !self.unread(kind).is_empty() {
                return Ok(());
            }
            let record = self.map_record(group).await?;
            let mut map = self.map.borrow().clone();
            if let Err(full) = self.choose(&mut map, kind) {
                self.keep(record);
                return Err(full);
            }
            let payload: Vec<u64> = map
                .chunks(2)
                .map(|pair| u64::from(pair[0]) | (u64::from(*pair.get(1).unwrap_or(&0)) << 32))
                .collect();
            let change = group.number().ok_or(Error::Spent)?;
            let proposal =
                Proposal { change, record, payload: &payload, newborns: &[], sparing: true };
            // Records are dear: a slot has few before it owns a chunk for them, and many clients may
            // come for their first chunks at the same time.
            match cell::propose(group, &cell, &view, &proposal, &NoBirths).await? {
                Proposed::Committed(_) => {
                    *self.map.borrow_mut() = map;
                    return Ok(());
                }
                Proposed::Lost { unused: true } => self.keep(record),
                Proposed::Lost { unused: false } => {}
            }
            let took = group.clock().now().saturating_sub(begun).clamp(1, LONGEST_CLAIM);
            group.pause(group.dice(attempt as u64) % (took << (attempt + 1).min(6))).await;
        }
        Err(Error::Contended)
    }

    /// Marks free chunks in `map` as this slot's: for `kind`, and for heap-map records where those
    /// run out.
    fn choose(&self, map: &mut [u32], kind: Kind) -> Result<(), Error> {
        let mine = map_entry(self.slot, kind.class);
        if kind.class == Class::Run {
            let start = (self.geometry.first_chunk()..map.len())
                .find(|&at| {
                    map.get(at..at + kind.chunks).is_some_and(|run| run.iter().all(|e| *e == 0))
                })
                .ok_or(self.full(kind))?;
            map[start] = mine;
            map[start + 1..start + kind.chunks].fill(map_entry(self.slot, Class::RunTail));
        } else {
            let owned = map.iter().filter(|entry| **entry == mine).count();
            let wanted = (owned / 4 + 1).min(MAX_CLAIM);
            for got in 0..wanted {
                match self.free(map) {
                    Some(chunk) => map[chunk] = mine,
                    None if got == 0 => return Err(self.full(kind)),
                    None => break,
                }
            }
        }
        // Whatever is claimed takes a record, so whatever is claimed must see to the next ones.
        let records = self.records();
        if self.records_left() <= FEW_RECORDS
            && self.unread(records).is_empty()
            && records != kind
            && let Some(chunk) = self.free(map)
        {
            map[chunk] = map_entry(self.slot, records.class);
        }
        Ok(())
    }

    /// The first chunk that belongs to nobody.
    fn free(&self, map: &[u32]) -> Option<usize> {
        (self.geometry.first_chunk()..map.len()).find(|&chunk| map[chunk] == 0)
    }

    /// What heap-map records are.
    pub(super) fn records(&self) -> Kind {
        self.plain(record::HEADER_WORDS + self.geometry.map_payload())
    }

    /// How many heap-map records this slot can still propose without another chunk.
    fn records_left(&self) -> u64 {
        let records = self.records();
        let arenas = self.arenas.borrow();
        let arena = arenas.iter().find(|arena| arena.kind == records);
        // Seeds that were not counted yet do not count: they may be used up.
        SEED_RECORDS - self.seeds.get().unwrap_or(SEED_RECORDS).min(SEED_RECORDS)
            + arena.map_or(0, |arena| arena.limit - arena.next)
    }

    /// Memory for a heap-map record: from a chunk for them, or a seed.
    async fn map_record<F: Fabric, C: Clock>(&self, group: &Group<F, C>) -> Result<Pointer, Error> {
        if let Some(pointer) = self.spare.take() {
            self.recycler.handed_out(pointer);
            return Ok(pointer);
        }
        if let Some(pointer) = self.take_own(group, self.records(), 0).await? {
            return Ok(pointer);
        }
        let counter = self.geometry.seed_counter(self.slot);
        let used = match self.seeds.get() {
            Some(used) => used,
            None => read_counters(group, &[counter]).await?[0],
        };
        self.seeds.set(Some(used));
        if used > SEED_RECORDS {
            return Err(DAMAGED);
        }
        if used == SEED_RECORDS {
            return Err(self.full(self.records()));
        }
        raise_counter(group, counter, used, used + 1).await?;
        self.seeds.set(Some(used + 1));
        Ok(self.geometry.seed(self.slot, used))
    }

    /// Keeps a record that no node names, and that is as good as new, for the next claim. Until then
    /// it is not in use: to a collection it would look like garbage.
    fn keep(&self, record: Pointer) {
        self.recycler.untouched(record);
        self.spare.set(Some(record));
    }

    fn map_cell(&self) -> CellRef {
        CellRef { place: self.geometry.map_cell(), room: self.geometry.map_payload() }
    }

    /// Reads the map. The view is for a change of it.
    pub(super) async fn read_map<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<cell::View, Error> {
        let committed = cell::read(group, &self.map_cell(), &NoBirths).await?;
        let mut map = vec![0; self.geometry.chunks()];
        for (pair, word) in map.chunks_mut(2).zip(committed.iter()) {
            pair[0] = *word as u32;
            if let Some(second) = pair.get_mut(1) {
                *second = (*word >> 32) as u32;
            }
        }
        let slots = self.geometry.max_clients as u32;
        if map.iter().any(|&e| e != 0 && (e >> 16 >= slots || Class::decode(e as u16).is_none())) {
            return Err(DAMAGED);
        }
        *self.map.borrow_mut() = map;
        Ok(committed.view)
    }

    /// The map's record, once its cell is quiet.
    ///
    /// # Errors
    /// Not all nodes answer, or others go on changing the map.
    pub(crate) async fn quiet_record<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Pointer, swarm_core::error::Error> {
        let map = cell::quiet(group, &self.map_cell(), &NoBirths).await?;
        Ok(map.ok_or(swarm_core::error::Error::Contended)?.view.record())
    }

    /// The chunks that are this slot's, by the map at hand: number, class, and how many an object
    /// takes. Of a run the first.
    pub(super) fn own_chunks(&self) -> Vec<(usize, Class, usize)> {
        let map = self.map.borrow();
        let own = |chunk: usize| {
            let entry = map[chunk];
            let class =
                Class::decode(entry as u16).filter(|_| (entry >> 16) as usize == self.slot)?;
            match class {
                Class::RunTail => None,
                Class::Run => Some((chunk, class, self.run_length(&map, chunk))),
                class => Some((chunk, class, 1)),
            }
        };
        (0..map.len()).filter_map(own).collect()
    }

    /// Chunks of the run that begins with `chunk`.
    pub(super) fn run_length(&self, map: &[u32], chunk: usize) -> usize {
        let tail = map_entry(self.slot, Class::RunTail);
        1 + map[chunk + 1..].iter().take_while(|&&entry| entry == tail).count()
    }
}

/// What the heap map says of a chunk: whose it is and what for; 0 = free.
pub(super) fn map_entry(slot: usize, class: Class) -> u32 {
    ((slot as u32) << 16) | u32::from(class.encode())
}

//! Chooses which chunks a client steals from live clients.
//!
//! What other clients can spare shows once a [GC cycle](crate::gc::mark_sweep) has walked the
//! index: the unreachable objects in their chunks. The owner may be about to use them, and must
//! then find others. So a client steals half of what there is. It leaves the last chunk without
//! reachable objects if the owner uses its class, or if it has chunk-map records: the owner would
//! claim another one at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::ChunkClass;
use swarm_core::quorum::Group;

use crate::error::Error;
use crate::heap::chunk_map::{Extent, SHARED};
use crate::heap::{Heap, ObjectKind};

impl Heap {
    /// Steals half of the room for such objects from the client that has the most. Returns whether
    /// there is any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn steal_room<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
    ) -> Result<bool, Error> {
        self.take_over(group, |extents| {
            let extents = self.others(extents).filter(|extent| extent.is_for(kind));
            let rooms = extents.map(|extent| (self.room(extent), *extent));
            half(&mut rooms.filter(|(room, _)| *room > 0))
        })
        .await
    }

    /// Steals half of the units without reachable objects that are for other objects than these,
    /// from the client that has the most of those. Returns whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn steal_unreachable<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
    ) -> Result<bool, Error> {
        self.take_over(group, |extents| {
            let class = |extent: &Extent| (extent.owner, extent.class.encode());
            let (unreachable, reachable): (Vec<&Extent>, Vec<&Extent>) =
                self.others(extents).partition(|extent| self.reachable(extent) == 0);
            // Of these classes, the first such unit stays.
            let small = reachable.into_iter().filter(|extent| extent.class != ChunkClass::Large);
            let mut in_use = BTreeSet::new();
            in_use.extend(small.map(class));
            let records = self.records().class.encode();
            in_use.extend(unreachable.iter().map(|extent| (extent.owner, records)));
            let unreachable =
                unreachable.into_iter().filter(|extent| !in_use.remove(&class(extent)));
            half(&mut unreachable.filter(|extent| !extent.is_for(kind)).map(|extent| (1, *extent)))
        })
        .await
    }

    /// Takes half of the half-transferred units, which a client has taken over and not made its
    /// own, from the client that has the most. A client that is idle by now never makes them its
    /// own, and neither does the next client of a slot whose client died in between. A client that
    /// is about to finds that it does not own them. The wait for the clients that used them before
    /// starts over (E9). Returns whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_stranded<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<bool, Error> {
        self.take_over(group, |extents| {
            let stranded =
                extents.iter().filter(|extent| extent.owner != self.slot && extent.taken);
            half(&mut stranded.map(|extent| (1, *extent)))
        })
        .await
    }

    /// Takes the shared units for other objects than these that are sparse enough to be
    /// [emptied](crate::heap::transfer::sparse), and whose objects fit in this client's own units;
    /// clients with ranges there take others. Returns whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_sparse<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
    ) -> Result<bool, Error> {
        let is_sparse = |extent: &Extent| {
            let is_known = self.reclaimer.reachable(extent.first).is_some();
            let (reachable, is_movable) = (self.reachable(extent), self.can_move(extent.class));
            is_known
                && is_movable
                && self.is_little(reachable, extent)
                && self.finds_room(reachable, extent)
        };
        self.take_over(group, |extents| {
            let shared = self.others(extents).filter(|extent| extent.owner == SHARED);
            shared.filter(|extent| !extent.is_for(kind) && is_sparse(extent)).copied().collect()
        })
        .await
    }

    /// Returns the units of other clients, except half-transferred ones.
    fn others<'u>(&self, extents: &'u [Extent]) -> impl Iterator<Item = &'u Extent> + use<'u> {
        let slot = self.slot;
        extents.iter().filter(move |extent| extent.owner != slot && !extent.taken)
    }

    /// Returns how many objects of a unit are unreachable, of those that other clients have.
    fn room(&self, extent: &Extent) -> u64 {
        let others =
            self.reclaimer.parts(extent.first).map_or(self.objects(extent), |(others, _)| others);
        others.saturating_sub(self.reachable_of_others(extent))
    }

    /// Returns how many objects were reachable at the end of the last GC cycle, 0 if there was
    /// none; of this client's own objects, how many are in use.
    fn reachable(&self, extent: &Extent) -> u64 {
        let own = self.reclaimer.parts(extent.first).map_or(0, |(_, in_use)| in_use);
        self.reachable_of_others(extent) + own
    }

    fn reachable_of_others(&self, extent: &Extent) -> u64 {
        self.reclaimer.reachable(extent.first).unwrap_or(0)
    }
}

/// Returns units with half of the room of the client that has the most, the roomiest first.
fn half(extents: &mut dyn Iterator<Item = (u64, Extent)>) -> Vec<Extent> {
    let mut holders = BTreeMap::<usize, Vec<(u64, Extent)>>::new();
    for (room, extent) in extents {
        holders.entry(extent.owner).or_default().push((room, extent));
    }
    let all = |extents: &[(u64, Extent)]| extents.iter().map(|(room, _)| room).sum::<u64>();
    let mut most = holders.into_values().max_by_key(|extents| all(extents)).unwrap_or_default();
    most.sort_by_key(|&(room, _)| Reverse(room));
    let (wanted, mut got) = (all(&most).div_ceil(2), 0);
    let is_needed = |&(room, _): &(u64, Extent)| {
        let needed = got < wanted;
        got += room;
        needed
    };
    most.into_iter().take_while(is_needed).map(|(_, extent)| extent).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::words::Pointer;

    use super::*;
    use crate::heap::Purpose;
    use swarm_core::sim::explore::LoneClock;

    use crate::heap::tests::{Says, alone};
    use crate::runtime::block_on::block_on;

    /// The chunks that the heap owns by the map as it is now.
    fn own(heap: &Heap, group: &Group<Loopback, LoneClock>) -> Vec<usize> {
        block_on(heap.used(group)).expect("a node");
        heap.own(&heap.map.borrow()).map(|extent| extent.first).collect()
    }

    /// A client that took units over may then be idle, or die and have a successor that does not
    /// know of them. Other clients get them all the same, and no two clients have them at once.
    #[test]
    fn what_somebody_took_over_and_never_used_is_to_be_had() {
        let (group, client) = alone();
        let kind = client.plain(16);
        block_on(client.allocate(&group, kind, Purpose::Insert)).expect("memory");
        let epoch = Cell::new(5);
        let domain = Says(|| epoch.get());
        let idle = Heap::new(client.geometry, 1);
        block_on(idle.used(&group)).expect("a node");
        assert_eq!(block_on(idle.take_over(&group, <[Extent]>::to_vec)), Ok(true));
        idle.announce(&domain);
        block_on(client.used(&group)).expect("a node");
        assert_eq!(block_on(client.steal_room(&group, kind)), Ok(false), "it is on its way");
        assert_eq!(block_on(client.take_stranded(&group)), Ok(true));
        client.announce(&domain);
        assert_eq!(
            block_on(client.make_own(&group, &domain)),
            Ok(false),
            "somebody may be at work in it"
        );
        epoch.set(7);
        assert_eq!(block_on(client.make_own(&group, &domain)), Ok(true));
        let taken = own(&client, &group);
        let _ = block_on(idle.make_own(&group, &domain));
        assert!(!taken.is_empty() && own(&idle, &group).iter().all(|first| !taken.contains(first)));
    }

    /// The chunk was used once, and nothing is left in it.
    #[test]
    fn a_client_that_uses_nothing_of_a_class_keeps_no_chunk_for_it() {
        let (group, holder) = alone();
        let client = Heap::new(holder.geometry, 1);
        let (kind, other) = (holder.plain(16), holder.plain(100));
        holder.has_had(kind);
        block_on(holder.allocate(&group, kind, Purpose::Insert)).expect("memory");
        block_on(client.used(&group)).expect("a node");
        client.reclaimer.begin();
        client.reclaimer.all_marked();
        assert_eq!(block_on(client.steal_unreachable(&group, other)), Ok(true));
        let left = own(&holder, &group);
        assert!(left.iter().all(|chunk| !own(&client, &group).contains(chunk)));
    }

    #[test]
    fn half_of_the_room_of_the_client_that_has_the_most() {
        let extent = |first, owner| Extent {
            first,
            chunks: 1,
            owner,
            class: ChunkClass::Large,
            taken: false,
        };
        let firsts = |all: &[(u64, usize, usize)]| -> Vec<usize> {
            let mut extents = all.iter().map(|&(room, first, owner)| (room, extent(first, owner)));
            half(&mut extents).into_iter().map(|extent| extent.first).collect()
        };
        assert!(firsts(&[]).is_empty());
        assert_eq!(firsts(&[(1, 7, 3)]), [7], "the last one as well");
        assert_eq!(firsts(&[(3, 1, 0), (1, 2, 1), (1, 3, 1), (9, 4, 1), (8, 5, 1)]), [4, 5]);
        assert_eq!(firsts(&[(1, 1, 0), (1, 2, 0), (1, 3, 0)]), [1, 2]);
    }

    /// Transferring chunks in which all objects are in use would gain nothing.
    #[test]
    fn of_chunks_in_which_all_is_named_there_is_no_share() {
        let (group, holder) = alone();
        let client = Heap::new(holder.geometry, 1);
        let kind = holder.plain(16);
        let objects = holder.geometry.objects(kind.class);
        let values: Vec<Pointer> = (0..2 * objects)
            .map(|_| block_on(holder.allocate(&group, kind, Purpose::Replace)).expect("memory"))
            .collect();
        block_on(client.used(&group)).expect("a node");
        let collect = |reachable: &[Pointer]| {
            client.reclaimer.begin();
            reachable.iter().for_each(|&value| client.reclaimer.mark(value));
            client.reclaimer.all_marked();
        };
        collect(&values);
        assert_eq!(block_on(client.steal_room(&group, kind)), Ok(false));
        let (gone, before) = (holder.geometry.chunk_of(values[0]), own(&holder, &group));
        collect(&values[1..]);
        assert_eq!(block_on(client.steal_room(&group, kind)), Ok(true));
        let kept: Vec<usize> = before.into_iter().filter(|&chunk| chunk != gone).collect();
        assert_eq!(own(&holder, &group), kept);
        assert!(!kept.is_empty());
    }
}

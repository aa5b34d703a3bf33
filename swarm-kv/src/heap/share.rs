//! Which chunks a client takes of others, who are there and use them.
//!
//! What others can spare shows once a [collection](crate::collect) has gone over the index: the objects in
//! their chunks that nothing names. Who has them may be about to use them, and looks for others then. So a
//! share is half of what there is, and the last chunk in which nothing is named stays if its class is in use, or if
//! it has the map's records: who has it would take another one at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::Class;
use swarm_core::quorum::Group;

use super::map::{SHARED, Unit};
use super::{Heap, Kind};
use crate::error::Error;

impl Heap {
    /// Takes half of the room for such objects that the client has that has the most. Yields whether there is
    /// any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_room<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
    ) -> Result<bool, Error> {
        self.take_over(group, |units| {
            let units = self.others(units).filter(|unit| unit.is_for(kind));
            half(units.map(|unit| (self.room(unit), *unit)).filter(|(room, _)| *room > 0))
        })
        .await
    }

    /// Takes half of the units for other objects than such in which nothing is named, of the client that has
    /// the most of those. Yields whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_unnamed<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
    ) -> Result<bool, Error> {
        self.take_over(group, |units| {
            let class = |unit: &Unit| (unit.owner, unit.class.encode());
            let (unnamed, named): (Vec<&Unit>, Vec<&Unit>) =
                self.others(units).partition(|unit| self.named(unit) == 0);
            // Of these classes the first one stays.
            let small = named.into_iter().filter(|unit| unit.class != Class::Run);
            let mut in_use: BTreeSet<_> = small.map(class).collect();
            let records = self.records().class.encode();
            in_use.extend(unnamed.iter().map(|unit| (unit.owner, records)));
            let unnamed = unnamed.into_iter().filter(|unit| !in_use.remove(&class(unit)));
            half(unnamed.filter(|unit| !unit.is_for(kind)).map(|unit| (1, *unit)))
        })
        .await
    }

    /// Takes half of the units that somebody has taken over and not made its own, of who has the most of
    /// those. One that is idle by now never does, nor one whose slot's former holder died in between. Whoever
    /// is about to finds that they are not its own, and whoever used them before it is waited for once more.
    /// Yields whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_stranded<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<bool, Error> {
        self.take_over(group, |units| {
            let stranded = units.iter().filter(|unit| unit.owner != self.slot && unit.taken);
            half(stranded.map(|unit| (1, *unit)))
        })
        .await
    }

    /// Takes the shared units for other objects than such in which no more is named than moves out of a chunk that is
    /// [emptied](super::sparse), and finds room in this client's own: who has ranges there takes others. Yields whether
    /// there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_sparse<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
    ) -> Result<bool, Error> {
        let is_sparse = |unit: &Unit| {
            let is_known = self.recycler.named(unit.first).is_some();
            let (named, is_movable) = (self.named(unit), self.can_move(unit.class));
            is_known && is_movable && self.is_little(named, unit) && self.finds_room(named, unit)
        };
        self.take_over(group, |units| {
            let shared = self.others(units).filter(|unit| unit.owner == SHARED);
            shared.filter(|unit| !unit.is_for(kind) && is_sparse(unit)).copied().collect()
        })
        .await
    }

    /// Others' units, but for those that are on their way to somebody.
    fn others<'u>(&self, units: &'u [Unit]) -> impl Iterator<Item = &'u Unit> + use<'u> {
        let slot = self.slot;
        units.iter().filter(move |unit| unit.owner != slot && !unit.taken)
    }

    /// So many objects of a unit nothing names, that are others'.
    fn room(&self, unit: &Unit) -> u64 {
        let others =
            self.recycler.parts(unit.first).map_or(self.objects(unit), |(others, _)| others);
        others.saturating_sub(self.named_of_others(unit))
    }

    /// So many were named when a collection last got to the end, none before; of its own, what this client uses.
    fn named(&self, unit: &Unit) -> u64 {
        let own = self.recycler.parts(unit.first).map_or(0, |(_, in_use)| in_use);
        self.named_of_others(unit) + own
    }

    fn named_of_others(&self, unit: &Unit) -> u64 {
        self.recycler.named(unit.first).unwrap_or(0)
    }
}

/// Units with half of the room that the client has that has the most of it, and the roomiest of those.
fn half(units: impl Iterator<Item = (u64, Unit)>) -> Vec<Unit> {
    let mut holders = BTreeMap::<usize, Vec<(u64, Unit)>>::new();
    for (room, unit) in units {
        holders.entry(unit.owner).or_default().push((room, unit));
    }
    let all = |units: &[(u64, Unit)]| units.iter().map(|(room, _)| room).sum::<u64>();
    let mut most = holders.into_values().max_by_key(|units| all(units)).unwrap_or_default();
    most.sort_by_key(|&(room, _)| Reverse(room));
    let (wanted, mut got) = (all(&most).div_ceil(2), 0);
    let is_needed = |&(room, _): &(u64, Unit)| {
        let needed = got < wanted;
        got += room;
        needed
    };
    most.into_iter().take_while(is_needed).map(|(_, unit)| unit).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::words::Pointer;

    use super::super::Need;
    use super::super::tests::{Says, Still, alone};
    use super::*;
    use crate::blocking::block_on;

    /// The chunks that the heap has by the map as it is now.
    fn own(heap: &Heap, group: &Group<Loopback, Still>) -> Vec<usize> {
        block_on(heap.used(group)).expect("a node");
        heap.own(&heap.map.borrow()).map(|unit| unit.first).collect()
    }

    /// Whoever took units over may do nothing any more, or die and have an heir who knows nothing of it. Others
    /// have them all the same, and nobody has them twice.
    #[test]
    fn what_somebody_took_over_and_never_used_is_to_be_had() {
        let (group, client) = alone();
        let kind = client.plain(16);
        block_on(client.allocate(&group, kind, Need::More)).expect("memory");
        let epoch = Cell::new(5);
        let board = Says(|| epoch.get());
        let idle = Heap::new(client.geometry, 1);
        block_on(idle.used(&group)).expect("a node");
        assert_eq!(block_on(idle.take_over(&group, <[Unit]>::to_vec)), Ok(true));
        idle.announce(&board);
        block_on(client.used(&group)).expect("a node");
        assert_eq!(block_on(client.take_room(&group, kind)), Ok(false), "it is on its way");
        assert_eq!(block_on(client.take_stranded(&group)), Ok(true));
        client.announce(&board);
        assert_eq!(
            block_on(client.make_own(&group, &board)),
            Ok(false),
            "somebody may be at work in it"
        );
        epoch.set(7);
        assert_eq!(block_on(client.make_own(&group, &board)), Ok(true));
        let taken = own(&client, &group);
        let _ = block_on(idle.make_own(&group, &board));
        assert!(!taken.is_empty() && own(&idle, &group).iter().all(|first| !taken.contains(first)));
    }

    /// It was of use once, and nothing is left in it.
    #[test]
    fn who_uses_nothing_of_a_class_keeps_no_chunk_for_it() {
        let (group, holder) = alone();
        let client = Heap::new(holder.geometry, 1);
        let (kind, other) = (holder.plain(16), holder.plain(100));
        holder.has_had(kind);
        block_on(holder.allocate(&group, kind, Need::More)).expect("memory");
        block_on(client.used(&group)).expect("a node");
        client.recycler.begin();
        client.recycler.all_marked();
        assert_eq!(block_on(client.take_unnamed(&group, other)), Ok(true));
        let left = own(&holder, &group);
        assert!(left.iter().all(|chunk| !own(&client, &group).contains(chunk)));
    }

    #[test]
    fn half_of_the_room_of_who_has_the_most() {
        let unit = |first, owner| Unit { first, chunks: 1, owner, class: Class::Run, taken: false };
        let firsts = |all: &[(u64, usize, usize)]| -> Vec<usize> {
            let units = all.iter().map(|&(room, first, owner)| (room, unit(first, owner)));
            half(units).into_iter().map(|unit| unit.first).collect()
        };
        assert!(firsts(&[]).is_empty());
        assert_eq!(firsts(&[(1, 7, 3)]), [7], "the last one as well");
        assert_eq!(firsts(&[(3, 1, 0), (1, 2, 1), (1, 3, 1), (9, 4, 1), (8, 5, 1)]), [4, 5]);
        assert_eq!(firsts(&[(1, 1, 0), (1, 2, 0), (1, 3, 0)]), [1, 2]);
    }

    /// Chunks in which all is in use would change hands for nothing.
    #[test]
    fn of_chunks_in_which_all_is_named_there_is_no_share() {
        let (group, holder) = alone();
        let client = Heap::new(holder.geometry, 1);
        let kind = holder.plain(16);
        let objects = holder.geometry.objects(kind.class);
        let values: Vec<Pointer> = (0..2 * objects)
            .map(|_| block_on(holder.allocate(&group, kind, Need::Instead)).expect("memory"))
            .collect();
        block_on(client.used(&group)).expect("a node");
        let collect = |named: &[Pointer]| {
            client.recycler.begin();
            named.iter().for_each(|&value| client.recycler.mark(value));
            client.recycler.all_marked();
        };
        collect(&values);
        assert_eq!(block_on(client.take_room(&group, kind)), Ok(false));
        let (gone, before) = (holder.geometry.chunk_of(values[0]), own(&holder, &group));
        collect(&values[1..]);
        assert_eq!(block_on(client.take_room(&group, kind)), Ok(true));
        let kept: Vec<usize> = before.into_iter().filter(|&chunk| chunk != gone).collect();
        assert_eq!(own(&holder, &group), kept);
        assert!(!kept.is_empty());
    }
}

//! Resetting objects that were found to be garbage.
//!
//! A register must begin with empty slots, a record with no accepted ballot and, for a client that
//! took over the chunk, a buffer with a lock that no larger number holds. So what a collection found
//! is set to zeros at *every* node, and is at hand only once all of them have answered. Nobody else
//! knows of it by then, so that control words may be written for once.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{Class, Site, buffer};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::words::{GRANULE_WORDS, Pointer};

use super::{Heap, Kind};
use crate::error::Error;

/// Objects that are being reset. Where that is given up they are retired again, until the chains are
/// over that were to reset them.
struct Due<'h> {
    heap: &'h Heap,
    /// What they are, but for seeds.
    kind: Option<Kind>,
    objects: Vec<Pointer>,
    epoch: u64,
}

impl Due<'_> {
    fn done(mut self) {
        let objects = std::mem::take(&mut self.objects);
        match self.kind {
            Some(kind) => self.heap.recycler.renewed(kind, &objects),
            None => self.heap.seeds_back.borrow_mut().extend(objects),
        }
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        // The operation that was to reset them began in this epoch or before: when it has moved on twice, the operation
        // and its chains are over, and nobody else knows of them.
        let (objects, until) = (std::mem::take(&mut self.objects), self.epoch);
        match self.kind {
            _ if objects.is_empty() => {}
            Some(kind) => self.heap.recycler.put_off(kind, &objects, until),
            None => *self.heap.seeds_retired.borrow_mut() = Some((until, objects)),
        }
    }
}

impl Heap {
    /// Resets what was retired [`GRACE`](swarm_core::epoch::GRACE) epochs before `epoch`, in at most so
    /// many batches, but for what nodes hold that are `silent`. Yields how many objects are at hand now. What is
    /// this client's must be known.
    ///
    /// # Errors
    /// Not all nodes answer; nothing is lost by it.
    pub(crate) async fn reset_due<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        (epoch, batches, silent): (u64, usize, NodeSet),
        each: impl Fn(&Site),
    ) -> Result<usize, Error> {
        let mut reset = 0;
        for _ in 0..batches {
            let Some(due) = self.due(epoch, silent) else { break };
            let kind = due.kind.unwrap_or(self.records());
            self.reset(group, kind, &due.objects).await?;
            reset += due.objects.len();
            due.objects.iter().filter_map(|&o| self.site(kind, o)).for_each(|site| each(&site));
            due.done();
        }
        Ok(reset)
    }

    fn due(&self, epoch: u64, silent: NodeSet) -> Option<Due<'_>> {
        let objects = self.recycler.due(epoch, MAX_VERBS, self.are_reset(silent));
        let objects = objects.map(|(kind, objects)| (Some(kind), objects));
        // All nodes hold seeds.
        let seeds = || if silent.is_empty() { self.due_seeds(epoch) } else { None };
        let (kind, objects) = objects.or_else(|| Some((None, seeds()?)))?;
        Some(Due { heap: self, kind, objects, epoch })
    }

    /// Whether objects of a kind can be reset though these nodes are silent: none of them holds such.
    pub(super) fn are_reset(&self, silent: NodeSet) -> impl Fn(Kind) -> bool + use<> {
        move |kind| match kind.class {
            // Such a buffer does without that node.
            Class::Lean(_) => silent.holding(|node| node != kind.home).is_empty(),
            _ => silent.is_empty(),
        }
    }

    /// Sets objects to zeros, as far as what is there could be taken for something. One roundtrip.
    async fn reset<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        objects: &[Pointer],
    ) -> Result<(), Error> {
        let nodes = group.nodes();
        let zeros = vec![0; self.words_to_reset(kind, true)];
        let write = |&object: &Pointer, node: NodeId| {
            let words = self.words_to_reset(kind, node == kind.home);
            self.site(kind, object).map(|site| Verb::Write {
                at: site.place.at(node, nodes),
                head: &zeros[..words],
                tail: &[],
            })
        };
        let post = |node| {
            let verbs: Vec<Verb<'_>> =
                objects.iter().filter_map(|object| write(object, node)).collect();
            group.fabric().post(node, &verbs)
        };
        let holders = self.site(kind, objects[0]).map_or(NodeSet::EMPTY, |site| site.holders);
        group.at_all_of(holders, post, |_, _| {}).await?;
        Ok(())
    }

    /// All of a register or a cell; of what lies out of place the words in front.
    fn words_to_reset(&self, kind: Kind, at_home: bool) -> usize {
        match kind.class {
            Class::Homed { full, .. } if at_home => full.granules() as usize * GRANULE_WORDS,
            Class::Homed { small, .. } => usize::from(small) * GRANULE_WORDS,
            _ => buffer::HEADER_WORDS,
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::Size;

    use super::super::tests::alone;
    use super::*;

    /// What a silent node has to answer for does not come back; a buffer that it does without does.
    #[test]
    fn what_a_silent_node_holds_is_not_waited_for() {
        let (_, heap) = alone();
        let silent: NodeSet = [NodeId(1)].into_iter().collect();
        let lean = |home| Kind { class: Class::Lean(Size::for_granules(2)), home, chunks: 1 };
        let are_reset = heap.are_reset(silent);
        assert!(are_reset(lean(NodeId(1))));
        assert!(!are_reset(lean(NodeId(0))) && !are_reset(heap.plain(16)));
        assert!(heap.are_reset(NodeSet::EMPTY)(heap.plain(16)));
    }
}

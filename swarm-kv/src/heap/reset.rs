//! Resetting objects that were found to be garbage.
//!
//! A register must begin with empty slots, a record with no accepted ballot and, for a client that
//! took over the chunk, a buffer with a lock that no larger number holds. So what a collection found
//! is set to zeros at *every* node, and is at hand only once all of them have answered. Nobody else
//! knows of it by then, so that control words may be written for once.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS, NodeId, Verb};
use swarm_core::geometry::Class;
use swarm_core::group::Group;
use swarm_core::layout::{Place, buffer};
use swarm_core::words::{GRANULE_WORDS, Pointer};

use super::{Heap, Kind};
use crate::error::Error;

impl Heap {
    /// Resets what was retired [`GRACE`](swarm_core::epoch::GRACE) epochs before `epoch`. Yields how
    /// many objects are at hand now.
    ///
    /// # Errors
    /// Not all nodes answer; nothing is lost by it.
    pub(crate) async fn reset_due<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        epoch: u64,
        each: impl Fn(&Place),
    ) -> Result<usize, Error> {
        let mut reset = 0;
        while let Some((kind, due)) = self.recycler.due(epoch, MAX_VERBS) {
            if let Err(error) = self.reset(group, kind, &due).await {
                self.recycler.put_off(kind, &due, epoch);
                return Err(error);
            }
            reset += due.len();
            due.iter().filter_map(|&object| self.place(kind, object)).for_each(|p| each(&p));
            self.recycler.renewed(kind, &due);
        }
        Ok(reset)
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
            self.place(kind, object).map(|place| Verb::Write {
                at: place.at(node, nodes),
                head: &zeros[..words],
                tail: &[],
            })
        };
        let post = |node| {
            let verbs: Vec<Verb<'_>> =
                objects.iter().filter_map(|object| write(object, node)).collect();
            group.fabric().post(node, &verbs)
        };
        group.everywhere(post, |_, _| {}).await?;
        Ok(())
    }

    fn place(&self, kind: Kind, object: Pointer) -> Option<Place> {
        match kind.class {
            Class::Homed { .. } => self.geometry.homed_place(object, kind.class),
            _ => Some(Place::everywhere(object, kind.home)),
        }
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

//! Reading a pool that one may not write.
//!
//! A client takes a slot, marks its operations on the epoch table and helps others on, all of which are stores. A reader does none of it: it runs a client's protocols
//! over a [read-only fabric](crate::read_only), which posts READs alone. What they come to counts only if they rest on what nodes hold and on nothing that the
//! reader would have stored first: a value that f + 1 nodes hold, and that is known to stay. As nobody waits for a reader, memory may be used for something else under
//! its eyes. S15: **each answer is what the nodes held at one moment**, behind the last READ of it: all is READ once more, and must be the same. Where
//! it is not, the reader begins again, and gives up in the end. It remembers nothing from one look to the next.
//!
//! Two roundtrips for each of a client's.

use std::iter;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

use swarm_core::node::NodeSet;
use swarm_shm::{Pool, PoolClock, ReadFabric};

use crate::client::handle::{Client, Options};
use crate::client::process::cut_off;
use crate::error::Error;
use crate::pools::shm::nobody;
use crate::read_only::ReadOnlyFabric;
use crate::runtime::block_on::block_on;

/// How often it looks, while others change what it looks at. With the pauses in between that is about a second. Seven nodes have 35 majorities of four, and
/// each is tried.
const LOOKS: u32 = 40;
/// The first pauses are shorter.
const LONGEST_PAUSE: Duration = Duration::from_millis(30);

/// What runs over a read-only fabric.
type Looker = Client<ReadOnlyFabric<ReadFabric>, PoolClock>;

/// Reads the keys of a pool, which may be opened to [read alone](swarm_shm::OpenOptions::read_only): takes no client slot and changes nothing. Its answers are
/// linearizable with all operations of clients.
///
/// Where a write or a delete was left half done, such as by a client that was killed, a reader cannot complete it. It answers as long as some majority of the
/// nodes agrees without it: of f + 1 nodes that have none of it a client, too, would get what was before. Where each majority that answers
/// has some of it, as in a pool that is open without one of three nodes, the key is [`Contended`](Error::Contended) until a client uses it: what one node shows
/// may be at a majority, with a node that is missing, or may be undone. A key that a client was moving when it died, as every change does that depends on the value
/// (`compare_and_swap` and the like), is `Contended` until a client uses it as well, if a majority shows the move.
#[derive(Clone, Debug)]
pub struct Reader {
    pool: Pool,
}

impl Reader {
    /// A reader of `pool`.
    pub fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone() }
    }

    /// The value of `key`, if it is there.
    ///
    /// # Errors
    /// A key out of bounds; too few memory nodes that answer; [`Error::Contended`] if others change it again and again, or left a change of it half
    /// done; [`Error::Destroyed`], [`Error::Gone`] or [`Error::CutShort`] if the pool is lost.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.look(async |looker| {
            Ok(looker.get_without_memory(key).await?.map(|value| value.to_vec()))
        })
    }

    /// Calls `each` with every key and its value until it breaks off: those of a first bucket as of one moment, of one after the other.
    ///
    /// # Errors
    /// As [`get`](Self::get): one key that is contended ends it.
    pub fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.for_each_with_ttl(|key, value, _| each(key, value))
    }

    /// As [`for_each`](Self::for_each), and passes on for each key how long it will still be there, by this host's clock, if it expires.
    ///
    /// # Errors
    /// As there.
    pub fn for_each_with_ttl(
        &self,
        mut each: impl FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        for first in 0..self.pool.geometry().first_buckets() {
            let pairs = self.look(async |looker| looker.pairs_below(first).await)?;
            for (key, value, left) in pairs {
                if each(&key, &value, left).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What `look` comes to, as of one moment.
    fn look<T>(&self, look: impl AsyncFn(&Looker) -> Result<T, Error>) -> Result<T, Error> {
        for attempt in 0..LOOKS {
            let generation = self.pool.generation();
            // Behind the generation: by a configuration that is taken up, or that is noticed below.
            let configuration = self.pool.configuration();
            let fabric = ReadOnlyFabric::witness(self.pool.read_fabric());
            let fabric = fabric.without(left_out(attempt, self.pool.geometry().nodes));
            let options = Options::default().cached_keys(1);
            let (clock, geometry) = (self.pool.clock(), self.pool.geometry());
            let looker = Client::new(fabric, clock, geometry, nobody(), options.cached_buckets(1));
            let looker = looker.that_only_looks();
            let outcome = block_on(look(&looker));
            let is_so = block_on(looker.group.fabric().inner().saw_what_was());
            // Behind the last READ: the pool is there, and is what it was.
            if let lost @ Some(_) = self.pool.lost() {
                return Err(cut_off(lost));
            }
            let is_same =
                self.pool.generation() == generation && self.pool.configuration() == configuration;
            match outcome {
                // What was used for something else under its eyes, or is not at the others without the nodes that were left out, looks like that as well.
                Err(Error::Replication(swarm_core::error::Error::NoMajority { .. })) => {
                    let answered =
                        block_on(looker.group.fabric().inner().answering(&geometry.map_cell()));
                    let needed = looker.group.majority();
                    if answered < needed {
                        let too_few = swarm_core::error::Error::NoMajority { answered, needed };
                        return Err(too_few.into());
                    }
                    pause(attempt);
                }
                // A key is being moved, which takes memory. To reclaim some changes what nodes hold,
                // so no answer could rest on it (S15), and all that reclaims would be generated for
                // readers as well.
                Err(Error::Full(_)) => pause(attempt),
                outcome if is_so && is_same => return outcome,
                _ => pause(attempt),
            }
        }
        Err(Error::Contended)
    }
}

/// The nodes that a look goes without: none at first, then those outside of one bare majority after the other.
fn left_out(attempt: u32, nodes: usize) -> NodeSet {
    let others = (1..1_u8 << nodes).map(NodeSet::from_bits);
    let minorities = others.filter(move |set| set.len() == (nodes - 1) / 2);
    let sets = iter::once(NodeSet::EMPTY).chain(minorities);
    sets.cycle().nth(attempt as usize).unwrap_or_default()
}

/// Waits before the next look.
fn pause(attempt: u32) {
    sleep(LONGEST_PAUSE.min(Duration::from_micros(10 << attempt.min(20))));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::error::Error::NoMajority;
    use swarm_shm::CreateOptions;

    use super::*;
    use crate::error::Shortage;

    /// Two of five nodes have a write that was left half done, and it went without one at a time.
    #[test]
    fn each_majority_is_gone_by() {
        for nodes in [1, 3, 5, 7] {
            let looks: Vec<NodeSet> = (0..LOOKS).map(|attempt| left_out(attempt, nodes)).collect();
            assert_eq!(looks[0], NodeSet::EMPTY);
            let all = NodeSet::all(nodes);
            let sets = (0..1_u8 << nodes).map(NodeSet::from_bits);
            for majority in sets.filter(|set| set.len() == nodes / 2 + 1) {
                assert!(looks.contains(&all.minus(majority)), "{majority:?} of {nodes}");
            }
            assert!(looks.iter().all(|set| 2 * set.len() < nodes), "a majority is left");
        }
    }

    /// A key is on the move, and to move it on takes memory: its clients have to.
    #[test]
    fn a_reader_reclaims_no_memory_and_looks_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
        let reader = Reader::new(&Pool::create(dir.path().join("pool"), &options).expect("a pool"));
        let shortage =
            Shortage { object: 64, capacity: 4 << 20, held_up: None, cannot_claim: false };
        let looks = Cell::new(0);
        let outcome = reader.look(async |_| {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Err(Error::Full(shortage)) } else { Ok(()) }
        });
        assert_eq!((outcome, looks.get()), (Ok(()), 3));
        assert_eq!(
            reader.look(async |_| Err::<(), _>(Error::Full(shortage))),
            Err(Error::Contended)
        );
    }

    /// What a look goes by is used for something else meanwhile, and then hardly any node seems to
    /// have it: the error was that they do not answer.
    #[test]
    fn nodes_that_answer_are_not_reported_as_silent() {
        let dir = tempfile::tempdir().expect("a directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let reader = Reader::new(&pool);
        let too_few = |answered| Error::from(NoMajority { answered, needed: 2 });
        let looks = Cell::new(0);
        let outcome = reader.look(async |looker| {
            looks.set(looks.get() + 1);
            if looks.get() < 5 {
                return Err(too_few(0));
            }
            Ok(looker.get(b"key").await?.is_some())
        });
        assert_eq!((outcome, looks.get()), (Ok(false), 5));
        assert_eq!(reader.look(async |_| Err::<(), _>(too_few(0))), Err(Error::Contended));
        for node in ["node-0", "node-2"] {
            let file = std::fs::OpenOptions::new().write(true).open(pool.path().join(node));
            file.expect("it is there").set_len(0).expect("it is ours");
        }
        assert_eq!(reader.get(b"key"), Err(too_few(1)));
    }
}

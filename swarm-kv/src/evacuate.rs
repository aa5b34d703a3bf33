//! Emptying chunks in which little is in use, so that they are for any size again.
//!
//! Chunks that are [closed](crate::heap) hand out nothing. An *evacuation* goes over the index and has all move that the
//! index names in them: a key by [moving it on](crate::moved), register and value, whoever wrote them; a bucket's record by
//! proposing what it lists once more. It knows of no other way to move anything, so that whatever happens meanwhile to a
//! key or a bucket, on whoever's side, is what may happen to one that moves: it all rests on the same cells. What is left
//! behind nothing names any more; the next [collection](crate::collect) finds it, and two epochs later the chunks are
//! [left](crate::heap).
//!
//! It ends at the end of the index, whether all could be moved or not: what has nowhere to go, or is in use for an
//! operation under way, stays, and its chunk is opened again. Who dies in the middle leaves what moved moved, and the
//! rest where it is; that chunks are closed nobody else knows of.
//!
//! Roundtrips: two for each bucket and one for its keys, as a collection takes, and some eight for each key that moves.

use futures_util::future::try_join_all;
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{BufferHeader, buffer};
use swarm_core::register::survey::{Survey, survey};
use swarm_core::register::{Protocol, Register};
use swarm_core::words::Pointer;

use crate::bucket::{Bucket, Content, Entry};
use crate::client::Client;
use crate::error::Error;
use crate::heap::{Kind, Need};
use crate::index::Located;
use crate::tour::{Stop, Tour};

/// Buckets that one step goes over. What its changes replace comes back behind it.
const STEP: usize = 12;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Has all move out of the sparsest chunks of this client's that finds room in others of its. False if nothing
    /// would be gained; otherwise the next collection finds what it has left behind. Whoever calls this searches alone.
    ///
    /// # Errors
    /// Not all nodes answer, or a bucket is changed all the time: it is given up, and nothing is lost by it.
    pub(crate) async fn evacuate(&self, wanted: Kind) -> Result<bool, Error> {
        if !self.group.suspects().is_empty() || !self.close_sparse(wanted).await? {
            return Ok(false);
        }
        let mut tour = Tour::default();
        while self.evacuate_some(&mut tour).await? {
            self.searching.goes_on();
            if self.heap.has_few_records() {
                self.replaced_back().await?;
            }
        }
        Ok(true)
    }

    async fn close_sparse(&self, wanted: Kind) -> Result<bool, Error> {
        let _here = self.here();
        self.heap.close_sparse(&self.group, wanted).await
    }

    /// Goes over a few buckets. False at the end of the index.
    async fn evacuate_some(&self, tour: &mut Tour) -> Result<bool, Error> {
        for _ in 0..STEP {
            let _here = self.here();
            match self.next_quiet(tour).await? {
                Stop::At(located) => self.move_what_is_closed(&located).await?,
                Stop::Nothing => {}
                Stop::End => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Has all move that a quiet bucket names and that lies in chunks that are closed. A worn cell's last changes are for
    /// whoever sends its keys on, and a split's record stays, as what was born with it may be something else by now.
    async fn move_what_is_closed(&self, located: &Located) -> Result<(), Error> {
        let Content::Entries { entries, born } = &located.bucket.content else { return Ok(()) };
        if self.is_worn(located) {
            return Ok(());
        }
        let registers = entries.iter().filter_map(|it| Some((it, it.register(&self.geometry)?)));
        let surveys = registers.map(async |(entry, register)| {
            survey(&self.group, &register.place).await.map(|survey| (entry, register, survey))
        });
        let mut is_changed = false;
        for (entry, register, survey) in try_join_all(surveys).await? {
            is_changed |= self.move_key(entry, &register, &survey).await?;
        }
        let is_closed = |object| self.heap.recycler.is_closed(object);
        let record = is_closed(located.view.record());
        if !is_changed && (record || born.is_some_and(|born| is_closed(born.buffer))) {
            // As it is quiet, all nodes have what was born with it.
            let content = Content::Entries { entries: entries.clone(), born: None };
            let bucket = Bucket { content, ..located.bucket };
            self.or_stay(self.change(located, bucket, &[], Need::Room).await)?;
        }
        Ok(())
    }

    /// Moves a key if anything of it lies in a chunk that is closed. Yields whether its bucket is another one by now. What
    /// was deleted a collection takes away.
    async fn move_key(
        &self,
        entry: &Entry,
        register: &Register,
        survey: &Survey,
    ) -> Result<bool, Error> {
        let is_closed = |object| self.heap.recycler.is_closed(object);
        let buffer = |stamp| self.geometry.format.pointer(stamp);
        let is_there = is_closed(entry.pointer) || survey.current().any(|it| is_closed(buffer(it)));
        let last = survey.current().max().filter(|_| is_there && !self.is_dead(survey));
        let Some(last) = last else { return Ok(false) };
        let length = self.length_in(buffer(last), register).await?;
        // A record that its bucket goes to must be at hand before the key is frozen.
        if self.heap.takes_chunks(length) || !self.or_stay(self.has_record(Need::Room).await)? {
            return Ok(false);
        }
        let moved = self.or_stay(self.move_out(entry.hash, register, length).await)?;
        self.evacuated.set(self.evacuated.get() + u64::from(moved));
        Ok(moved)
    }

    /// Whether something was changed: it stays where it is where there is no room for it.
    fn or_stay<T>(&self, change: Result<T, Error>) -> Result<bool, Error> {
        match change {
            Ok(_) => Ok(true),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How long the value of the write to `register` is that `object` is the buffer of, as far as a node tells: one that
    /// has been written since may be longer.
    async fn length_in(&self, object: Pointer, register: &Register) -> Result<usize, Error> {
        // A delete's stamp names none.
        if object.is_null() {
            return Ok(0);
        }
        let nodes = self.group.nodes();
        let site = self.geometry.buffers().site(object);
        let read = |node| {
            let at = site.place.at(node, nodes).plus(buffer::REWRITE);
            let words = buffer::HEADER_WORDS - buffer::REWRITE;
            self.group.fabric().post(node, &[Verb::Read { at, words }])
        };
        let mut length = 0;
        let hear = |_, reply: F::Reply<'_>| {
            let header = BufferHeader::decode(&reply);
            let its_own = header.filter(|header| header.register == register.place.pointer);
            length = its_own.map_or(length, |header| length.max(header.length));
        };
        self.group.at_all_of(site.holders, read, hear).await?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use crate::client::Options;
    use crate::error::Error;
    use crate::shm::{self, Client, CreateOptions, Pool};

    /// In a row; each may have found memory that is on its way back.
    const REFUSALS: usize = 3;

    fn new() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 24, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        (dir, pool)
    }

    fn open(pool: &Pool) -> Client {
        shm::open(pool, Options::default()).expect("a slot")
    }

    fn key(size: usize, number: usize) -> Vec<u8> {
        format!("{size} {number}").into_bytes()
    }

    /// So many values of `size` bytes there is room for.
    fn fill(client: &Client, size: usize) -> usize {
        let (value, mut stored, mut refused) = (vec![7; size], 0, 0);
        while refused < REFUSALS {
            match client.blocking().put(&key(size, stored), &value) {
                Ok(()) => (stored, refused) = (stored + 1, 0),
                Err(Error::Full(_)) => refused += 1,
                Err(why) => panic!("value {stored} of {size} bytes: {why}"),
            }
        }
        stored
    }

    /// There is room for 85 % of what a new pool takes.
    fn holds_as_much_as_a_new_one(pool: &Pool, size: usize) -> Client {
        let (_dir, fresh) = new();
        let (client, all) = (open(pool), fill(&open(&fresh), size));
        let fit = fill(&client, size);
        println!("{fit} values of {size} bytes, {all} in a new pool");
        assert!(100 * fit >= 85 * all, "{fit} values of {size} bytes, {all} in a new pool");
        assert!(client.counters().evacuated > 0);
        client
    }

    fn holds(client: &Client, size: usize, number: usize) {
        let value = client.blocking().get(&key(size, number)).expect("get");
        assert_eq!(value.as_deref(), Some(&vec![7; size][..]), "value {number} of {size} bytes");
    }

    /// Each of many clients that write much puts a key, and leaves. What they took was for keys and values of that size for ever, with
    /// an object or two in each chunk.
    #[test]
    fn a_crowd_that_has_left_a_key_each_leaves_room() {
        const CROWD: usize = 17;
        for size in [1000, 60_000] {
            let (_dir, pool) = new();
            let crowd: Vec<Client> = (0..CROWD).map(|_| open(&pool)).collect();
            for (number, client) in crowd.iter().enumerate() {
                client.heap.has_had_all();
                client.blocking().put(&key(100, number), &[7; 100]).expect("put");
            }
            drop(crowd);
            let client = holds_as_much_as_a_new_one(&pool, size);
            (0..CROWD).for_each(|number| holds(&client, 100, number));
        }
    }

    /// Of the keys that fill a pool one in forty is left, here and there.
    #[test]
    fn what_was_of_one_size_is_for_others_though_some_of_it_is_left() {
        for size in [5000, 60_000] {
            let (_dir, pool) = new();
            let writer = open(&pool);
            let all = fill(&writer, 2000);
            let mut dice = fastrand::Rng::with_seed(size as u64);
            let (kept, others): (Vec<usize>, Vec<usize>) =
                (0..all).partition(|_| dice.u8(..40) == 0);
            for number in others {
                writer.blocking().delete(&key(2000, number)).expect("delete");
            }
            drop(writer);
            let client = holds_as_much_as_a_new_one(&pool, size);
            kept.into_iter().for_each(|number| holds(&client, 2000, number));
        }
    }
}

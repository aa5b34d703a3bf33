//! Waiting for a key to change.
//!
//! A client that waits announces it, looks at the key, and sleeps if it finds what it has seen before. On
//! shared memory a client that changes the key wakes it (N1). Elsewhere, and where the client that made
//! the change died before it woke anybody, the one that waits looks again by itself: after 10 ms at
//! first, and after a second at most. So a lost wake costs time, and never the last value (N2).

use std::time::{Duration, Instant};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::looks::{Pauses, looks_until};
use crate::client::waiting::Prepared;
use crate::error::Error;
use crate::ops::blocking::Blocking;
use crate::runtime::block_on::block_on;

/// The pauses before a client looks again by itself: at first, and at most.
pub(crate) const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// One key, as a client sees it change: see [`Client::watch`].
pub struct Watch<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    key: Box<[u8]>,
    hash: u64,
    /// The value that was returned last, if any was: `None` if the key was absent.
    seen: Option<Option<Vec<u8>>>,
    pauses: [Duration; 2],
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Watches `key`: whether or not it is there, [`changed`](Watch::changed) returns its values as they change.
    ///
    /// # Errors
    /// A key out of bounds.
    pub fn watch(&self, key: &[u8]) -> Result<Watch<'_, F, C, P>, Error> {
        let hash = self.check(key, &[])?;
        Ok(Watch { client: self, key: key.into(), hash, seen: None, pauses: PAUSES })
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Watch<'_, F, C, P> {
    /// Returns the value once it is another one than was returned last, `None` if the key is absent; the
    /// first time at once.
    ///
    /// Of several changes in a row some may be missed, and never the last one. A key that is deleted and
    /// inserted again with the same value meanwhile has not changed, nor has one that moves.
    ///
    /// A roundtrip for each look: after a change of this key, or of another one that shares its wait
    /// word, and now and then (10 ms after the first look, up to 1 s apart later). On shared memory a thread
    /// of its own sleeps in between, and nobody polls; behind a network the client's clock is polled.
    ///
    /// # Cancel safety
    /// Dropped before it ends, no value is lost: the next call returns it.
    ///
    /// # Errors
    /// Those of [`get`](Client::get).
    pub async fn changed(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let changed = self.changed_by(None, self.client.yields()).await?;
        Ok(changed.expect("it has no limit"))
    }

    /// The same, and blocks the thread: for so long at most, if there is a limit. `None` if that was over
    /// before a change.
    pub(crate) fn changed_blocking(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<Option<Option<Vec<u8>>>, Error> {
        block_on(self.changed_by(limit, self.client.blocks()))
    }

    async fn changed_by(
        &mut self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<Option<Option<Vec<u8>>>, Error> {
        let (client, began, sleep) = (self.client, Instant::now(), &sleep);
        let prepare = || client.prepare_wait(self.hash);
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let sleep = move |prepared, pause| {
            client.rest();
            sleep(prepared, pause)
        };
        let look = || async {
            let value = client.get(&self.key).await?.map(|value| value.to_vec());
            Ok::<_, Error>(is_news(&self.seen, value))
        };
        let pauses = Pauses::new(self.pauses);
        // N1: before the first look.
        let changed = looks_until((Some(prepare()), prepare), (pauses, left), sleep, look).await?;
        if changed.is_some() {
            self.seen.clone_from(&changed);
        }
        Ok(changed)
    }
}

/// Returns a value if it is another one than was seen last, if any was.
pub(crate) fn is_news(
    seen: &Option<Option<Vec<u8>>>,
    value: Option<Vec<u8>>,
) -> Option<Option<Vec<u8>>> {
    (seen.as_ref() != Some(&value)).then_some(value)
}

/// A [`Watch`] whose calls return when there is a change.
pub struct BlockingWatch<'c, F: Fabric, C: Clock, P: Protocol>(Watch<'c, F, C, P>);

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    /// See [`Client::watch`].
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self, key: &[u8]) -> Result<BlockingWatch<'c, F, C, P>, Error> {
        Ok(BlockingWatch(self.client().watch(key)?))
    }
}

impl<F: Fabric, C: Clock, P: Protocol> BlockingWatch<'_, F, C, P> {
    /// See [`Watch::changed`]. The thread sleeps meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn changed(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.0.changed_blocking(None)?.expect("it has no limit"))
    }

    /// The same, for so long at most: `None` if the value did not change.
    ///
    /// # Errors
    /// As there.
    pub fn changed_within(&mut self, limit: Duration) -> Result<Option<Option<Vec<u8>>>, Error> {
        self.0.changed_blocking(Some(limit))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::mpsc::channel;
    use std::thread;

    use futures_util::future::{Either, join, select};
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{EpochDomain, Verb};
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::Watched;
    use crate::pools::shm::{self, CreateOptions, Pool};

    fn pool() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().expect("a directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        (dir, pool)
    }

    /// So long that a client that is not woken does not end.
    const HOUR: Duration = Duration::from_secs(3600);
    /// So long that a client that is woken ends.
    const LONG: Duration = Duration::from_secs(30);

    /// Each change, by whichever operation, wakes a client that sleeps.
    #[test]
    fn every_kind_of_change_wakes_a_client_that_waits() {
        let (_dir, pool) = pool();
        let (sender, received) = channel();
        thread::scope(|threads| {
            let watched = &pool;
            threads.spawn(move || {
                let client = shm::open(watched, Options::default()).expect("a slot");
                let mut watch = client.blocking().watch(b"key").expect("a key");
                watch.0.pauses = [HOUR; 2];
                loop {
                    let began = Instant::now();
                    let value = watch.changed_within(LONG).expect("a majority");
                    let Some(value) = value.filter(|_| began.elapsed() < LONG) else { break };
                    if sender.send(value.clone()).is_err() || value.as_deref() == Some(b"end") {
                        break;
                    }
                }
            });
            let client = shm::open(&pool, Options::default()).expect("a slot");
            let store = client.blocking();
            let next = || received.recv().expect("it is woken");
            assert_eq!(next(), None, "it is not there");
            let is = |value: &[u8]| assert_eq!(next().as_deref(), Some(value));
            for round in 0..20 {
                let value = |kind: &str| format!("{kind} {round}").into_bytes();
                assert!(store.insert(b"key", &value("inserted")).expect("memory"));
                is(&value("inserted"));
                assert!(store.update(b"key", &value("updated")).expect("memory"));
                is(&value("updated"));
                store.put(b"key", &value("put")).expect("memory");
                is(&value("put"));
                store.update(b"key", &[7; 3000]).expect("memory");
                is(&[7; 3000]);
                store.update(b"key", b"1").expect("memory");
                is(b"1");
                store.increment(b"key", 1).expect("memory");
                is(b"2");
                store.increment(b"key", 1).expect("memory");
                is(b"3");
                store.swap(b"key", &value("swapped")).expect("memory");
                is(&value("swapped"));
                let ttl = Duration::from_secs(1000);
                store.put_with_ttl(b"key", &value("expires"), ttl).expect("memory");
                is(&value("expires"));
                let (_, version) = store.get_versioned(b"key").expect("a majority").expect("there");
                assert!(
                    store.put_if_version(b"key", &value("by version"), version).expect("memory")
                );
                is(&value("by version"));
                store.delete(b"key").expect("a majority");
                assert_eq!(next(), None);
            }
            store.put(b"key", b"end").expect("memory");
            is(b"end");
        });
    }

    /// The key changes as soon as a client that is about to sleep has looked.
    #[test]
    fn a_change_behind_the_look_wakes_a_client_that_waits() {
        let (_dir, pool) = pool();
        let (attachment, geometry) = (pool.attach().expect("a slot"), pool.geometry());
        let nodes = Loopback::new(3, (geometry.capacity / 8) as usize);
        let session = |client| Session { client, incarnation: Incarnation(client as u64 + 1) };
        let clock = || LoneClock::new(10_000);
        let other: Client<_, _> =
            Client::new(nodes.clone(), clock(), geometry, session(1), Options::default());
        let (domain, hash) = (attachment.domain(), other.check(b"key", &[]).expect("a key"));
        let (posts, due_at) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(u64::MAX)));
        let (posted, due) = (Rc::clone(&posts), Rc::clone(&due_at));
        let changes = move |_: &[Verb<'_>]| {
            posted.set(posted.get() + 1);
            if posted.get() == due.get() {
                block_on(other.put(b"key", b"value")).expect("memory");
                domain.wake(hash);
            }
            false
        };
        let fabric = Watched::new(nodes, changes);
        let client: Client<_, _> =
            Client::new(fabric, clock(), geometry, session(0), Options::default());
        let client = client.with_wait_words(pool.wait_words());
        let mut watch = client.blocking().watch(b"key").expect("a key");
        watch.0.pauses = [HOUR; 2];
        assert_eq!(watch.changed(), Ok(None));
        posts.set(0);
        assert_eq!(watch.changed_within(Duration::ZERO), Ok(None));
        // Behind the last chain of the next look.
        due_at.set(posts.replace(0));
        let began = Instant::now();
        assert_eq!(watch.changed_within(LONG), Ok(Some(Some(b"value".to_vec()))));
        assert!(began.elapsed() < LONG, "it was woken");
    }

    /// A task waits, and its executor goes on.
    #[test]
    fn a_task_waits_without_its_thread() {
        let (_dir, pool) = pool();
        let [one, two] = [0, 1].map(|_| shm::open(&pool, Options::default()).expect("a slot"));
        let mut watch = one.watch(b"key").expect("a key");
        watch.pauses = [HOUR; 2];
        assert_eq!(block_on(watch.changed()), Ok(None));
        let change = async { two.put(b"key", b"value").await };
        let (value, put) = block_on(join(watch.changed(), change));
        put.expect("memory");
        assert_eq!(value, Ok(Some(b"value".to_vec())));
        // It is over whatever becomes of the thread.
        drop(block_on(select(pin!(watch.changed()), ready(()))));
        block_on(two.put(b"key", b"next")).expect("memory");
        assert_eq!(block_on(watch.changed()), Ok(Some(b"next".to_vec())));
    }

    #[test]
    fn a_wait_ends_with_its_limit() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a slot");
        let mut watch = client.blocking().watch(b"key").expect("a key");
        assert_eq!(watch.changed(), Ok(None));
        assert_eq!(watch.changed_within(Duration::ZERO), Ok(None));
        let (began, limit) = (Instant::now(), Duration::from_millis(30));
        assert_eq!(watch.changed_within(limit), Ok(None));
        assert!(began.elapsed() >= limit);
        client.blocking().put(b"key", b"value").expect("memory");
        assert_eq!(watch.changed_within(Duration::ZERO), Ok(Some(Some(b"value".to_vec()))));
    }

    /// Nobody wakes a client whose fabric has no wait words, or where the one that was to wake it died.
    #[test]
    fn a_client_that_is_not_woken_looks_again() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let nodes = Loopback::new(3, 4 << 17);
        let [one, two] = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let clock = LoneClock::new(10_000);
            Client::<_, _>::new(nodes.clone(), clock, geometry, session, Options::default())
        });
        let mut watch = one.watch(b"key").expect("a key");
        assert_eq!(block_on(watch.changed()), Ok(None));
        let changes = async {
            two.group.pause(1_000_000).await;
            two.put(b"key", b"value").await.expect("memory");
            // A hundred times as long as it waits.
            two.group.pause(1_000_000_000).await;
        };
        let value = match block_on(select(pin!(watch.changed()), pin!(changes))) {
            Either::Left((value, _)) => value,
            Either::Right(_) => panic!("it did not look"),
        };
        assert_eq!(value, Ok(Some(b"value".to_vec())));
    }
}

//! A key, as it changes.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::client::looks::{Pauses, looks_until};
use crate::client::waiting::Prepared;
use crate::error::Error;
use crate::ops::watch::{PAUSES, is_news};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::objects::pause::Pause;
use crate::store::whole::Movable;

impl<F: Movable> Store<F> {
    /// Watches `key`, as [`Client::watch`](crate::Client::watch) does, with none of the handle's clients in use between two looks.
    #[must_use]
    pub fn watch(&self, key: &[u8]) -> StoreWatch<F> {
        StoreWatch { store: self.clone(), key: key.into(), seen: None }
    }
}

/// A [`Watch`](crate::Watch) of a handle.
pub struct StoreWatch<F: Movable = Plain> {
    store: Store<F>,
    key: Box<[u8]>,
    /// The value that was returned last, if any was: `None` if the key was absent.
    seen: Option<Option<Vec<u8>>>,
}

impl<F: Movable> StoreWatch<F> {
    /// See [`Watch::changed`](crate::Watch::changed).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there, and a key out of bounds.
    ///
    /// # Panics
    /// Never: it has no limit.
    pub async fn changed(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.changed_paced(None, Pause::yields).await?.expect("it has no limit"))
    }

    /// The same, for so long at most, if there is a limit: `None` if the value did not change. `sleep` lets the time between two
    /// looks pass, as of [`StoreLock::acquire_paced`](crate::store::StoreLock::acquire_paced).
    ///
    /// # Cancel safety
    /// As [`changed`](Self::changed).
    ///
    /// # Errors
    /// As [`changed`](Self::changed).
    pub async fn changed_paced<S: Future<Output = ()>>(
        &mut self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<Option<Option<Vec<u8>>>, Error> {
        let (began, store, key) = (Instant::now(), &self.store, &self.key[..]);
        let (words, hash) = (store.0.pool.wait_words(), store.hash(key)?);
        let prepare = || Prepared::of(words.as_ref(), hash);
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let sleep = |prepared, longest| sleep(Pause::new(words.clone(), prepared, longest));
        let look = || async { Ok::<_, Error>(is_news(&self.seen, store.get(key).await?)) };
        let pauses = Pauses::new(PAUSES);
        // N1: before the first look.
        let changed = looks_until((Some(prepare()), prepare), (pauses, left), sleep, look).await?;
        if changed.is_some() {
            self.seen.clone_from(&changed);
        }
        Ok(changed)
    }
}

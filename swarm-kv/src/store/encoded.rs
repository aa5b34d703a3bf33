//! Values that `serde` knows, in the format of `postcard`.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::whole::Movable;
use super::{BlockingStore, Store};
use crate::error::Error;

fn of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes).map_err(|_| Error::Type(bytes.len()))
}

/// What cannot be encoded has no bytes.
fn bytes(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|_| Error::Type(0))
}

impl<F: Movable> Store<F> {
    /// The value of `key`, if it is there, decoded.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Type`] if it is none.
    #[expect(clippy::manual_async_fn, reason = "that it is `Send` is a promise")]
    pub fn get_as<'s, T: DeserializeOwned + Send + 's>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send + 's {
        async move { self.read(key, of::<T>).await?.transpose() }
    }

    /// Makes `value`, encoded, the value of `key`, whether it is there or not.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`Error::Type`] if it cannot be encoded.
    pub fn put_as<'s, T: Serialize>(
        &'s self,
        key: &'s [u8],
        value: &T,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<'s, F, T> {
        let encoded = bytes(value);
        async move { self.put(key, &encoded?).await }
    }
}

impl<F: Movable> BlockingStore<'_, F> {
    /// See [`Store::get_as`].
    ///
    /// # Errors
    /// As there.
    pub fn get_as<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, Error> {
        self.read(key, of::<T>)?.transpose()
    }

    /// See [`Store::put_as`].
    ///
    /// # Errors
    /// As there.
    pub fn put_as(&self, key: &[u8], value: &impl Serialize) -> Result<(), Error> {
        self.put(key, &bytes(value)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::pools::shm::{CreateOptions, Pool};
    use crate::store::Store;

    #[test]
    fn a_value_comes_back_as_what_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { nodes: 1, capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let store = Store::of(&pool, Default::default()).expect("a free slot");
        let value = (7_u8, "seven".to_owned(), vec![Some(0.5)]);
        crate::block_on(store.put_as(b"encoded", &value)).expect("memory");
        assert_eq!(store.blocking().get_as(b"encoded"), Ok(Some(value)));
        store.blocking().put(b"other", b"\xff").expect("memory");
        assert_eq!(store.blocking().get_as::<String>(b"other"), Err(Error::Type(1)));
        assert_eq!(crate::block_on(store.get_as::<String>(b"none")), Ok(None));
    }
}

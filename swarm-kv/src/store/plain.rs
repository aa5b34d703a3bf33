//! Values that are their own bytes, by `zerocopy`: nothing is encoded, and what a pool's processes share is how they lay the type out.

use std::future::Future;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::whole::Movable;
use super::{BlockingStore, Store};
use crate::error::Error;

/// The value that these bytes are.
fn of<T: FromBytes>(bytes: &[u8]) -> Result<T, Error> {
    T::read_from_bytes(bytes).map_err(|_| Error::Type(bytes.len()))
}

impl<F: Movable> Store<F> {
    /// The value of `key`, if it is there, as a `T`.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Type`] if it has another length than a `T`.
    #[expect(clippy::manual_async_fn, reason = "that it is `Send` is a promise")]
    pub fn get_plain<'s, T: FromBytes + Send + 's>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send + 's {
        async move { self.read(key, of::<T>).await?.transpose() }
    }

    /// Makes `value` the value of `key`, whether it is there or not.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_plain<'s, T: IntoBytes + Immutable + Sync>(
        &'s self,
        key: &'s [u8],
        value: &'s T,
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        self.put(key, value.as_bytes())
    }
}

impl<F: Movable> BlockingStore<'_, F> {
    /// See [`Store::get_plain`].
    ///
    /// # Errors
    /// As there.
    pub fn get_plain<T: FromBytes>(&self, key: &[u8]) -> Result<Option<T>, Error> {
        self.read(key, of::<T>)?.transpose()
    }

    /// See [`Store::put_plain`].
    ///
    /// # Errors
    /// As there.
    pub fn put_plain(&self, key: &[u8], value: &(impl IntoBytes + Immutable)) -> Result<(), Error> {
        self.put(key, value.as_bytes())
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
        let store = store.blocking();
        store.put_plain(b"plain", &[1_u32, 2, 3]).expect("memory");
        assert_eq!(store.get_plain(b"plain"), Ok(Some([1_u32, 2, 3])));
        assert_eq!(store.get_plain::<u64>(b"plain"), Err(Error::Type(12)));
        assert_eq!(store.get_plain::<u64>(b"none"), Ok(None));
    }
}

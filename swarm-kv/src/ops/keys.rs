//! Listing keys by prefix, and an estimate of how many there are.
//!
//! The index is a hash, so it has no order, and keys of one prefix lie anywhere: a [cursor](crate::ops::cursor) walks all of it.

use std::ops::ControlFlow;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::error::Error;
use crate::ops::cursor::Cursor;
use crate::ops::scan::Estimate;

/// Of so many first buckets the keys are counted, where there are as many: of each whose share of keys varies as
/// chance has it, their mean is within some per cent.
const COUNTED: u64 = 256;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Calls `each` with every key that begins with `prefix`, in no order, until it breaks. An empty prefix is
    /// that of all keys.
    ///
    /// Calls it once for each key that is there all the while; a key that comes or goes meanwhile may be left
    /// out (S13). All of the index is walked and each key of the pool is read, whatever the prefix:
    /// roundtrips as of [`next_keys`](Self::next_keys).
    ///
    /// # Errors
    /// As of [`next_keys`](Self::next_keys).
    pub async fn for_each_key(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.scan(prefix, |key, _| each(key)).await
    }

    /// Calls `each` with every key that begins with `prefix` and its value, as
    /// [`for_each_key`](Self::for_each_key) does with the key. The values are of different moments.
    ///
    /// # Errors
    /// As of [`next_keys`](Self::next_keys).
    pub async fn scan(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let (mut cursor, mut flow) = (Cursor::new(), ControlFlow::Continue(()));
        loop {
            let of_prefix = |key: &[u8], value: &[u8]| {
                if flow.is_continue() && key.starts_with(prefix) {
                    flow = each(key, value);
                }
            };
            if !self.next_keys(&mut cursor, of_prefix).await? || flow.is_break() {
                return Ok(());
            }
        }
    }

    /// About how many keys there are, and how far that may be off: counted in a part of the index, or in all of it where it is
    /// small. A roundtrip for each key that is counted.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn len(&self) -> Result<Estimate, Error> {
        let count = self.count_while(|_, _| {}, |done, _| done < COUNTED);
        self.look();
        self.in_own_process(count).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::client::handle::tests::alone;

    fn keys<F: Fabric, C: Clock>(client: &Client<F, C>, prefix: &[u8]) -> BTreeSet<Vec<u8>> {
        let mut met = BTreeSet::new();
        let each = |key: &[u8]| {
            assert!(met.insert(key.to_vec()), "{key:?} is met once");
            ControlFlow::Continue(())
        };
        client.blocking().for_each_key(prefix, each).expect("nodes answer");
        met
    }

    /// Those that begin so, all of them, and none that was deleted.
    #[test]
    fn keys_are_found_by_what_they_begin_with() {
        let client = alone();
        let store = client.blocking();
        let name = |number: u32| format!("{}:{number}", number % 3).into_bytes();
        for number in 0..300 {
            store.put(&name(number), &number.to_le_bytes()).expect("memory");
        }
        for number in (0..300).step_by(4) {
            store.delete(&name(number)).expect("nodes answer");
        }
        let there = |of: &dyn Fn(u32) -> bool| -> BTreeSet<Vec<u8>> {
            (0..300).filter(|&number| number % 4 != 0 && of(number)).map(name).collect()
        };
        assert_eq!(keys(&client, b""), there(&|_| true));
        assert_eq!(keys(&client, b"1:"), there(&|number| number % 3 == 1));
        assert_eq!(keys(&client, b"1:2"), there(&|number| name(number).starts_with(b"1:2")));
        assert_eq!(keys(&client, b"3:"), BTreeSet::new());
        let mut scanned = BTreeSet::new();
        let each = |key: &[u8], value: &[u8]| {
            let number = u32::from_le_bytes(value.try_into().expect("four bytes"));
            assert_eq!(key, name(number));
            scanned.insert(key.to_vec());
            ControlFlow::Continue(())
        };
        store.scan(b"2:", each).expect("nodes answer");
        assert_eq!(scanned, there(&|number| number % 3 == 2));
        let mut first = 0;
        let broken_off = |_: &[u8]| {
            first += 1;
            ControlFlow::Break(())
        };
        store.for_each_key(b"", broken_off).expect("nodes answer");
        assert_eq!(first, 1);
        let counted = store.len().expect("nodes answer");
        assert_eq!(
            (counted.usage.keys, counted.keys_error),
            (225, 0),
            "a small index is counted whole"
        );
    }
}

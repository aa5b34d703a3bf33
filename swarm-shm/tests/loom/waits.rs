//! Wait words: nobody sleeps through the last change of a key.

use loom::sync::Arc;
use loom::thread;
use swarm_shm::{Word, any_wait, prepare, release};

use super::{Client, Node, cas, explore, read};

/// A key's word at a node, and the word on which clients wait for it.
struct Key {
    node: Node,
    wait: Word,
}

impl Key {
    fn new() -> Arc<Self> {
        Arc::new(Self { node: Node::new(1), wait: Word::new(0) })
    }

    /// Changes the key, as a client does that wakes others behind it.
    fn change(&self, client: &Client, to: u64) {
        let [_] = client.post(&self.node, &[cas(0, to - 1, to)]);
        if any_wait(&self.wait) {
            release(&self.wait);
        }
    }

    /// Looks once, and returns what the futex compares if the client would sleep.
    fn look(&self, client: &Client, last: u64) -> Option<u32> {
        let prepared = prepare(&self.wait);
        let [found] = client.post(&self.node, &[read(0, 1)]);
        (found < last).then_some(prepared)
    }

    /// Whether the kernel would let a thread sleep on that.
    fn would_sleep(&self, prepared: u32) -> bool {
        self.wait.load(loom::sync::atomic::Ordering::Relaxed) as u32 == prepared
    }
}

/// One waits while others change the key: once they are done, it has seen the last change, or the word
/// is not the one any more that it goes to sleep on.
#[test]
fn nobody_sleeps_through_the_last_change() {
    for waiters in [1, 2] {
        explore(Some(3), move || {
            let key = Key::new();
            let others: Vec<_> = (0..waiters)
                .map(|_| {
                    let key = Arc::clone(&key);
                    thread::spawn(move || key.look(&Client::default(), 2))
                })
                .collect();
            let client = Client::default();
            (1..=2).for_each(|to| key.change(&client, to));
            for other in others {
                let slept = other.join().expect("a client that waits");
                assert!(!slept.is_some_and(|prepared| key.would_sleep(prepared)));
            }
        });
    }
}

/// Two change it, one behind the other, and either wakes.
#[test]
fn a_change_of_another_client_wakes_as_well() {
    explore(Some(3), || {
        let key = Key::new();
        let other = {
            let key = Arc::clone(&key);
            thread::spawn(move || key.look(&Client::default(), 2))
        };
        let third = {
            let key = Arc::clone(&key);
            thread::spawn(move || key.change(&Client::default(), 1))
        };
        third.join().expect("a client");
        key.change(&Client::default(), 2);
        let slept = other.join().expect("a client that waits");
        assert!(!slept.is_some_and(|prepared| key.would_sleep(prepared)));
    });
}

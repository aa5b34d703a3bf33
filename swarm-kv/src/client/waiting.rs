//! How a client lets time pass until a key changes.
//!
//! On shared memory a thread sleeps on the key's wait word (N1), and a client that changes the key wakes
//! it. Elsewhere it sleeps for as long as the caller asks.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use swarm_shm::WaitWords;

use crate::client::handle::Client;

/// A task that waits for less polls the clock: to start a thread takes tens of microseconds.
const POLLED: Duration = Duration::from_millis(1);

/// A client that has announced that it waits, before it looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    hash: u64,
    word: u32,
}

impl Prepared {
    /// Says so of a key with this hash.
    pub(crate) fn of(words: Option<&WaitWords>, hash: u64) -> Self {
        Self { hash, word: words.map_or(0, |words| words.prepare(hash)) }
    }

    /// Blocks this thread until such a key changes, if a change wakes it, or for so long at most.
    pub(crate) fn wait(self, words: Option<&WaitWords>, longest: Duration) {
        match words {
            Some(words) => words.wait(self.hash, self.word, longest),
            None => thread::sleep(longest),
        }
    }

    /// The same, while another thread sleeps. False if there is none, or it takes more than the wait.
    pub(crate) async fn sleeps(self, words: Option<&WaitWords>, longest: Duration) -> bool {
        let words = words.filter(|_| longest >= POLLED).cloned();
        let sleeper = words.and_then(|words| Sleeper::start(words, self, longest));
        match sleeper {
            Some(sleeper) => sleeper.ended().await,
            None => return false,
        }
        true
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Says that this client waits for a change of a key with this hash, before it looks at the key.
    pub(crate) fn prepare_wait(&self, hash: u64) -> Prepared {
        Prepared::of(self.wait_words.as_ref(), hash)
    }

    /// Blocks this thread until such a key changes, if a change wakes it, or for so long at most.
    pub(crate) fn wait(&self, prepared: Prepared, longest: Duration) {
        prepared.wait(self.wait_words.as_ref(), longest);
    }

    /// The same without blocking the thread: on shared memory another one sleeps, behind a network the
    /// client's clock is polled.
    pub(crate) async fn wait_yielding(&self, prepared: Prepared, longest: Duration) {
        if !prepared.sleeps(self.wait_words.as_ref(), longest).await {
            let nanoseconds = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
            self.group.pause(nanoseconds).await;
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// How a client lets time pass that blocks its thread.
    pub(crate) fn blocks(&self) -> impl AsyncFn(Prepared, Duration) {
        async |prepared, longest| self.wait(prepared, longest)
    }

    /// How one does whose thread goes on.
    pub(crate) fn yields(&self) -> impl AsyncFn(Prepared, Duration) {
        async |prepared, longest| self.wait_yielding(prepared, longest).await
    }
}

/// A thread that sleeps for a task.
struct Sleeper {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Sleeper {
    /// Starts one that sleeps for so long at most. `None` if the system has no thread for it.
    fn start(words: WaitWords, prepared: Prepared, longest: Duration) -> Option<Arc<Self>> {
        let sleeper = Arc::new(Self { is_over: AtomicBool::new(false), task: AtomicWaker::new() });
        let its = Arc::clone(&sleeper);
        let sleeps = move || {
            words.wait(prepared.hash, prepared.word, longest);
            its.is_over.store(true, Ordering::Release);
            its.task.wake();
        };
        thread::Builder::new().name("swarm-wait".to_owned()).spawn(sleeps).ok()?;
        Some(sleeper)
    }

    async fn ended(&self) {
        poll_fn(|cx| {
            // Before the look, or the thread might end in between.
            self.task.register(cx.waker());
            if self.is_over.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

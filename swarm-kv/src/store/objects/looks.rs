//! Looking again and again, with one of the handle's clients for each look and none in between.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::client::waiting::Prepared;
use crate::objects::ObjectError;
use crate::objects::pace::Pace;
use crate::store::Store;
use crate::store::objects::pause::Pause;
use crate::store::whole::Movable;

impl<F: Movable> Store<F> {
    /// Looks at an object whose name has this hash until there is something, for so long at most. `sleep` lets the time between
    /// two looks pass.
    pub(super) async fn looks_until<T, S: Future<Output = ()>, L>(
        &self,
        hash: u64,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
        look: impl Fn() -> L,
    ) -> Result<Option<T>, ObjectError>
    where
        L: Future<Output = Result<Option<T>, ObjectError>>,
    {
        let (began, words, mut pace) = (Instant::now(), self.0.pool.wait_words(), Pace::new());
        // What is found at once asks nothing of the kernel, as of a client.
        let mut prepared = None;
        loop {
            let found = look().await?;
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if found.is_some() || left == Some(Duration::ZERO) {
                return Ok(found);
            }
            if let Some(prepared) = prepared {
                sleep(Pause::new(words.clone(), prepared, pace.next(left))).await;
            }
            // N1: before the next look.
            prepared = Some(Prepared::of(words.as_ref(), hash));
        }
    }
}

//! Looking again and again, with one of the handle's clients for each look and none in between.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::client::looks::{Pauses, looks_until};
use crate::client::waiting::Prepared;
use crate::objects::ObjectError;
use crate::objects::pace::PAUSES;
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
        let (began, words) = (Instant::now(), self.0.pool.wait_words());
        let left = || limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let prepare = || Prepared::of(words.as_ref(), hash);
        let sleep = |prepared, longest| sleep(Pause::new(words.clone(), prepared, longest));
        // What is found at once asks nothing of the kernel, as of a client.
        looks_until((None, prepare), (Pauses::new(PAUSES), left), sleep, look).await
    }
}

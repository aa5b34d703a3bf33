//! A key in etcd that goes when its holder does.
//!
//! A thread of its own, with a runtime of its own, renews the lease. While etcd does not answer, the
//! holder goes on: the key may have gone by then, and whoever takes the holder's place fences it at
//! the memory nodes. When etcd answers again and nobody has taken the place, the key is put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use etcd_client::{Client, Compare, PutOptions, Txn, TxnOp};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::error::Error;
use super::etcd::{self, PATIENCE};

/// Seconds after which an unrenewed lease ends.
pub(super) const SECONDS: i64 = 5;
/// How often it is renewed.
const RENEW: Duration = Duration::from_millis(1_500);

/// A key to hold.
pub(super) struct Claim {
    /// The key that goes with the lease, and its value.
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// What must hold for it to be put the first time, beside its absence.
    pub(super) first: Vec<Compare>,
    /// What is put beside it then, for good.
    pub(super) beside: Vec<TxnOp>,
    /// What must hold for it to be put back, beside its absence.
    pub(super) again: Vec<Compare>,
    /// What goes with it when it is let go.
    pub(super) after: Vec<TxnOp>,
}

/// A key that is held.
pub(super) struct Lease {
    stop: Arc<Notify>,
    lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the key; `None` if somebody has it or something else did not hold.
    pub(super) fn take(members: &[String], claim: Claim) -> Result<Option<Self>, Error> {
        let (stop, lost) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (told, answer) = mpsc::channel();
        let keeper = Keeper {
            members: members.to_vec(),
            claim,
            stop: Arc::clone(&stop),
            lost: Arc::clone(&lost),
        };
        let thread = thread::Builder::new()
            .name("swarm-lease".to_owned())
            .spawn(move || keeper.run(&told))
            .map_err(|error| etcd::failed(members, &error))?;
        let taken = answer
            .recv()
            .unwrap_or_else(|_| Err(etcd::failed(members, &"the lease's thread ended")))?;
        Ok(taken.then_some(Self { stop, lost, thread: Some(thread) }))
    }

    /// Whether somebody else may have taken the place.
    pub(super) fn is_lost(&self) -> bool {
        // Relaxed: nothing is read on the strength of it.
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked the lease ends by itself.
            let _ = thread.join();
        }
    }
}

struct Keeper {
    members: Vec<String>,
    claim: Claim,
    stop: Arc<Notify>,
    lost: Arc<AtomicBool>,
}

impl Keeper {
    fn run(self, told: &Sender<Result<bool, Error>>) {
        let runtime = match etcd::runtime(&self.members) {
            Ok(runtime) => runtime,
            Err(error) => return drop(told.send(Err(error))),
        };
        runtime.block_on(async {
            let taken = async {
                let client = etcd::connect(&self.members).await?;
                let first = self.put(&client, self.claim.first.clone(), &self.claim.beside);
                Ok((client.clone(), etcd::within(&self.members, first).await?))
            };
            match taken.await {
                Ok((client, Some(lease))) => {
                    // Nobody waits for the lease if this fails, and it is let go at once.
                    let _ = told.send(Ok(true));
                    self.keep(client, lease).await;
                }
                Ok((_, None)) => drop(told.send(Ok(false))),
                Err(error) => drop(told.send(Err(error))),
            }
        });
    }

    /// Grants a lease and puts the key under it if `must` holds. The lease, if so.
    async fn put(
        &self,
        client: &Client,
        mut must: Vec<Compare>,
        beside: &[TxnOp],
    ) -> Result<Option<i64>, etcd_client::Error> {
        let mut client = client.clone();
        let lease = client.lease_grant(SECONDS, None).await?.id();
        must.push(etcd::absent(&self.claim.key));
        let options = PutOptions::new().with_lease(lease);
        let (key, value) = (self.claim.key.clone(), self.claim.value.clone());
        let mut puts = vec![TxnOp::put(key, value, Some(options))];
        puts.extend_from_slice(beside);
        let done = client.txn(Txn::new().when(must).and_then(puts)).await?.succeeded();
        if !done {
            client.lease_revoke(lease).await?;
        }
        Ok(done.then_some(lease))
    }

    async fn keep(&self, mut client: Client, mut lease: i64) {
        loop {
            if timeout(RENEW, self.stop.notified()).await.is_ok() {
                break;
            }
            // What fails is tried again when it is time to, with another member where there are several.
            match timeout(PATIENCE, self.renew(client.clone(), lease)).await {
                Ok(Ok(true)) => self.lost.store(false, Ordering::Relaxed),
                Ok(Ok(false)) => {
                    let again = self.put(&client, self.claim.again.clone(), &[]);
                    match timeout(PATIENCE, again).await {
                        Ok(Ok(Some(new))) => {
                            lease = new;
                            self.lost.store(false, Ordering::Relaxed);
                        }
                        Ok(Ok(None)) => self.lost.store(true, Ordering::Relaxed),
                        _ => {}
                    }
                }
                _ if self.members.len() > 1 => {
                    if let Ok(other) = etcd::connect(&self.members).await {
                        client = other;
                    }
                }
                _ => {}
            }
        }
        // If etcd does not hear it the lease ends by itself.
        let owned = Compare::lease(self.claim.key.clone(), etcd_client::CompareOp::Equal, lease);
        let mut last = vec![TxnOp::delete(self.claim.key.clone(), None)];
        last.extend_from_slice(&self.claim.after);
        let _ = timeout(PATIENCE, client.txn(Txn::new().when([owned]).and_then(last))).await;
        let _ = timeout(PATIENCE, client.lease_revoke(lease)).await;
    }

    /// Renews the lease if the key is still there under it; says whether it is. An eviction takes the
    /// key away and leaves the lease.
    async fn renew(&self, mut client: Client, lease: i64) -> Result<bool, etcd_client::Error> {
        let held = client.get(self.claim.key.clone(), None).await?;
        if held.kvs().first().is_none_or(|held| held.lease() != lease) {
            return Ok(false);
        }
        let (mut keeper, mut replies) = client.lease_keep_alive(lease).await?;
        keeper.keep_alive().await?;
        replies.message().await.map(|_| true)
    }
}

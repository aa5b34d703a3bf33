//! A key in etcd under a lease: it ends with its owner.
//!
//! A thread of its own, with a runtime of its own, renews the lease. While etcd does not answer,
//! the owner goes on. The key may have expired by then; a client that takes the owner's place
//! fences it at the memory nodes. When etcd answers again and no other client has taken the place,
//! the key is put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use etcd_client::{Client, Compare, PutOptions, Txn, TxnOp};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::control::error::Error;
use crate::control::etcd::plane::{self, PATIENCE};

/// Seconds after which an unrenewed lease ends.
pub(in crate::control) const SECONDS: i64 = 5;
/// The pause between renewals.
const RENEW: Duration = Duration::from_millis(1_500);

/// A key to take.
pub(in crate::control) struct Claim {
    /// The key under the lease, and its value.
    pub(in crate::control) key: String,
    pub(in crate::control) value: Vec<u8>,
    /// Conditions of the first put, besides the key's absence.
    pub(in crate::control) first: Vec<Compare>,
    /// Puts in the same transaction, without a lease.
    pub(in crate::control) beside: Vec<TxnOp>,
    /// Conditions for putting it back, besides the key's absence.
    pub(in crate::control) again: Vec<Compare>,
    /// Operations in the transaction that releases it.
    pub(in crate::control) after: Vec<TxnOp>,
}

/// A held key.
pub(in crate::control) struct Lease {
    stop: Arc<Notify>,
    lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the key. Returns `None` if another process has it or another condition failed.
    pub(in crate::control) fn take(
        members: &[String],
        claim: Claim,
    ) -> Result<Option<Self>, Error> {
        let (stop, lost) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (sender, answer) = mpsc::channel();
        let renewer = LeaseThread {
            members: members.to_vec(),
            claim,
            stop: Arc::clone(&stop),
            lost: Arc::clone(&lost),
        };
        let thread = thread::Builder::new()
            .name("swarm-lease".to_owned())
            .spawn(move || renewer.run(&sender))
            .map_err(|error| plane::failed(members, &error))?;
        let taken = answer
            .recv()
            .unwrap_or_else(|_| Err(plane::failed(members, &"the lease's thread ended")))?;
        Ok(taken.then_some(Self { stop, lost, thread: Some(thread) }))
    }

    /// Returns whether another process may have taken the place.
    pub(in crate::control) fn is_lost(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the lease ends by itself.
            let _ = thread.join();
        }
    }
}

struct LeaseThread {
    members: Vec<String>,
    claim: Claim,
    stop: Arc<Notify>,
    lost: Arc<AtomicBool>,
}

impl LeaseThread {
    fn run(self, sender: &Sender<Result<bool, Error>>) {
        let runtime = match plane::runtime(&self.members) {
            Ok(runtime) => runtime,
            Err(error) => return drop(sender.send(Err(error))),
        };
        runtime.block_on(async {
            let taken = async {
                let client = plane::connect(&self.members).await?;
                let first = self.put(&client, self.claim.first.clone(), &self.claim.beside);
                Ok((client.clone(), plane::within(&self.members, first).await?))
            };
            match taken.await {
                Ok((client, Some(lease))) => {
                    // If this fails, the caller is gone, and the lease is released at once.
                    let _ = sender.send(Ok(true));
                    self.keep(client, lease).await;
                }
                Ok((_, None)) => drop(sender.send(Ok(false))),
                Err(error) => drop(sender.send(Err(error))),
            }
        });
    }

    /// Grants a lease and puts the key under it if `must` holds. Returns the lease if the key was
    /// put.
    async fn put(
        &self,
        client: &Client,
        mut must: Vec<Compare>,
        beside: &[TxnOp],
    ) -> Result<Option<i64>, etcd_client::Error> {
        let mut client = client.clone();
        let lease = client.lease_grant(SECONDS, None).await?.id();
        must.push(plane::absent(&self.claim.key));
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
            // A failed renewal is retried at the next turn, with another member if there are
            // several.
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
                    if let Ok(other) = plane::connect(&self.members).await {
                        client = other;
                    }
                }
                _ => {}
            }
        }
        // If etcd does not answer, the lease ends by itself.
        let owned = Compare::lease(self.claim.key.clone(), etcd_client::CompareOp::Equal, lease);
        let mut last = vec![TxnOp::delete(self.claim.key.clone(), None)];
        last.extend_from_slice(&self.claim.after);
        let _ = timeout(PATIENCE, client.txn(Txn::new().when([owned]).and_then(last))).await;
        let _ = timeout(PATIENCE, client.lease_revoke(lease)).await;
    }

    /// Renews the lease if the key still exists under it, and returns whether it does. An eviction
    /// deletes the key and leaves the lease.
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

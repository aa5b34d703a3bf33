//! Requests to all daemons of a pool.
//!
//! **Invariant:** what a majority of the pool's daemons grants holds for the pool, because any two
//! majorities share a daemon, and a daemon grants nothing twice. A daemon that belongs to another
//! pool, or whose instance id is not the descriptor's, counts as one that does not answer.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::daemon::membership::Holder;
use crate::control::daemon::protocol::{Reply, Request, Status, ask, who};
use crate::control::descriptor::{NodeEntry, PoolDescriptor};
use crate::control::error::Error;

/// How long to wait for the other daemons once enough have answered.
const GRACE: Duration = Duration::from_millis(200);

/// Asks all of `addresses` concurrently. Once `enough` have succeeded, the others have [`GRACE`] to
/// answer: so a dead host does not cost its whole timeout.
pub(in crate::control) fn at_once<T: Send + 'static>(
    addresses: &[SocketAddr],
    enough: usize,
    question: impl Fn(SocketAddr) -> Result<T, Error> + Send + Sync + 'static,
) -> Vec<Result<T, Error>> {
    let (question, (sender, answers)) = (Arc::new(question), mpsc::channel());
    for (index, &address) in addresses.iter().enumerate() {
        let (question, sender) = (Arc::clone(&question), sender.clone());
        let asking = thread::Builder::new().name("swarm-ask".to_owned()).spawn(move || {
            // The receiver may be gone.
            let _ = sender.send((index, question(address)));
        });
        // If the thread cannot start, the daemon counts as silent below.
        drop(asking);
    }
    drop(sender);
    let silent = |&address| Err(Error::Node { address, why: "no answer in time".to_owned() });
    let mut found: Vec<Result<T, Error>> = addresses.iter().map(silent).collect();
    let (mut well, mut until) = (0, None::<Instant>);
    for _ in addresses {
        let answer = match until {
            None => answers.recv().ok(),
            Some(until) => {
                answers.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
            }
        };
        let Some((index, answer)) = answer else { break };
        well += usize::from(answer.is_ok());
        found[index] = answer;
        if well >= enough && until.is_none() {
            until = Some(Instant::now() + GRACE);
        }
    }
    found
}

/// The daemons of a pool.
#[derive(Clone, Copy)]
pub(in crate::control) struct Daemons<'a> {
    record: &'a PoolDescriptor,
}

/// The result of an eviction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// The evicted incarnation.
    pub incarnation: u64,
    /// The label of the client, if known.
    pub label: Option<String>,
    /// The nodes at which it is fenced.
    pub fenced: Vec<NodeEntry>,
    /// The nodes at which it is not, because they did not answer.
    pub missing: Vec<NodeEntry>,
}

impl<'a> Daemons<'a> {
    pub(in crate::control) fn of(record: &'a PoolDescriptor) -> Self {
        Self { record }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.record.nodes.iter().map(|node| node.address).collect()
    }

    /// Returns the status of each daemon. A daemon that is not the descriptor's is an error.
    pub(in crate::control) fn statuses(&self) -> Vec<Result<Status, Error>> {
        let mut statuses = at_once(&self.addresses(), self.record.majority(), who);
        for (status, entry) in statuses.iter_mut().zip(&self.record.nodes) {
            let theirs = status.as_ref().ok().map(|status| {
                let same_pool = status.pool.as_ref().is_some_and(|pool| pool.id == self.record.id);
                (same_pool, status.entry.life == entry.life)
            });
            let why = match theirs {
                Some((true, true)) | None => continue,
                Some((true, false)) => "its memory is another than when the pool was made",
                Some((false, true)) => "it belongs to another pool, or to none",
                Some((false, false)) => {
                    "it has lost its memory since the pool was made: it was started again"
                }
            };
            *status = Err(Error::Refused { address: entry.address, why: why.to_owned() });
        }
        statuses
    }

    /// Asks all daemons. Returns an error unless a majority succeeds.
    pub(in crate::control) fn majority(
        &self,
        request: &Request,
    ) -> Result<Vec<Result<Reply, Error>>, Error> {
        let replies = self.ask_all(request, self.record.majority());
        self.need_majority(&replies)?;
        Ok(replies)
    }

    /// Returns an error unless a majority of `replies` succeeded.
    pub(in crate::control) fn need_majority<T>(
        &self,
        replies: &[Result<T, Error>],
    ) -> Result<(), Error> {
        let answered = replies.iter().filter(|reply| reply.is_ok()).count();
        let (needed, nodes) = (self.record.majority(), self.record.nodes.len());
        if answered >= needed {
            return Ok(());
        }
        let why = |reply: &Result<T, Error>| reply.as_ref().err().map(ToString::to_string);
        let why: Vec<String> = replies.iter().filter_map(why).collect();
        Err(Error::Majority { answered, nodes, needed, why: why.join("; ") })
    }

    /// Sends a request to all daemons, and ignores the replies.
    pub(in crate::control) fn send(&self, request: &Request) {
        drop(self.ask_all(request, self.record.majority()));
    }

    fn ask_all(&self, request: &Request, enough: usize) -> Vec<Result<Reply, Error>> {
        let request = request.clone();
        at_once(&self.addresses(), enough, move |address| ask(address, &request))
    }

    /// Makes all daemons join the pool, or none.
    pub(in crate::control) fn join(&self) -> Result<(), Error> {
        let (record, addresses) = (self.record.clone(), self.addresses());
        let replies = at_once(&addresses, addresses.len(), move |address| {
            let node = record.nodes.iter().position(|node| node.address == address);
            let node = node.unwrap_or_default() as u8;
            ask(address, &Request::Enlist { record: record.clone(), node })
        });
        match replies.into_iter().find_map(Result::err) {
            Some(error) => {
                self.send(&Request::Release { pool: self.record.id });
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Makes all daemons leave the pool. Returns an error unless a majority has left (S8).
    pub(in crate::control) fn release(&self) -> Result<(), Error> {
        self.need_majority(&self.release_all(self.record.majority()))
    }

    /// Makes all daemons leave the pool, and waits for `enough` of them. Returns each one's result.
    pub(in crate::control) fn release_all(&self, enough: usize) -> Vec<Result<(), Error>> {
        let pool = self.record.id;
        at_once(&self.addresses(), enough, move |address| {
            match ask(address, &Request::Release { pool }) {
                // A restarted daemon belongs to no pool, or to another one by now.
                Err(refused @ Error::Refused { .. }) => match who(address)?.pool {
                    Some(record) if record.id == pool => Err(refused),
                    _ => Ok(()),
                },
                reply => reply.map(drop),
            }
        })
    }

    /// Fences a client at all daemons that answer. Returns an error unless these are a majority.
    pub(in crate::control) fn fence(
        &self,
        slot: usize,
        incarnation: u64,
        label: Option<String>,
    ) -> Result<Evicted, Error> {
        let pool = self.record.id;
        let replies = self.majority(&Request::Fence { pool, slot, incarnation })?;
        let mut evicted = Evicted { incarnation, label, fenced: Vec::new(), missing: Vec::new() };
        for (reply, node) in replies.iter().zip(&self.record.nodes) {
            let list = if reply.is_ok() { &mut evicted.fenced } else { &mut evicted.missing };
            list.push(node.clone());
        }
        Ok(evicted)
    }
}

/// Returns the clients in `statuses`, each with the number of daemons that list it.
pub(in crate::control) fn holders(statuses: &[Result<Status, Error>]) -> Vec<(Holder, usize)> {
    let mut found: Vec<(Holder, usize)> = Vec::new();
    for holder in statuses.iter().flatten().flat_map(|status| &status.clients) {
        match found.iter_mut().find(|(other, _)| other == holder) {
            Some((_, count)) => *count += 1,
            None => found.push((holder.clone(), 1)),
        }
    }
    found.sort_by_key(|(holder, _)| (holder.slot, holder.incarnation));
    found
}

//! The daemons of a pool, asked together.
//!
//! The invariant: what a majority of the pool's daemons grants holds for the pool, as any two
//! majorities share a daemon, and a daemon grants nothing twice. A daemon that belongs to another
//! pool, or whose memory is another than the record's, counts as one that does not answer.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::admin::{Reply, Request, Status, ask, who};
use super::error::Error;
use super::ledger::Holder;
use super::record::{NodeEntry, PoolRecord};

/// For how long those are waited for who have not answered when enough have.
const GRACE: Duration = Duration::from_millis(200);

/// Asks all of `addresses` at the same time. Once `enough` have answered well, whoever takes much
/// longer counts as silent: a host that is dead costs a moment, and not the whole patience.
pub(super) fn at_once<T: Send + 'static>(
    addresses: &[SocketAddr],
    enough: usize,
    question: impl Fn(SocketAddr) -> Result<T, Error> + Send + Sync + 'static,
) -> Vec<Result<T, Error>> {
    let (question, (told, answers)) = (Arc::new(question), mpsc::channel());
    for (index, &address) in addresses.iter().enumerate() {
        let (question, told) = (Arc::clone(&question), told.clone());
        let asking = thread::Builder::new().name("swarm-ask".to_owned()).spawn(move || {
            // Nobody may be waiting any more.
            let _ = told.send((index, question(address)));
        });
        // Without a thread for it nobody is asked, and the answer is missed below.
        drop(asking);
    }
    drop(told);
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
pub(super) struct Daemons<'a> {
    record: &'a PoolRecord,
}

/// What an eviction came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// The life that was ended.
    pub incarnation: u64,
    /// Who that was, if known.
    pub label: Option<String>,
    /// Where it is fenced.
    pub fenced: Vec<NodeEntry>,
    /// Where it is not, as these did not answer.
    pub missing: Vec<NodeEntry>,
}

impl<'a> Daemons<'a> {
    pub(super) fn of(record: &'a PoolRecord) -> Self {
        Self { record }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.record.nodes.iter().map(|node| node.address).collect()
    }

    /// How each daemon is. One that is not the record's is none.
    pub(super) fn statuses(&self) -> Vec<Result<Status, Error>> {
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

    /// Asks all; an error unless a majority says yes.
    pub(super) fn majority(&self, request: &Request) -> Result<Vec<Result<Reply, Error>>, Error> {
        let replies = self.ask_all(request, self.record.majority());
        self.need_majority(&replies)?;
        Ok(replies)
    }

    /// An error unless a majority of `replies` is none.
    pub(super) fn need_majority<T>(&self, replies: &[Result<T, Error>]) -> Result<(), Error> {
        let answered = replies.iter().filter(|reply| reply.is_ok()).count();
        let (needed, nodes) = (self.record.majority(), self.record.nodes.len());
        if answered >= needed {
            return Ok(());
        }
        let why = |reply: &Result<T, Error>| reply.as_ref().err().map(ToString::to_string);
        let why: Vec<String> = replies.iter().filter_map(why).collect();
        Err(Error::Majority { answered, nodes, needed, why: why.join("; ") })
    }

    /// Tells all, whether or not they hear it.
    pub(super) fn tell(&self, request: &Request) {
        drop(self.ask_all(request, self.record.majority()));
    }

    fn ask_all(&self, request: &Request, enough: usize) -> Vec<Result<Reply, Error>> {
        let request = request.clone();
        at_once(&self.addresses(), enough, move |address| ask(address, &request))
    }

    /// Makes all daemons the pool's, or none.
    pub(super) fn enlist(&self) -> Result<(), Error> {
        let (record, addresses) = (self.record.clone(), self.addresses());
        let replies = at_once(&addresses, addresses.len(), move |address| {
            let node = record.nodes.iter().position(|node| node.address == address);
            let node = node.unwrap_or_default() as u8;
            ask(address, &Request::Enlist { record: record.clone(), node })
        });
        match replies.into_iter().find_map(Result::err) {
            Some(error) => {
                self.tell(&Request::Release { pool: self.record.id });
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Has all forget the pool: an error unless a majority has, or had already.
    pub(super) fn release(&self) -> Result<(), Error> {
        self.need_majority(&self.release_all(self.record.majority()))
    }

    /// The same, once so many have: what each of them says.
    pub(super) fn release_all(&self, enough: usize) -> Vec<Result<(), Error>> {
        let pool = self.record.id;
        at_once(&self.addresses(), enough, move |address| {
            match ask(address, &Request::Release { pool }) {
                // One that was started again has forgotten it, and may belong to another one by now.
                Err(refused @ Error::Refused { .. }) => match who(address)?.pool {
                    Some(record) if record.id == pool => Err(refused),
                    _ => Ok(()),
                },
                told => told.map(drop),
            }
        })
    }

    /// Fences a client at all daemons that answer: a majority, or it is an error.
    pub(super) fn fence(
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

/// The holders that `statuses` name, each with the number of daemons that do.
pub(super) fn holders(statuses: &[Result<Status, Error>]) -> Vec<(Holder, usize)> {
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

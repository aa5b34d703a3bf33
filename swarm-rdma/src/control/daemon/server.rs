//! The daemon's server. It answers the requests of each connection in order, from its
//! [`Membership`].
//! It runs no code for an operation.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::control::daemon::membership::{FenceAgent, Membership, Refusal};
use crate::control::daemon::protocol::{
    MAX_REQUEST, Process, Reply, Request, Status, VERSION, write_line,
};
use crate::control::error::Error;

/// The most connections served at a time. Further ones wait until others end.
const MAX_CONNECTIONS: usize = 2048;
/// How long a peer may take to send a request, also the next one, and to receive the reply.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause before the next attempt to accept a connection.
const TICK: Duration = Duration::from_millis(5);

/// A daemon's server. It listens until it is dropped.
pub struct Server<B> {
    membership: Arc<Mutex<Membership<B>>>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<B: FenceAgent + 'static> Server<B> {
    /// Listens at the address of the membership's node.
    ///
    /// # Errors
    /// The address is in use, or not this host's.
    pub fn start(membership: Membership<B>) -> Result<Self, Error> {
        let address = membership.entry().address;
        let failed = |error: std::io::Error| Error::Listen { address, why: error.to_string() };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let membership = Arc::new(Mutex::new(membership));
        let stopping = Arc::new(AtomicBool::new(false));
        let (theirs, stop) = (Arc::clone(&membership), Arc::clone(&stopping));
        let thread = thread::Builder::new()
            .name("swarm-control".to_owned())
            .spawn(move || listen(&listener, &theirs, &stop))
            .map_err(failed)?;
        Ok(Self { membership, address, stopping, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Locks the daemon's state.
    pub fn membership(&self) -> MutexGuard<'_, Membership<B>> {
        lock(&self.membership)
    }
}

impl<B> Drop for Server<B> {
    fn drop(&mut self) {
        // Relaxed: the flag guards no other data.
        self.stopping.store(true, Ordering::Relaxed);
        // The thread blocks in `accept`: a connection wakes it.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            // A thread that panicked has stopped, too.
            let _ = thread.join();
        }
    }
}

fn lock<B>(membership: &Mutex<Membership<B>>) -> MutexGuard<'_, Membership<B>> {
    membership.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen<B: FenceAgent + 'static>(
    listener: &TcpListener,
    membership: &Arc<Mutex<Membership<B>>>,
    stopping: &Arc<AtomicBool>,
) {
    let busy = Arc::new(AtomicUsize::new(0));
    while !stopping.load(Ordering::Relaxed) {
        let accepted = (busy.load(Ordering::Relaxed) < MAX_CONNECTIONS)
            .then(|| listener.accept())
            .and_then(Result::ok);
        let Some((stream, _)) = accepted else {
            // Too many connections, or too few file descriptors: both are temporary.
            thread::sleep(TICK);
            continue;
        };
        busy.fetch_add(1, Ordering::Relaxed);
        let (membership, left, stop) =
            (Arc::clone(membership), Arc::clone(&busy), Arc::clone(stopping));
        let answered = thread::Builder::new().name("swarm-answer".to_owned()).spawn(move || {
            // A peer that did not receive the reply may repeat its request.
            let _ = answer(stream, &membership, &stop);
            left.fetch_sub(1, Ordering::Relaxed);
        });
        if answered.is_err() {
            busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer<B: FenceAgent>(
    mut stream: TcpStream,
    membership: &Mutex<Membership<B>>,
    stopping: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut asked = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        asked.by_ref().take(MAX_REQUEST).read_line(&mut line)?;
        if line.is_empty() || stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let reply = match serde_json::from_str(&line) {
            Ok(request) => act(&mut lock(membership), request),
            Err(error) => Reply::Bad { why: format!("it does not understand: {error}") },
        };
        write_line(&mut stream, &reply)?;
        if matches!(reply, Reply::Bad { .. }) {
            return Ok(());
        }
    }
}

fn act<B: FenceAgent>(membership: &mut Membership<B>, request: Request) -> Reply {
    let done = |result: Result<(), Refusal>| match result {
        Ok(()) => Reply::Done,
        Err(why) => Reply::Refused { why },
    };
    match request {
        Request::Who => Reply::Node(Box::new(Status {
            version: VERSION,
            entry: membership.entry().clone(),
            pool: membership.pool().map(|(record, _)| record.clone()),
            node: membership.pool().map_or(0, |(_, node)| node),
            highest: membership.highest(),
            clients: membership.holders(),
            epoch: membership.epochs().0,
            standings: membership.epochs().1,
            process: Process::this(),
        })),
        Request::Enlist { record, node } => done(membership.join(record, node)),
        Request::Release { pool } => done(membership.release(pool)),
        Request::Claim { pool, client } => done(membership.claim(pool, client)),
        Request::Draw { pool, drawn } => done(membership.draw(pool, &drawn)),
        Request::Admit { pool, client } => done(membership.admit(pool, client)),
        Request::GiveBack { pool, slot, token } => done(membership.give_back(pool, slot, token)),
        Request::Leave { pool, slot, token } => done(membership.leave(pool, slot, token)),
        Request::Report { pool, client, report } => {
            match membership.report(pool, client, &report) {
                Ok(reply) => Reply::EpochReply(reply),
                Err(why) => Reply::Refused { why },
            }
        }
        Request::Fence { pool, slot, incarnation } => {
            match membership.fence(pool, slot, incarnation) {
                Ok(connections) => Reply::Fenced { connections },
                Err(why) => Reply::Refused { why },
            }
        }
    }
}

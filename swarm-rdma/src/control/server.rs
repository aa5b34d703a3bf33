//! A memory node's daemon as the control plane meets it: it answers questions, one after the other on
//! each connection, from its [`Ledger`]. Nothing here runs for an operation.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::admin::{MAX_REQUEST, Process, Reply, Request, Status, VERSION, write_line};
use super::error::Error;
use super::ledger::{Body, Ledger, Refusal};

/// Connections that are answered at a time; more wait until others are done.
const MAX_CONNECTIONS: usize = 2048;
/// How long whoever has connected may take to ask, also again, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before looking again whether somebody can be answered.
const TICK: Duration = Duration::from_millis(5);

/// A daemon that listens until this is dropped.
pub struct Server<B> {
    ledger: Arc<Mutex<Ledger<B>>>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<B: Body + 'static> Server<B> {
    /// Listens where the ledger's node does.
    ///
    /// # Errors
    /// The address is taken, or not this host's.
    pub fn start(ledger: Ledger<B>) -> Result<Self, Error> {
        let address = ledger.entry().address;
        let failed = |error: std::io::Error| Error::Listen { address, why: error.to_string() };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let ledger = Arc::new(Mutex::new(ledger));
        let stopping = Arc::new(AtomicBool::new(false));
        let (theirs, stop) = (Arc::clone(&ledger), Arc::clone(&stopping));
        let thread = thread::Builder::new()
            .name("swarm-control".to_owned())
            .spawn(move || listen(&listener, &theirs, &stop))
            .map_err(failed)?;
        Ok(Self { ledger, address, stopping, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it remembers.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger<B>> {
        lock(&self.ledger)
    }
}

impl<B> Drop for Server<B> {
    fn drop(&mut self) {
        // Relaxed: nothing is read on the strength of it.
        self.stopping.store(true, Ordering::Relaxed);
        // It waits for somebody to come.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take()
            && woken
        {
            // One that panicked has stopped, too.
            let _ = thread.join();
        }
    }
}

fn lock<B>(ledger: &Mutex<Ledger<B>>) -> MutexGuard<'_, Ledger<B>> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen<B: Body + 'static>(
    listener: &TcpListener,
    ledger: &Arc<Mutex<Ledger<B>>>,
    stopping: &Arc<AtomicBool>,
) {
    let busy = Arc::new(AtomicUsize::new(0));
    while !stopping.load(Ordering::Relaxed) {
        let accepted = (busy.load(Ordering::Relaxed) < MAX_CONNECTIONS)
            .then(|| listener.accept())
            .and_then(Result::ok);
        let Some((stream, _)) = accepted else {
            // Too many at a time, or too few file descriptors: both pass.
            thread::sleep(TICK);
            continue;
        };
        busy.fetch_add(1, Ordering::Relaxed);
        let (ledger, left, stop) = (Arc::clone(ledger), Arc::clone(&busy), Arc::clone(stopping));
        let answered = thread::Builder::new().name("swarm-answer".to_owned()).spawn(move || {
            // Who does not take the answer may ask again.
            let _ = answer(stream, &ledger, &stop);
            left.fetch_sub(1, Ordering::Relaxed);
        });
        if answered.is_err() {
            busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer<B: Body>(
    mut stream: TcpStream,
    ledger: &Mutex<Ledger<B>>,
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
            Ok(request) => act(&mut lock(ledger), request),
            Err(error) => Reply::Bad { why: format!("it does not understand: {error}") },
        };
        write_line(&mut stream, &reply)?;
        if matches!(reply, Reply::Bad { .. }) {
            return Ok(());
        }
    }
}

fn act<B: Body>(ledger: &mut Ledger<B>, request: Request) -> Reply {
    let done = |result: Result<(), Refusal>| match result {
        Ok(()) => Reply::Done,
        Err(why) => Reply::Refused { why },
    };
    match request {
        Request::Who => Reply::Node(Box::new(Status {
            version: VERSION,
            entry: ledger.entry().clone(),
            pool: ledger.membership().map(|(record, _)| record.clone()),
            node: ledger.membership().map_or(0, |(_, node)| node),
            highest: ledger.highest(),
            clients: ledger.holders(),
            epoch: ledger.standings().0,
            standings: ledger.standings().1,
            process: Process::this(),
        })),
        Request::Enlist { record, node } => done(ledger.enlist(record, node)),
        Request::Release { pool } => done(ledger.release(pool)),
        Request::Claim { pool, client } => done(ledger.claim(pool, client)),
        Request::Draw { pool, drawn } => done(ledger.draw(pool, &drawn)),
        Request::Admit { pool, client } => done(ledger.admit(pool, client)),
        Request::GiveBack { pool, slot, token } => done(ledger.give_back(pool, slot, token)),
        Request::Leave { pool, slot, token } => done(ledger.leave(pool, slot, token)),
        Request::Tell { pool, client, said } => match ledger.tell(pool, client, &said) {
            Ok(heard) => Reply::Heard(heard),
            Err(why) => Reply::Refused { why },
        },
        Request::Fence { pool, slot, incarnation } => match ledger.fence(pool, slot, incarnation) {
            Ok(connections) => Reply::Fenced { connections },
            Err(why) => Reply::Refused { why },
        },
    }
}

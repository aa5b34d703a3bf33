//! What is said to a memory node's daemon, and how: one line of JSON, answered by one line, over a
//! TCP connection to the port number at which it also accepts queue pairs (theirs is a port space of
//! its own). What happens once in a client's life goes this way, and how far clients are, some times a
//! second: no operation ever does.
//!
//! Nobody is asked who he is, as with RDMA itself: whoever reaches the port may read and write the
//! node's memory. Keep it within the cluster's own network.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::epochs::{Heard, Said, Standing};
use super::error::Error;
use super::ledger::{Holder, Refusal};
use super::record::{Id, NodeEntry, PoolRecord};

/// The protocol's version; a daemon of another one is refused.
pub const VERSION: u32 = 3;
/// The longest line that a daemon is asked, bytes.
pub const MAX_REQUEST: u64 = 64 << 10;
/// The longest that it answers. How it is names all clients of the pool, at most
/// [`MAX_CLIENTS`](swarm_core::layout::MAX_CLIENTS), each in less than 256 bytes.
pub const MAX_REPLY: u64 = 1 << 20;
/// How long a daemon may take to accept a connection, and to answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to forget what is in its memory, of which some gigabytes a second are zeroed.
const ZEROING: Duration = Duration::from_secs(600);

/// What is asked of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Who it is, and how it is.
    Who,
    /// To belong to a pool.
    Enlist {
        /// The pool.
        record: PoolRecord,
        /// Its number there.
        node: u8,
    },
    /// To belong to it no more, and forget all that is in its memory.
    Release {
        /// The pool.
        pool: Id,
    },
    /// To give a client slot that is free to a client in a new life.
    Claim {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
    },
    /// To give out incarnations that nobody had, for a client that lives on under them.
    Draw {
        /// The pool.
        pool: Id,
        /// The incarnations.
        drawn: Range<u64>,
    },
    /// To take note of a client that got its slot in etcd.
    Admit {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
    },
    /// To take a claim back that too few others granted.
    GiveBack {
        /// The pool.
        pool: Id,
        /// The slot that was claimed.
        slot: usize,
        /// What the claim was made with.
        token: Id,
    },
    /// To take note that a client has gone.
    Leave {
        /// The pool.
        pool: Id,
        /// The client's slot.
        slot: usize,
        /// What its claim was made with.
        token: Id,
    },
    /// To take in how far a client is, and to say how far all are.
    Tell {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
        /// What it says.
        said: Said,
    },
    /// To fence a client.
    Fence {
        /// The pool.
        pool: Id,
        /// The client's slot.
        slot: usize,
        /// Its life; earlier ones of the slot are fenced, too.
        incarnation: u64,
    },
}

/// What a daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Reply {
    /// Who it is, and how it is.
    Node(Box<Status>),
    /// Done.
    Done,
    /// Fenced.
    Fenced {
        /// How many connections the client had there.
        connections: usize,
    },
    /// How far all are.
    Heard(Heard),
    /// Refused.
    Refused {
        /// Why.
        why: Refusal,
    },
    /// Not understood.
    Bad {
        /// Why.
        why: String,
    },
}

/// How a daemon is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The protocol that it speaks.
    pub version: u32,
    /// Who it is.
    pub entry: NodeEntry,
    /// The pool that it belongs to.
    pub pool: Option<PoolRecord>,
    /// Its number there.
    pub node: u8,
    /// The highest incarnation that it has seen.
    pub highest: u64,
    /// Who holds a client slot.
    pub clients: Vec<Holder>,
    /// The latest epoch that it has heard of.
    pub epoch: u64,
    /// How far these clients are.
    pub standings: Vec<Standing>,
    /// Its process.
    pub process: Process,
}

/// A process, and the boot of the host on which its number means something.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// What the kernel calls the boot; empty if it does not say.
    pub boot: String,
}

impl Process {
    /// This process.
    pub fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { id: std::process::id(), boot: boot.trim().to_owned() }
    }

    /// Whether it runs on this host. Where hosts share a kernel but not their process numbers, as
    /// containers do, this is not to be trusted.
    pub fn is_local(&self) -> bool {
        !self.boot.is_empty() && self.boot == Self::this().boot
    }
}

/// Asks the daemon at `address`.
///
/// # Errors
/// It does not answer, or not in this language; it refuses.
pub fn ask(address: SocketAddr, request: &Request) -> Result<Reply, Error> {
    Line::ask(&mut None, address, request)
}

/// A connection to a daemon, for one question after the other.
pub(super) struct Line(BufReader<TcpStream>);

impl Line {
    /// Asks the daemon at `address` by the connection that is there, or by a new one. If anything goes
    /// wrong there is none any more.
    pub(super) fn ask(
        line: &mut Option<Self>,
        address: SocketAddr,
        request: &Request,
    ) -> Result<Reply, Error> {
        let silent = |why: String| Error::Node { address, why };
        let mut open = match line.take() {
            Some(open) => open,
            None => Self::open(address).map_err(|error| silent(error.to_string()))?,
        };
        let answer = open.exchange(request).map_err(|error| silent(error.to_string()))?;
        if answer.is_empty() {
            return Err(silent("it closed the connection".to_owned()));
        }
        match serde_json::from_str(&answer) {
            Ok(Reply::Refused { why }) => Err(Error::Refused { address, why: why.to_string() }),
            Ok(Reply::Bad { why }) => Err(Error::Refused { address, why }),
            Ok(reply) => {
                *line = Some(open);
                Ok(reply)
            }
            Err(error) => Err(silent(format!("what listens there is no swarm memnode ({error})"))),
        }
    }

    fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn exchange(&mut self, request: &Request) -> io::Result<String> {
        let zeroes = matches!(request, Request::Release { .. });
        let patience = if zeroes { ZEROING } else { PATIENCE };
        self.0.get_mut().set_read_timeout(Some(patience))?;
        write_line(self.0.get_mut(), request)?;
        let mut answer = String::new();
        self.0.by_ref().take(MAX_REPLY).read_line(&mut answer)?;
        Ok(answer)
    }
}

/// Asks the daemon at `address` who it is.
///
/// # Errors
/// It does not answer, or it speaks another version.
pub fn who(address: SocketAddr) -> Result<Status, Error> {
    let foreign = |why: String| Error::Refused { address, why };
    match ask(address, &Request::Who)? {
        Reply::Node(status) if status.version == VERSION => Ok(*status),
        Reply::Node(status) => Err(foreign(format!(
            "it speaks version {} of the control protocol, this program version {VERSION}; run \
             the same version of swarm everywhere",
            status.version
        ))),
        other => Err(foreign(format!("it said {other:?} when asked who it is"))),
    }
}

/// Writes one line.
pub(super) fn write_line(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

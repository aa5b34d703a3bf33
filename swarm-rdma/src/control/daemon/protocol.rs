//! The protocol of a memory node's daemon: a request is one line of JSON, and so is its reply. It
//! runs over TCP, at the port number at which the daemon also accepts queue pairs (librdmacm has a
//! port space of its own). It carries what happens once in a client's life, and epoch reports a few
//! times a second. No operation uses it.
//!
//! There is no authentication, as with RDMA itself: a host that can reach the port can read and
//! write the node's memory. Keep it within the cluster's own network.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::daemon::epochs::{ClientEpoch, EpochReply, EpochReport};
use crate::control::daemon::membership::{Holder, Refusal};
use crate::control::descriptor::{Id, NodeEntry, PoolDescriptor};
use crate::control::error::Error;

/// The protocol's version. A client refuses a daemon of another one.
pub const VERSION: u32 = 3;
/// The longest request line, in bytes.
pub const MAX_REQUEST: u64 = 64 << 10;
/// The longest reply line, in bytes. A status lists all clients of the pool, at most
/// [`MAX_CLIENTS`](swarm_core::layout::MAX_CLIENTS), each in less than 256 bytes.
pub const MAX_REPLY: u64 = 1 << 20;
/// How long a daemon may take to accept a connection, and to reply.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long a daemon may take to zero its memory, at some gigabytes a second.
const ZEROING: Duration = Duration::from_secs(600);

/// A request to a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Its identity and status.
    Who,
    /// Join a pool.
    Enlist {
        /// The pool.
        record: PoolDescriptor,
        /// The node's number in the pool.
        node: u8,
    },
    /// Leave the pool and zero the memory.
    Release {
        /// The pool.
        pool: Id,
    },
    /// Grant a free client slot and a new incarnation to a client.
    Claim {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
    },
    /// Grant incarnations that no client had, to a client that continues under them.
    Draw {
        /// The pool.
        pool: Id,
        /// The incarnations.
        drawn: Range<u64>,
    },
    /// Admit a client that got its client slot in etcd.
    Admit {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
    },
    /// Take back a claim that too few other daemons granted.
    GiveBack {
        /// The pool.
        pool: Id,
        /// The claimed client slot.
        slot: usize,
        /// The claim's token.
        token: Id,
    },
    /// Record that a client has left.
    Leave {
        /// The pool.
        pool: Id,
        /// Its client slot.
        slot: usize,
        /// The token of its claim.
        token: Id,
    },
    /// Record a client's epoch report, and reply with those of all clients.
    #[serde(rename = "tell")]
    Report {
        /// The pool.
        pool: Id,
        /// The client.
        client: Holder,
        /// Its report.
        #[serde(rename = "said")]
        report: EpochReport,
    },
    /// Fence a client.
    Fence {
        /// The pool.
        pool: Id,
        /// Its client slot.
        slot: usize,
        /// Its incarnation; earlier ones of the client slot are fenced, too.
        incarnation: u64,
    },
}

/// A daemon's reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Reply {
    /// Its identity and status.
    Node(Box<Status>),
    /// Done.
    Done,
    /// Fenced.
    Fenced {
        /// How many connections of the client were ended.
        connections: usize,
    },
    /// The epoch reports of all clients.
    EpochReply(EpochReply),
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

/// A daemon's status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its version of the protocol.
    pub version: u32,
    /// Its entry.
    pub entry: NodeEntry,
    /// The pool that it belongs to.
    pub pool: Option<PoolDescriptor>,
    /// The node's number in the pool.
    pub node: u8,
    /// The highest incarnation that it has seen.
    pub highest: u64,
    /// The clients that hold a client slot.
    pub clients: Vec<Holder>,
    /// The latest epoch in any report to it.
    pub epoch: u64,
    /// The epochs of these clients.
    pub standings: Vec<ClientEpoch>,
    /// Its process.
    pub process: Process,
}

/// A process id, and the boot of the host on which it is valid.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub id: u32,
    /// The kernel's boot id; empty if unknown.
    pub boot: String,
}

impl Process {
    /// Returns this process.
    pub fn this() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { id: std::process::id(), boot: boot.trim().to_owned() }
    }

    /// Returns whether it runs on this host. This is not reliable where processes share a kernel
    /// but not their process ids, as in containers.
    pub fn is_local(&self) -> bool {
        !self.boot.is_empty() && self.boot == Self::this().boot
    }
}

/// Sends a request to the daemon at `address`.
///
/// # Errors
/// It does not reply, or not in this protocol, or it refuses.
pub fn ask(address: SocketAddr, request: &Request) -> Result<Reply, Error> {
    JsonConnection::ask(&mut None, address, request)
}

/// A connection to a daemon, for one request after another.
pub(in crate::control) struct JsonConnection(BufReader<TcpStream>);

impl JsonConnection {
    /// Sends a request to the daemon at `address`, over the open connection or a new one. On any
    /// error, closes the connection.
    pub(in crate::control) fn ask(
        connection: &mut Option<Self>,
        address: SocketAddr,
        request: &Request,
    ) -> Result<Reply, Error> {
        let silent = |why: String| Error::Node { address, why };
        let mut open = match connection.take() {
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
                *connection = Some(open);
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

/// Asks the daemon at `address` for its status.
///
/// # Errors
/// It does not reply, or it speaks another version.
pub fn who(address: SocketAddr) -> Result<Status, Error> {
    let foreign = |why: String| Error::Refused { address, why };
    match ask(address, &Request::Who)? {
        Reply::Node(status) if status.version == VERSION => Ok(*status),
        Reply::Node(status) => Err(foreign(format!(
            "it speaks version {} of the control protocol, this program version {VERSION}; run \
             the same version of swarm everywhere",
            status.version
        ))),
        other => Err(foreign(format!("it replied {other:?} when asked who it is"))),
    }
}

/// Writes one line.
pub(in crate::control) fn write_line(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

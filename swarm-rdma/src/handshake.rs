//! The handshake: what clients and nodes send each other when they connect.
//!
//! It travels in the private data of the connection manager's messages: a [`ClientHello`] with the
//! client's request, a [`NodeHello`] with the node's acceptance, a [`Reject`] with its rejection.
//!
//! **Invariant:** a working queue pair joins a client and a node of the same pool and version, and
//! the client knows the node's instance id.
//!
//! All numbers are little-endian.

use std::fmt;

use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::NodeId;

/// The version of the handshake, and of the fabric's use of a node's memory.
pub const TRANSPORT_VERSION: u32 = 1;

/// "SWARMrdm": the first word of each message.
const MAGIC: u64 = u64::from_le_bytes(*b"SWARMrdm");

/// A pool's id, a random number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PoolId(pub u128);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One run of a memory node, from start to end; its memory is lost with it. A random number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct InstanceId(pub u128);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identifies a client. Nodes fence clients by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ClientId {
    /// Its client slot in the pool.
    pub slot: u32,
    /// Its incarnation: each is given out once, in growing order.
    pub incarnation: u64,
}

impl ClientId {
    /// A client without a client slot, which only reads. It cannot be fenced.
    pub const NOBODY: Self = Self { slot: u32::MAX, incarnation: 0 };
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NOBODY {
            return f.write_str("a client without a slot");
        }
        write!(f, "client {} (incarnation {})", self.slot, self.incarnation)
    }
}

/// A node's answer when it accepts a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHello {
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Its number in the pool.
    pub node: NodeId,
    /// Its instance id.
    pub life: InstanceId,
    /// The layout version of its memory.
    pub layout_version: u32,
    /// Words of its memory.
    pub words: u64,
    /// The address of its memory in its card's address space.
    pub base: u64,
    /// The remote key of its memory.
    pub rkey: u32,
}

/// A client's request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientHello {
    pub(crate) pool: PoolId,
    pub(crate) node: NodeId,
    pub(crate) client: ClientId,
}

/// Why a node rejects a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reject {
    /// The request is not a SWARM handshake.
    Foreign,
    /// The node speaks this version.
    Version(u32),
    /// The node belongs to no pool.
    NoPool,
    /// The node belongs to this pool.
    Pool(PoolId),
    /// The node has this number.
    Node(NodeId),
    /// The client is fenced.
    Fenced,
    /// The node cannot take another connection.
    Exhausted,
}

/// Why a message cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// It is not a SWARM handshake.
    Foreign,
    /// It has this version.
    Version(u32),
}

/// Room for any message.
pub(crate) type Message = [u8; 72];

impl ClientHello {
    /// Length in bytes. The connection manager carries 56 with a request.
    pub(crate) const BYTES: usize = 44;

    pub(crate) fn encode(&self) -> Message {
        let mut writer = Writer::new();
        writer.put(self.pool.0.to_le_bytes());
        writer.put(u32::from(self.node.0).to_le_bytes());
        writer.put(self.client.slot.to_le_bytes());
        writer.put(self.client.incarnation.to_le_bytes());
        writer.done(Self::BYTES)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(bytes)?;
        Ok(Self {
            pool: PoolId(u128::from_le_bytes(reader.take()?)),
            node: NodeId(node(u32::from_le_bytes(reader.take()?))),
            client: ClientId {
                slot: u32::from_le_bytes(reader.take()?),
                incarnation: u64::from_le_bytes(reader.take()?),
            },
        })
    }
}

impl NodeHello {
    /// Length in bytes. The connection manager carries 196 with an acceptance.
    pub(crate) const BYTES: usize = 72;

    pub(crate) fn encode(&self) -> Message {
        let mut writer = Writer::new();
        writer.put(self.pool.0.to_le_bytes());
        writer.put(u32::from(self.node.0).to_le_bytes());
        writer.put(self.life.0.to_le_bytes());
        writer.put(self.layout_version.to_le_bytes());
        writer.put(self.words.to_le_bytes());
        writer.put(self.base.to_le_bytes());
        writer.put(self.rkey.to_le_bytes());
        writer.done(Self::BYTES)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(bytes)?;
        let card = Self {
            pool: PoolId(u128::from_le_bytes(reader.take()?)),
            node: NodeId(node(u32::from_le_bytes(reader.take()?))),
            life: InstanceId(u128::from_le_bytes(reader.take()?)),
            layout_version: u32::from_le_bytes(reader.take()?),
            words: u64::from_le_bytes(reader.take()?),
            base: u64::from_le_bytes(reader.take()?),
            rkey: u32::from_le_bytes(reader.take()?),
        };
        if card.layout_version == LAYOUT_VERSION {
            Ok(card)
        } else {
            Err(Unreadable::Version(card.layout_version))
        }
    }
}

impl Reject {
    /// Length in bytes. The connection manager carries 148 with a rejection.
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn encode(&self) -> Message {
        let (reason, what) = match *self {
            Self::Foreign => (1_u32, 0_u128),
            Self::Version(version) => (2, u128::from(version)),
            Self::NoPool => (3, 0),
            Self::Pool(pool) => (4, pool.0),
            Self::Node(node) => (5, u128::from(node.0)),
            Self::Fenced => (6, 0),
            Self::Exhausted => (7, 0),
        };
        let mut writer = Writer::new();
        writer.put(reason.to_le_bytes());
        writer.put(what.to_le_bytes());
        writer.done(Self::BYTES)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader::new(bytes)?;
        let reason = u32::from_le_bytes(reader.take()?);
        let what = u128::from_le_bytes(reader.take()?);
        Ok(match reason {
            1 => Self::Foreign,
            2 => Self::Version(what as u32),
            3 => Self::NoPool,
            4 => Self::Pool(PoolId(what)),
            5 => Self::Node(NodeId(node(what as u32))),
            6 => Self::Fenced,
            7 => Self::Exhausted,
            _ => return Err(Unreadable::Foreign),
        })
    }
}

/// Converts a node's number. All numbers out of range become the same invalid one.
fn node(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

struct Writer {
    message: Message,
    used: usize,
}

impl Writer {
    fn new() -> Self {
        let mut writer = Self { message: [0; _], used: 0 };
        writer.put(MAGIC.to_le_bytes());
        writer.put(TRANSPORT_VERSION.to_le_bytes());
        writer
    }

    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.message[self.used..self.used + N].copy_from_slice(&bytes);
        self.used += N;
    }

    fn done(self, bytes: usize) -> Message {
        debug_assert_eq!(self.used, bytes);
        self.message
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn new(bytes: &'b [u8]) -> Result<Self, Unreadable> {
        let mut reader = Self(bytes);
        if u64::from_le_bytes(reader.take()?) != MAGIC {
            return Err(Unreadable::Foreign);
        }
        let version = u32::from_le_bytes(reader.take()?);
        if version != TRANSPORT_VERSION {
            return Err(Unreadable::Version(version));
        }
        Ok(reader)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Unreadable::Foreign)?;
        self.0 = rest;
        Ok(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let hello = ClientHello {
            pool: PoolId(7 << 90),
            node: NodeId(2),
            client: ClientId { slot: 3, incarnation: 1 << 27 },
        };
        assert_eq!(ClientHello::decode(&hello.encode()[..ClientHello::BYTES]), Ok(hello));
        let card = NodeHello {
            pool: PoolId(1 << 99),
            node: NodeId(6),
            life: InstanceId(5 << 100),
            layout_version: LAYOUT_VERSION,
            words: 1 << 25,
            base: 0x7f00_0000_0000,
            rkey: 77,
        };
        assert_eq!(NodeHello::decode(&card.encode()[..NodeHello::BYTES]), Ok(card));
        for reject in [
            Reject::Foreign,
            Reject::Version(9),
            Reject::NoPool,
            Reject::Pool(PoolId(1 << 127)),
            Reject::Node(NodeId(4)),
            Reject::Fenced,
            Reject::Exhausted,
        ] {
            assert_eq!(Reject::decode(&reject.encode()[..Reject::BYTES]), Ok(reject));
        }
    }

    #[test]
    fn foreign_short_and_later_messages_are_told_apart() {
        let hello = ClientHello { pool: PoolId(1), node: NodeId(0), client: ClientId::NOBODY };
        let message = hello.encode();
        for short in 0..ClientHello::BYTES {
            assert_eq!(
                ClientHello::decode(&message[..short]),
                Err(Unreadable::Foreign),
                "{short} bytes"
            );
        }
        let mut foreign = message;
        foreign[0] ^= 1;
        assert_eq!(ClientHello::decode(&foreign), Err(Unreadable::Foreign));
        let mut later = message;
        later[8] = 2;
        assert_eq!(ClientHello::decode(&later), Err(Unreadable::Version(2)));
    }
}

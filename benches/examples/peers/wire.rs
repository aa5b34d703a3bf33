//! Clients of servers behind unix sockets: one request, one reply.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::work::{Key, Peer, Value};

struct Connection {
    stream: UnixStream,
    request: Vec<u8>,
    reply: [u8; 256],
}

impl Connection {
    fn new(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        // Or a server that hangs would hang the whole run.
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { stream, request: Vec::new(), reply: [0; 256] })
    }

    /// Sends `parts`, and yields the reply, which is `length` bytes long and begins like this.
    fn ask(&mut self, parts: &[&[u8]], begins: &[u8], length: usize) -> Result<&[u8]> {
        self.request.clear();
        parts.iter().for_each(|part| self.request.extend_from_slice(part));
        self.stream.write_all(&self.request)?;
        let mut have = 0;
        while have < length {
            let more = self.stream.read(&mut self.reply[have..length])?;
            have += more;
            let common = have.min(begins.len());
            if more == 0 || self.reply[..common] != begins[..common] {
                let reply = String::from_utf8_lossy(&self.reply[..have]);
                return Err(format!("the server answered {reply:?}").into());
            }
        }
        Ok(&self.reply[..length])
    }
}

pub(crate) struct Redis(Connection);

impl Redis {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Connection::new(socket).map(Self)
    }
}

impl Peer for Redis {
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        let head = b"*3\r\n$3\r\nSET\r\n$24\r\n";
        self.0.ask(&[head, key, b"\r\n$64\r\n", value, b"\r\n"], b"+OK\r\n", 5)?;
        Ok(())
    }

    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        let (head, begins) = (b"*2\r\n$3\r\nGET\r\n$24\r\n", b"$64\r\n");
        let reply = self.0.ask(&[head, key, b"\r\n"], begins, begins.len() + 64 + 2)?;
        value.copy_from_slice(&reply[begins.len()..][..64]);
        Ok(())
    }
}

pub(crate) struct Memcached(Connection);

impl Memcached {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Connection::new(socket).map(Self)
    }
}

impl Peer for Memcached {
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.0.ask(&[b"set ", key, b" 0 0 64\r\n", value, b"\r\n"], b"STORED\r\n", 8)?;
        Ok(())
    }

    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        // The value is behind its key and flags, in front of an end.
        let (begins, head) = (b"VALUE ", b"VALUE ".len() + 24 + b" 0 64\r\n".len());
        let length = head + 64 + b"\r\nEND\r\n".len();
        let reply = self.0.ask(&[b"get ", key, b"\r\n"], begins, length)?;
        value.copy_from_slice(&reply[head..][..64]);
        Ok(())
    }
}

//! What `swarm check` takes.

use std::path::PathBuf;

use clap::Args;

pub(crate) const HELP: &str = "A line is a JSON object: client, op (get, put, insert, update, delete, \
cas, swap, incr, put_with_ttl, persist, ttl), key, value (string; null of get, delete, persist and ttl, and of a cas or \
swap that removes the key), expected (of a cas alone; null for no key), ttl_ns (of a put_with_ttl alone), call_ns, return_ns (null if it never returned), outcome \
(ok, absent, exists, unknown), read (string of a get that is ok and of a cas, swap, incr or ttl as below, else null). All \
are there, and no others. Times are of one clock. Keys are absent at first.

A cas is ok if it replaced what it expected, else exists, and read is what it found, or absent. A swap \
is ok, and read is what it replaced, or absent, and nothing was there; it is done in either case. An incr \
adds value, a decimal number, and read is the sum; no key counts as 0, and all sums are below 2^63.

What a put_with_ttl wrote may be gone from call_ns and ttl_ns on, by the clock of call_ns. A put, an update or a persist ends \
that, and a cas, swap or incr keeps it. A persist is absent if there is no key that expires; of a ttl that is ok read is \
expires, or stays.

Exit status: 0 linearizable; 1 not, with a small window that shows it; 2 wrong usage; 3 no verdict: \
FILE cannot be read, holds no operation or a line that is none, or is too hard to judge.";

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The history; `-` reads standard input
    pub(crate) file: PathBuf,
}

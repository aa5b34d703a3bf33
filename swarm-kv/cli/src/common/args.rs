//! What the command line takes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use swarm_worker::distribution::Distribution;
use swarm_worker::pool::Numa;
use swarm_worker::workload::{Mix, System};

pub(crate) use crate::common::args_rdma::{DeviceArgs, DoctorArgs, EvictArgs, HIDDEN, MemnodeArgs};
use crate::common::units::{parse_duration, parse_size};

/// In the environment: the pool of a command that names none.
const POOL: &str = "SWARM_POOL";
/// Commands that may leave the pool to that.
const TAKE_POOL: [&str; 20] = [
    "create", "info", "get", "put", "insert", "update", "delete", "cas", "incr", "keys", "import",
    "export", "backup", "evict", "gc", "repair", "replace", "watch", "lock", "locks",
];

const ABOUT: &str = "A replicated, linearizable key-value store over memory that runs no code.\n\n\
    A pool is a directory that holds the memory of 1, 3, 5 or 7 memory nodes, one file each. Any \
    number of processes use it at the same time; any of them may be killed at any moment, and a \
    minority of the nodes may fail, without the others stopping.\n\n\
    Built with the feature `rdma`, a pool may as well lie on memory nodes behind RDMA cards: \
    rdma://ETCD[,ETCD]/POOL, or rdma:FILE with a file that lists the nodes. All commands take it \
    like a directory.";

const EXAMPLES: &str = "Examples:
  swarm demo                                see it work, in one command
  swarm create /dev/shm/pool                a pool of three memory nodes
  swarm put /dev/shm/pool greeting hello
  swarm get /dev/shm/pool greeting
  swarm bench --workload b --clients 4      YCSB B on a temporary pool
  swarm torture --kill-clients              is it linearizable while clients are killed?
  swarm soak --minutes 10                   does anything wear out?
  swarm destroy /dev/shm/pool

Where SWARM_POOL names a pool, commands that use one may leave it out: swarm get KEY. (Not those
that remove a pool or work on a temporary one without it.)

Exit status: 0 done, 1 the answer is no (absent, exists), 2 wrong usage, 3 failure, 130 interrupted (Ctrl-C).";

const REPAIR_HELP: &str = "It goes by the files of a majority of the memory nodes; keys and values stay as they are. No process may have the pool open: those that \
    have are named, also if their control file was removed. Files of nodes that are missing, damaged, another pool's or older copies \
    are left out and named: restore them, or use --degraded. It may be interrupted, and done again.\n\n\
    Exit status 3: nothing was changed, and why.";

const REPLACE_HELP: &str = "The new node gets all that the others have, from a majority of all nodes without it, and the pool is whole again: it opens without \
    --degraded, and survives the loss of any other. Clients work meanwhile. A client that is stopped in the middle of an operation is waited for. A file of the \
    node that is there is replaced, whatever it says; one that is no file of this pool is not, and what a link leads to is left alone. If it \
    is interrupted once the node is gone for the clients, the pool goes on without the node, as swarm info says, until the next call, which begins anew.\n\n\
    A file that was replaced never takes part again, if it is put back.\n\n\
    Examples:\n  swarm replace /dev/shm/pool 1\n  swarm replace /dev/shm/pool 1 /mnt/other/node-1";

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "swarm", version, about = "A replicated key-value store over plain memory",
    long_about = ABOUT, after_help = EXAMPLES, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten, next_help_heading = "RDMA")]
    pub(crate) device: DeviceArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show the store at work while a memory node and a client fail (ten seconds)
    #[command(long_about = "Shows the store at work while things fail.\n\n\
        Makes a temporary pool of three memory nodes and lets four client processes work on it \
        (YCSB B: 95 % gets, 5 % updates). Half-way one memory node stops answering and one client \
        is killed with SIGKILL; the rest goes on. At the end every acknowledged write is looked \
        for. Exits with 0 only if all were found.")]
    Demo,
    /// Make a pool
    #[command(
        visible_alias = "make",
        after_help = "What is left of a pool in shared memory: when clients are killed, all that was acknowledged. When the host \
        crashes, nothing to rely on: nothing in memory (tmpfs, such as /dev/shm), and on a disk or a DAX device whatever had been \
        written back. An orderly reboot leaves what is on a disk, and the last logout of a user nothing of theirs in /dev/shm where \
        systemd's RemoveIPC is set. Copies of the files of a running pool are none of it: see `swarm backup`.\n\n\
        Example:\n  swarm create /dev/shm/pool --nodes 3 --capacity 1GiB"
    )]
    Create(CreateArgs),
    /// Show what a pool is and what is in it
    #[command(visible_aliases = ["stat", "status"])]
    Info(InfoArgs),
    /// Remove a pool and all that is in it
    Destroy(DestroyArgs),
    /// Make a pool's control file anew, if it is lost or damaged
    #[command(after_help = REPAIR_HELP)]
    Repair(RepairArgs),
    /// Put a new file into the place of a memory node that is lost, filled from the others
    #[command(after_help = REPLACE_HELP)]
    Replace(ReplaceArgs),
    /// Print a key's value, exactly as it was stored
    #[command(after_help = "Exit status 1: there is no such key.")]
    Get(GetArgs),
    /// Store a value, whether or not the key is there
    #[command(
        visible_alias = "set",
        after_help = "With --ttl the key is as if it had been deleted once that time is over by the clocks of the hosts that use it. \
        A later put or update ends that; cas and incr keep it. `swarm backup` and `swarm export --json` write when it is over, and lines of text do not.\n\n\
        Example:\n  swarm put /dev/shm/pool session:17 alice --ttl 30m"
    )]
    Put(PutArgs),
    /// Store a value under a new key
    #[command(
        visible_alias = "add",
        after_help = "Exit status 1: the key exists; its value is left as it was."
    )]
    Insert(ValueArgs),
    /// Change the value of a key that is there
    #[command(after_help = "Exit status 1: there is no such key.")]
    Update(ValueArgs),
    /// Remove a key; done whether or not it was there
    #[command(visible_aliases = ["del", "rm", "remove"])]
    Delete(KeyArgs),
    /// Replace a key's value if it is the one that is expected
    #[command(
        after_help = "Exit status 1: lost, as the key has another value, or none; it is left as it was, and printed if there is one. \
        For a key that is not to be there yet there is `swarm insert`; to take one away, `swarm delete`, whatever its value.\n\n\
        Example:\n  swarm cas /dev/shm/pool leader nobody me"
    )]
    Cas(CasArgs),
    /// Add to the decimal number under a key, and print the sum
    #[command(
        visible_alias = "increment",
        after_help = "A key that is not there counts as 0. Exit status 3: the value is no decimal number of 64 bits, or the sum \
        would be none; it is left as it was. Where SWARM_POOL names the pool, a number needs the pool in front of the key \
        all the same."
    )]
    Incr(IncrArgs),
    /// Print for how many seconds a key is there yet
    #[command(after_help = "Exit status 1: there is no such key.")]
    Ttl(KeyArgs),
    /// Let a key stay that is to expire
    #[command(after_help = "Exit status 1: there is no such key, or it does not expire.")]
    Persist(KeyArgs),
    /// Print a key's value, and again each time that it changes
    #[command(
        after_help = "A line for each value, with \\t, \\n, \\r and \\\\ for tab, newline, carriage return and backslash; where the key \
        is not there a message on standard error. Of several changes in a row some may be left out, and never the last one. It sleeps in \
        between, and goes on until it is interrupted.\n\n\
        Exit status 1: with --changes, the key did not change so often within --timeout.\n\n\
        Example:\n  swarm watch /dev/shm/pool leader"
    )]
    Watch(WatchArgs),
    /// Run a command while holding a lock
    #[command(after_help = LOCK_HELP)]
    Lock(LockArgs),
    /// Show who holds which lock, and who waits for it
    #[command(
        after_help = "Clients that have ended are shown as dead until somebody uses the lock. One that is stopped keeps what it holds: \
        let it go on, or end it with `swarm evict POOL CLIENT`."
    )]
    Locks(ReadArgs),
    /// Print the keys that begin with a prefix, or all, a line each, in no order
    #[command(
        after_help = "Inside a key, \\t, \\n, \\r and \\\\ stand for tab, newline, carriage return and backslash. Keys that come or go \
        meanwhile may be there or not. The whole index is gone over, whatever the prefix. Where SWARM_POOL names the pool, a prefix \
        needs the pool in front of it all the same.\n\n\
        Example:\n  swarm keys /dev/shm/pool user:"
    )]
    Keys(KeysArgs),
    /// Put the keys and values of a file
    #[command(
        visible_alias = "load",
        after_help = "Lines are key<TAB>value; inside a key or value, \\t, \\n, \\r and \
        \\\\ stand for tab, newline, carriage return and backslash. Or they are those of \
        `export --json`, where expires_ns says when a key expires, in nanoseconds since 1970; one that \
        has expired is passed over. Import stops at a line that is not of this form and says which; the \
        lines in front of it are stored.\n\n\
        Example:\n  swarm export OLD | swarm import NEW -"
    )]
    Import(ImportArgs),
    /// Print all keys and values, a line each: `key<TAB>value`
    #[command(
        visible_aliases = ["dump", "list", "ls"],
        after_help = "Inside a key or value, \\t, \\n, \\r and \\\\ stand for tab, newline, \
        carriage return and backslash. Keys that change meanwhile appear with one of their values. When a key \
        expires is shown with --json, as expires_ns."
    )]
    Export(ReadArgs),
    /// Write all keys and values to a file, from which `restore` makes them again
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupArgs),
    /// Put the keys and values of a backup
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Measure: YCSB workloads, with processes as clients
    #[command(after_help = BENCH_HELP)]
    Bench(BenchArgs),
    /// Let clients work on a few hot keys while things fail, and judge the answers that they got
    #[command(after_help = TORTURE_HELP)]
    Torture(TortureArgs),
    /// Let clients come, die and go for long, and judge whether anything wears out
    #[command(after_help = SOAK_HELP)]
    Soak(SoakArgs),
    /// Judge a history: whether it is linearizable
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Be a memory node behind an RDMA card, until SIGTERM
    #[command(after_help = MEMNODE_HELP, hide = HIDDEN)]
    Memnode(MemnodeArgs),
    /// End a client that is stopped, hangs or is gone for good, or is to be
    #[command(after_help = EVICT_HELP)]
    Evict(EvictArgs),
    /// Look for what nobody uses, and give it back to the pool in whole chunks
    #[command(visible_alias = "compact", after_help = GC_HELP)]
    Gc(GcArgs),
    /// Look whether this host is fit for pools in shared memory, or for RDMA, and show what to do if it is not
    #[command(
        after_help = "Exit status: 0 nothing is bad, 1 something is, 2 wrong usage, 3 failure."
    )]
    Doctor(DoctorArgs),
    /// A client of bench, torture, soak or demo: takes its job on standard input
    #[command(hide = true)]
    Worker {
        /// The process to end with
        parent: i32,
    },
}

const LOCK_HELP: &str = "The lock is released when the command ends, and goes to the one that has waited longest; if this process is killed, as \
soon as the kernel has ended it. The command is not killed with it, and goes on: let it refuse to do what it does under an older token than \
the last one that was seen. Its token is in SWARM_LOCK_TOKEN. A process that is stopped keeps the lock. It takes a client slot meanwhile.

A signal that is to end it is handed on to the command, and it ends with that.

Exit status: that of the command, 128 and the signal if one ended it; 1 (or --conflict-exit-code) if the lock was not had in time; 126 \
or 127 if the command cannot be run; 2 wrong usage, 3 failure.

Example:
  swarm lock /dev/shm/pool nightly --timeout 5s -- ./report.sh";

const BACKUP_HELP: &str = "Clients may work meanwhile. Each key is there with a value that it had while the backup was \
made, or is not there if it was absent then; keys are not all of one moment. FILE is written under another name and \
renamed when it is whole, so that an older backup stays until then. With `-` it goes to standard output, and whatever \
reads that has to look at the exit status, or to verify it.

Exit status: 0 done, or the file is whole; 1 --verify found it damaged or cut off; 2 wrong usage; 3 failure; 130 \
interrupted (Ctrl-C).

Examples:
  swarm backup /dev/shm/pool pool.backup
  swarm backup --verify pool.backup
  swarm backup /dev/shm/pool - | ssh host swarm restore - /dev/shm/pool";

const RESTORE_HELP: &str = "The pool may have any number of nodes and any capacity that the keys fit in. A pool that has \
keys is refused: with --merge those of the backup get the backup's values, and the others stay. Keys expire when they would have; \
those that have are left out. A regular file is gone \
over as a whole before anything is stored; of a pipe each block is, and what was stored before a bad one stays, and is \
reported. What was interrupted can be restored again, with --merge.

Examples:
  swarm restore pool.backup /dev/shm/new
  zstd -d < pool.backup.zst | swarm restore - /dev/shm/new";

const BENCH_HELP: &str = "Workloads (YCSB):
  a  50 % get, 50 % update               d  95 % get, 5 % insert, latest keys most
  b  95 % get,  5 % update               f  50 % get, 50 % read-modify-write
  c  100 % get

Loading and a warm-up that touches every key come first and are not counted.

Examples:
  swarm bench --workload b --clients 4 --rtt 2us
  swarm bench --system dm-abd --workload a --rtt 2us --json";

const TORTURE_HELP: &str = "Each client is a process that gets, puts, inserts, updates and \
deletes, compares and swaps (cas) and adds to numbers (incr) as fast as it can: of a hundred operations 30 are gets, \
12 puts, 12 inserts, 14 updates, 16 deletes, 8 cas and 8 incr, which are cas where the key holds no number; every \
third key does. Of another third some puts are put_with_ttl, some gets ttl, and some updates persist. Every value is written once, every sum is there once. Every call is on record before it is made, \
every answer as soon as it is there, so that what a killed client did is known as far as it can be. \
When the time is over nothing fails any more: stopped clients go on, nodes come back, and each client \
that is left must be served whatever it asks for, within a bound of roundtrips on a temporary pool. Then \
every key is read once more, without the nodes that were taken away for good. \
A run that fails or is interrupted saves its history, too, and takes its keys out of the pool.

Exit status: 0 linearizable, and all were served in the end; 1 not; 2 wrong usage; 3 failure, or no \
verdict, as the pool was full before there was much to judge; 130 interrupted (Ctrl-C).

Examples:
  swarm torture --clients 8 --kill-clients --freeze-node
  swarm torture --near --kill-clients --stop-clients
  swarm torture --nodes 5 --roll-nodes --stop-clients
  swarm torture --replace-nodes --kill-clients
  swarm torture --seconds 60 --kill-node --history FILE; swarm check FILE";

const SOAK_HELP: &str = "Client processes do all operations, on values of 64 B to 64 KiB, most of \
them small, until the time is over and the pool's capacity has been written many times over. At \
random, clients are killed and leave, and others come. Checked are:

  volume        as much was written as was asked for
  never full    no write was refused
  histories     of sixteen hot keys, others every two seconds: linearizable
  values        of all other keys: whole, whenever they are read
  memory        in chunks, after the first fifth of the run: grows by at most 5 %, by the lower
                end of a 99.9 % confidence interval, as clients that die make it go up and
                down; of a run that wrote the capacity over 23 times
  allocated     objects in chunks: likewise
  get, update   medians of the last minute, or tenth: at most 10 % slower than at first; open where they
                are not and the machine was busy with other programs

Exit status: 0 all is well, 1 a check failed, 2 wrong usage, 3 failure, or a check is open and none \
failed, 130 interrupted (Ctrl-C).

Examples:
  swarm soak
  swarm soak /dev/shm/pool --minutes 60 --clients 8 --json";

const CHECK_HELP: &str = "A line is a JSON object: client, op (get, put, insert, update, delete, \
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

const MEMNODE_HELP: &str = "It prints a line that begins with `ready` once clients can come, and runs no \
code for their operations. When it ends, what it held is lost, and it never passes for the one that \
it was.

Examples:
  swarm memnode --listen 10.0.0.1:7471 --capacity 4GiB --etcd 10.0.0.9:2379 --name a
  swarm memnode --listen 10.0.0.1:7471 --capacity 4GiB --static nodes.toml
  with nodes.toml:  nodes = [\"10.0.0.1:7471\", \"10.0.0.2:7471\", \"10.0.0.3:7471\"]";

const EVICT_HELP: &str = "On a pool of this host the client's process is killed with SIGKILL, be it \
stopped, and with it all clients that it has; what they held is for their slots' next holders. A \
process in a container is ended from within that container or, by root, from the host.

With --stopped-for it watches for that long, and ends each client whose process was stopped or frozen \
in the middle of an operation all the while, and executed nothing. Such a client keeps memory from \
being reclaimed. One that is merely slow is none. One in another pid namespace, one that this user may \
not examine, and one of which other threads go on, are named and left alone, with the reason: these are \
ended by their number alone. (A process that a debugger has stopped is stopped.)

On a pool on memory nodes these fence the client: whatever it posts from then on takes no effect, and \
its slot is free. A client whose process is known to be dead, or that is silent, is evicted alike.

Examples:
  swarm info /dev/shm/pool; swarm evict /dev/shm/pool 3
  swarm evict /dev/shm/pool --stopped-for 30s
  swarm evict rdma:nodes.toml 3";

const GC_HELP: &str = "Deleted keys and what clients left behind come back when memory runs out: then a client that writes looks for it, \
which takes a roundtrip for each key of the pool. This looks beforehand, takes over what clients that are gone held, moves \
together what is left in chunks that are mostly empty, and gives those back, for values of any size. What clients that are there \
hold stays theirs.

It takes a client slot and needs all memory nodes. It may be interrupted at any time: nothing is lost.

Exit status: 0 done, 2 wrong usage, 3 failure, or others' operations held it up.

Example:
  swarm gc /dev/shm/pool";

#[derive(Args, Debug)]
pub(crate) struct GcArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
}

/// A pool that is there.
#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Go on without memory nodes whose files are missing, damaged or another's, as long as a majority is there
    #[arg(long)]
    pub(crate) degraded: bool,
}

/// A pool that is there, for a command that changes nothing.
#[derive(Args, Debug)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Write nothing into the pool's files and take no client slot, as for a user who may only read them; fails where a key is changed
    /// all the time, or was left half changed
    #[arg(long)]
    pub(crate) read_only: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct KeysArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// What the keys begin with [default: nothing, as all do]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// Count every key, however long it takes; else, what a large pool holds is estimated by a part of its index
    #[arg(long)]
    pub(crate) exact: bool,
    /// Look whether all of it is whole, each bucket and each key at every node, instead; changes nothing. Exit status 1: something is not
    #[arg(long, conflicts_with = "exact")]
    pub(crate) verify: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// The directory to make; it must not be a pool yet
    pub(crate) pool: PathBuf,
    /// Memory nodes: 1, 3, 5 or 7; the pool survives the loss of a minority
    #[arg(long, default_value_t = 3, value_parser = parse_nodes)]
    pub(crate) nodes: usize,
    /// Size of each memory node's file, reserved at once
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub(crate) capacity: u64,
    /// The most clients at a time
    #[arg(long, default_value_t = 64)]
    pub(crate) max_clients: usize,
    /// Stamp slots of a key that writers use, 1 to 6: with one, a write to a key that one client
    /// writes costs least on memory nodes behind RDMA cards; a key that several write at a time
    /// costs them retries
    #[arg(long, default_value_t = 6)]
    pub(crate) slots: usize,
    /// Bits of a pointer: with 38, timestamps end and keys move after a second
    #[arg(long, hide = true)]
    pub(crate) pointer_bits: Option<u32>,
    /// Where a memory node's memory lies, once for each node: a file to make, or a DAX device; the
    /// pool's directory then holds links [default: files in the pool's directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) node_path: Vec<PathBuf>,
    /// On which NUMA nodes of this host the memory lies: `interleave` for all in turn, `bind:NODE` or
    /// `prefer:NODE` [default: where this command runs]
    #[arg(long, value_name = "POLICY", value_parser = parse_numa, default_value = "default", hide_default_value = true)]
    pub(crate) numa: Numa,
    /// Mode of the files, for a pool that several users share: 660 for a group, 666 for all. Who may use a pool may write
    /// anything into it [default: 600; with --group 660]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<u32>,
    /// Group of the files, by name or number
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Also on a file system that other hosts may have as well (NFS, 9p, FUSE), where all clients are on this one
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DestroyArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Even while clients use it, and even if files of it are damaged
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Also where the control file looks whole; what it says of older copies is ignored
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReplaceArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// The node's number, from 0 on
    pub(crate) node: u8,
    /// The file to create for its memory; without it node-N in the pool's directory
    pub(crate) path: Option<PathBuf>,
    /// The most keys a second, to spare the host's other programs
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct ValueArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
    /// The value, up to 1 MiB; `-` reads it from standard input, but behind `--` it is a value as well
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) it: ValueArgs,
    /// How long the key is to be there, such as 10s, 30m or 500ms; values of up to 4088 bytes
    #[arg(long, value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
    /// End after so many changes
    #[arg(long)]
    pub(crate) changes: Option<u64>,
    /// End after this time, such as 10s or 500ms
    #[arg(long, value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct CasArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
    /// The value that it must have
    #[arg(allow_hyphen_values = true)]
    pub(crate) old: OsString,
    /// The value that it gets, up to 1 MiB; `-` reads it from standard input, but behind `--` it is a value as well
    #[arg(allow_hyphen_values = true)]
    pub(crate) new: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The lock's name: a key, 1 to 255 bytes, that is used for nothing else
    pub(crate) name: OsString,
    /// How long to wait for the lock at most, such as 5s; 0s: not at all [default: as long as it takes]
    #[arg(long, value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Exit status if that is too short
    #[arg(long, default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// The command, and what it takes
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct IncrArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
    /// What is added; may be negative
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) by: i64,
}

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The file; `-` reads standard input
    pub(crate) file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// The pool's directory
    #[arg(required_unless_present = "verify")]
    pub(crate) pool: Option<PathBuf>,
    /// The file to write; `-` writes standard output
    #[arg(required_unless_present = "verify")]
    pub(crate) file: Option<PathBuf>,
    /// Look whether this backup is whole, and do nothing else; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pool", "file", "rate", "degraded"])]
    pub(crate) verify: Option<PathBuf>,
    /// The most keys a second, to spare the pool's clients
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Go on without memory nodes whose files are missing, damaged or another's, as long as a majority is there
    #[arg(long)]
    pub(crate) degraded: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup; `-` reads standard input
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Also into a pool that has keys: those of the backup get the backup's values
    #[arg(long)]
    pub(crate) merge: bool,
    /// The most keys a second, to spare the pool's clients
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
}

/// A value's name on the command line, the value, and what it is.
type Choice<T> = (&'static str, T, &'static str);

const SYSTEMS: [Choice<System>; 3] = [
    ("swarm", System::Swarm, "Safe-Guess: linearizable, one roundtrip in the common case"),
    ("dm-abd", System::DmAbd, "ABD over plain memory: linearizable, writes take two roundtrips"),
    ("raw", System::Raw, "One copy per key, no replication: the floor"),
];

const MIXES: [Choice<Mix>; 5] = [
    ("a", Mix::A, "50 % get, 50 % update"),
    ("b", Mix::B, "95 % get, 5 % update"),
    ("c", Mix::C, "100 % get"),
    ("d", Mix::D, "95 % get, 5 % insert"),
    ("f", Mix::F, "50 % get, 50 % read-modify-write"),
];

const DISTRIBUTIONS: [Choice<Distribution>; 3] = [
    ("zipfian", Distribution::Zipfian, "A few, strewn over all"),
    ("uniform", Distribution::Uniform, "All alike"),
    (
        "latest",
        Distribution::Latest,
        "The newest: those that were loaded last and those that the client inserted",
    ),
];

/// Takes the name of one of these.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [Choice<T>; N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(|(name, _, what)| PossibleValue::new(name).help(what))).map(
        move |given| {
            let chosen = all.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&given));
            chosen.expect("it is one of the names").1
        },
    )
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// How replicas are kept: swarm, or one of the paper's baselines
    #[arg(long, value_parser = one_of(SYSTEMS), default_value = "swarm")]
    pub(crate) system: System,
    /// The mix of operations
    #[arg(long, value_parser = one_of(MIXES), default_value = "b", ignore_case = true)]
    pub(crate) workload: Mix,
    /// Which keys are asked for most [default: zipfian; latest for workload d]
    #[arg(long, value_parser = one_of(DISTRIBUTIONS))]
    pub(crate) distribution: Option<Distribution>,
    /// Keys that are loaded
    #[arg(long, default_value_t = 100_000)]
    pub(crate) keys: usize,
    /// Bytes of a key
    #[arg(long, default_value_t = 24)]
    pub(crate) key_size: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    pub(crate) value_size: usize,
    /// Clients
    #[arg(long, default_value_t = 1)]
    pub(crate) clients: usize,
    /// Operations that each client has in flight
    #[arg(long, default_value_t = 1)]
    pub(crate) window: usize,
    /// Operations to measure, all clients together
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) ops: usize,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Delay every completion by this much, as a network would: 0ns, 2us, 1ms
    #[arg(long, default_value = "0ns", value_parser = parse_duration)]
    pub(crate) rtt: Duration,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Clients are threads instead of processes
    #[arg(long)]
    pub(crate) threads: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TortureArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// Client processes at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub(crate) clients: u32,
    /// Keys, all of them hot
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keys: u32,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Kill clients with SIGKILL at random moments; others take their places
    #[arg(long)]
    pub(crate) kill_clients: bool,
    /// Half-way, take a minority of the memory nodes away for good; takes three nodes or more
    #[arg(long)]
    pub(crate) kill_node: bool,
    /// Stop and thaw a minority of the memory nodes at random moments; takes three nodes or more
    #[arg(long)]
    pub(crate) freeze_node: bool,
    /// Take every memory node away in turn, one at a time: it freezes, thaws, goes down and comes back;
    /// takes three nodes or more
    #[arg(long, conflicts_with = "freeze_node")]
    pub(crate) roll_nodes: bool,
    /// Lose the file of every memory node in turn, and replace it while clients work; half of the processes that
    /// do are killed on the way; takes three nodes or more
    #[arg(long, conflicts_with_all = ["pool", "kill_node", "freeze_node", "roll_nodes"])]
    pub(crate) replace_nodes: bool,
    /// Stop clients with SIGSTOP at random moments, each for 0.1 to 5 s
    #[arg(long)]
    pub(crate) stop_clients: bool,
    /// Clients use the pool's memory as programs do, without an emulated network, by which alone nodes
    /// could be taken away
    #[arg(long, conflicts_with_all = ["kill_node", "freeze_node", "roll_nodes"])]
    pub(crate) near: bool,
    /// Write the history to this file, for `swarm check`
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
    /// Seed of what the clients do and of when things fail
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct SoakArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// How long at least [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=14_400))]
    pub(crate) minutes: Option<u64>,
    /// The same in seconds; with --minutes, so much more
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// How often the capacity of a memory node is written at least
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(crate) turnover: u64,
    /// Client processes at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub(crate) clients: u32,
    /// Keys that stay
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Size of each memory node of the temporary pool [default: 64MiB, more for many keys or clients]
    #[arg(long, value_parser = parse_size, conflicts_with = "pool")]
    pub(crate) capacity: Option<u64>,
    /// Seed of what the clients do and of when they are killed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What the command line says. Where [`POOL`] names a pool, a command that lacks an argument gets it in front of those that
/// it has.
///
/// Not if the first of them is a directory or a far pool: then it is another argument that is missing, and a pool's name
/// would pass for a key.
pub(crate) fn parse() -> Cli {
    let given: Vec<OsString> = std::env::args_os().collect();
    let pool = std::env::var_os(POOL).filter(|pool| !pool.is_empty());
    let wrong = match Cli::try_parse_from(&given) {
        Ok(cli) => return cli,
        Err(wrong) => wrong,
    };
    let completed = pool.filter(|_| wrong.kind() == ErrorKind::MissingRequiredArgument);
    let completed = completed.and_then(|pool| with_pool(given, pool));
    completed.and_then(|args| Cli::try_parse_from(args).ok()).unwrap_or_else(|| wrong.exit())
}

/// These arguments with a pool behind the command, if it is one that may have it.
fn with_pool(mut args: Vec<OsString>, pool: OsString) -> Option<Vec<OsString>> {
    let name = |arg: &OsString| {
        let root = Cli::command();
        let command = root.find_subcommand(arg)?;
        Some(command.get_name().to_owned())
    };
    let at = (1..args.len()).find(|&at| name(&args[at]).is_some())?;
    if !TAKE_POOL.contains(&name(&args[at])?.as_str()) {
        return None;
    }
    let first = args[at + 1..].iter().find(|arg| !arg.as_encoded_bytes().starts_with(b"-"));
    let is_pool = |arg: &OsString| {
        arg.as_encoded_bytes().starts_with(b"rdma:") || std::path::Path::new(arg).is_dir()
    };
    if first.is_some_and(is_pool) {
        return None;
    }
    args.insert(at + 1, pool);
    Some(args)
}

impl SoakArgs {
    /// How long, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        match (self.minutes, self.seconds) {
            (None, None) => 60,
            (minutes, seconds) => (60 * minutes.unwrap_or(0) + seconds.unwrap_or(0)).max(1),
        }
    }

    /// Bytes of each node of a temporary pool: about eight times what the keys take, and for each
    /// client the chunks that it begins.
    pub(crate) fn capacity(&self) -> u64 {
        let keys = u64::from(self.keys) * (16 << 10);
        let clients = u64::from(self.clients) * (8 << 20);
        self.capacity.unwrap_or((keys + clients).max(64 << 20).next_multiple_of(1 << 20))
    }
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The history; `-` reads standard input
    pub(crate) file: PathBuf,
}

fn parse_numa(text: &str) -> Result<Numa, String> {
    let on = |policy: fn(u32) -> Numa, node: &str| node.parse().ok().map(policy);
    let numa = match text.split_once(':') {
        Some(("bind", node)) => on(Numa::Bind, node),
        Some(("prefer", node)) => on(Numa::Preferred, node),
        None if text == "interleave" => Some(Numa::Interleave),
        None if text == "default" => Some(Numa::Default),
        _ => None,
    };
    numa.ok_or_else(|| "give interleave, bind:NODE, prefer:NODE or default".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| "give an octal mode, such as 660".to_owned())
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(nodes @ (1 | 3 | 5 | 7)) => Ok(nodes),
        _ => Err("a pool has 1, 3, 5 or 7 memory nodes".to_owned()),
    }
}

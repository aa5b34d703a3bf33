//! The command line: all commands, what is common to them, and what help says about them.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::bench::args::BenchArgs;
use crate::check::args::CheckArgs;
use crate::commands::backup::BackupArgs;
use crate::commands::create::CreateArgs;
use crate::commands::destroy::DestroyArgs;
use crate::commands::evict::EvictArgs;
use crate::commands::gc::GcArgs;
use crate::commands::import_export::{ImportArgs, KeysArgs};
use crate::commands::info::InfoArgs;
use crate::commands::keys::{CasArgs, GetArgs, IncrArgs, KeyArgs, PutArgs, ValueArgs};
use crate::commands::lock::LockArgs;
use crate::commands::memnode::MemnodeArgs;
use crate::commands::repair::RepairArgs;
use crate::commands::replace::ReplaceArgs;
use crate::commands::restore::RestoreArgs;
use crate::commands::watch::WatchArgs;
use crate::commands::{backup, evict, gc, lock, memnode, repair, replace, restore};
use crate::common::args::{DeviceArgs, HIDDEN, ReadArgs};
use crate::doctor::args::DoctorArgs;
use crate::soak::args::SoakArgs;
use crate::torture::args::TortureArgs;
use crate::{bench, check, soak, torture};

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
    minority of the nodes may fail, without the others stopping.";

const ABOUT_RDMA: &str = "\n\nA pool may as well lie on memory nodes behind RDMA cards: \
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

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "swarm", version, about = "A replicated key-value store over plain memory",
    long_about = if HIDDEN { ABOUT.to_owned() } else { [ABOUT, ABOUT_RDMA].concat() }, after_help = EXAMPLES, propagate_version = true)]
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
    #[command(after_help = repair::HELP)]
    Repair(RepairArgs),
    /// Put a new file into the place of a memory node that is lost, filled from the others
    #[command(after_help = replace::HELP)]
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
    #[command(after_help = lock::HELP)]
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
    #[command(after_help = backup::HELP)]
    Backup(BackupArgs),
    /// Put the keys and values of a backup
    #[command(after_help = restore::HELP)]
    Restore(RestoreArgs),
    /// Measure: YCSB workloads, with processes as clients
    #[command(after_help = bench::args::HELP)]
    Bench(BenchArgs),
    /// Let clients work on a few hot keys while things fail, and judge the answers that they got
    #[command(after_help = torture::args::HELP)]
    Torture(TortureArgs),
    /// Let clients come, die and go for long, and judge whether anything wears out
    #[command(after_help = soak::args::HELP)]
    Soak(SoakArgs),
    /// Judge a history: whether it is linearizable
    #[command(after_help = check::args::HELP)]
    Check(CheckArgs),
    /// Be a memory node behind an RDMA card, until SIGTERM
    #[command(after_help = memnode::HELP, hide = HIDDEN)]
    Memnode(MemnodeArgs),
    /// End a client that is stopped, hangs or is gone for good, or is to be
    #[command(after_help = evict::help())]
    Evict(EvictArgs),
    /// Look for what nobody uses, and give it back to the pool in whole chunks
    #[command(visible_alias = "compact", after_help = gc::HELP)]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A build without RDMA offered what it then refused.
    #[test]
    fn help_lists_only_what_this_build_can_do() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("--json") && help.contains("torture"), "{help}");
        for option in ["--device", "--port", "--gid-index", "--node-timeout", "memnode"] {
            assert_eq!(help.contains(option), cfg!(feature = "rdma"), "{option}: {help}");
        }
    }

    /// But for that of `doctor`, which looks what a host lacks for RDMA whether or not this build can use it, and of
    /// `memnode`, which is hidden.
    #[test]
    fn help_names_rdma_where_this_build_can_use_it() {
        let mut cli = Cli::command().mut_subcommand("doctor", |doctor| doctor.hide(true));
        let shown = cli.get_subcommands_mut().filter(|command| !command.is_hide_set());
        let mut helps: Vec<_> = shown
            .map(|command| (command.get_name().to_owned(), command.render_long_help().to_string()))
            .collect();
        assert!(helps.len() > 25, "{}", helps.len());
        helps.push(("swarm".to_owned(), cli.render_long_help().to_string()));
        for (command, help) in helps {
            let names_it = help.to_lowercase().contains("rdma") || help.contains("fence");
            assert!(!names_it || cfg!(feature = "rdma"), "{command}: {help}");
            let words = match command.as_str() {
                "swarm" => "rdma://",
                "create" => "RDMA cards",
                "evict" => "rdma:nodes.toml",
                _ => continue,
            };
            assert_eq!(help.contains(words), cfg!(feature = "rdma"), "{command}: {help}");
        }
    }
}

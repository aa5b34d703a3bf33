//! `swarm lock` and `swarm locks`.
//!
//! The process of `swarm lock` holds the lock, as a client of the pool, while the command runs. The command gets the
//! token, so that it can fence what it does.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use swarm_kv::block_on;
use swarm_kv::objects::{BarrierView, Holder, ObjectKind, QueueView, Seat};
use swarm_kv::shm::ClientState;
use swarm_worker::pool::{NearPool, Pool};
use swarm_worker::store::with_client;

use crate::commands::keys::put_bytes;
use crate::common::args::{PoolArgs, ReadArgs};
use crate::common::cleanup;
use crate::common::escape::{escape, for_terminal};
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::limits::check_key;
use crate::common::pool::{open_given, open_to_read};
use crate::common::units::parse_duration;

pub(crate) const HELP: &str = "The lock is released when the command ends, and goes to the one that has waited longest; if this process is killed, as \
soon as the kernel has ended it. The command is not killed with it, and goes on: let it refuse to do what it does under an older token than \
the last one that was seen. Its token is in SWARM_LOCK_TOKEN. A process that is stopped keeps the lock. It takes a client slot meanwhile.

A signal that is to end it is handed on to the command, and it ends with that.

Exit status: that of the command, 128 and the signal if one ended it; 1 (or --conflict-exit-code) if the lock was not had in time; 126 \
or 127 if the command cannot be run; 2 wrong usage, 3 failure.

Example:
  swarm lock /dev/shm/pool nightly --timeout 5s -- ./report.sh";

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

/// In the environment of the command: the token under which it runs.
const TOKEN: &str = "SWARM_LOCK_TOKEN";
/// How often is looked whether a signal came.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a command while it holds a lock.
pub(crate) fn lock(args: &LockArgs, json: bool) -> Result<Answer, Failure> {
    let name = args.name.as_bytes();
    check_key(name).map_err(Failure::Usage)?;
    let pool = open_given(&args.pool)?;
    let ran = with_client(&pool, |store| {
        store.with_lock(name, args.timeout, |token| run(&args.command, token))
    })?;
    let Some((ended, released)) = ran else {
        let why = "the lock was not had in time";
        if json {
            print_line(json!({ "done": false, "reason": why }))?;
        } else {
            eprint_line(format_args!("swarm: {why}"));
        }
        return Ok(Answer::Code(args.conflict_exit_code));
    };
    if let Err(why) = released {
        eprint_line(format_args!("swarm: {why}"));
    }
    ended
}

/// Runs a command to its end. A signal that is to end this process is handed on: the lock is released behind
/// the command.
fn run(command: &[OsString], token: u64) -> Result<Answer, Failure> {
    let (program, args) = command.split_first().expect("the command line demands one");
    let shown = program.to_string_lossy();
    cleanup::ends_by_itself(Some(format!("swarm: {shown} goes on without the lock")));
    let child = Command::new(program).args(args).env(TOKEN, token.to_string()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprint_line(format_args!("swarm: cannot run {shown}: {error}"));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(Answer::Code(if is_missing { 127 } else { 126 }));
        }
    };
    hands_signals_on(&child);
    let ended = child.wait().map_err(|error| Failure::because("cannot wait", error))?;
    Ok(Answer::Code(code(ended)))
}

/// The exit status that a shell gets for a command that ended so.
fn code(ended: ExitStatus) -> u8 {
    let code = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// A process in the same terminal has got the signal itself, and gets another one.
fn hands_signals_on(child: &Child) {
    let process = Pid::from_child(child);
    thread::spawn(move || {
        while !cleanup::seen() {
            thread::sleep(LOOK);
        }
        let _ = kill_process(process, Signal::TERM);
    });
}

/// Shows who holds which object, and who waits.
pub(crate) fn locks(args: &ReadArgs, json: bool) -> Result<Answer, Failure> {
    let pool = open_to_read(args)?;
    let mut objects = Vec::new();
    let each = |key: &[u8], value: &[u8], _: Option<Duration>| {
        let queue = QueueView::of(value).map(Object::Queue);
        let object = queue.or_else(|| BarrierView::of(value).map(Object::Barrier));
        objects.extend(object.map(|object| (key.to_vec(), object)));
        ControlFlow::Continue(())
    };
    if let Some(reader) = pool.reader() {
        reader
            .for_each_with_ttl(each)
            .map_err(|error| Failure::from(error).in_pool(pool.path()))?;
    } else {
        with_client(&pool, |store| Ok(block_on(store.for_each(each))?))?;
    }
    objects.sort_by(|one, other| one.0.cmp(&other.0));
    let clients = Clients::of(&pool)?;
    for (name, object) in &objects {
        if json {
            print_line(described(&clients, name, object))?;
        } else {
            print(&clients, name, object).map_err(|error| Failure::output(&error))?;
        }
    }
    Ok(Answer::Yes)
}

/// What an object says.
enum Object {
    Queue(QueueView),
    Barrier(BarrierView),
}

/// A place, as it is shown.
struct Shown {
    client: usize,
    process: Option<u32>,
    /// Host and process, of a client of another host.
    holder: Option<String>,
    state: &'static str,
}

/// The clients that there are, to find which of them has a place.
enum Clients<'p> {
    Near(&'p NearPool),
    /// Client slot, incarnation, host and process. What holds a slot may be dead.
    #[cfg(feature = "rdma")]
    Far(Vec<(usize, u64, String)>),
}

impl<'p> Clients<'p> {
    fn of(pool: &'p Pool) -> Result<Self, Failure> {
        match pool {
            Pool::Near(near) => Ok(Self::Near(near)),
            #[cfg(feature = "rdma")]
            Pool::Far(far) => {
                let clients = far.clients()?.into_iter();
                Ok(Self::Far(clients.map(|it| (it.slot, it.incarnation, it.label)).collect()))
            }
        }
    }

    /// Returns who has a place, as far as can be seen from here.
    fn shown(&self, seat: &Seat) -> Shown {
        match self {
            Self::Near(near) => shown_near(near, seat),
            #[cfg(feature = "rdma")]
            Self::Far(clients) => {
                let is_it =
                    |it: &&(usize, u64, String)| (it.0, it.1) == (seat.slot, seat.session.0);
                let holder = clients.iter().find(is_it).map(|it| it.2.clone());
                let state = if holder.is_some() { "attached" } else { "not attached" };
                Shown { client: seat.slot, process: None, holder, state }
            }
        }
    }
}

fn shown_near(near: &NearPool, seat: &Seat) -> Shown {
    if near.is_gone(seat.slot, seat.session) {
        return Shown { client: seat.slot, process: None, holder: None, state: "dead" };
    }
    let found = near.clients().into_iter().find(|it| it.slot == seat.slot);
    let state = match found.map(|it| it.condition) {
        Some(ClientState::Stopped) => "stopped",
        Some(ClientState::Frozen) => "frozen",
        _ => "alive",
    };
    Shown { client: seat.slot, process: found.map(|it| it.process), holder: None, state }
}

fn print(clients: &Clients<'_>, name: &[u8], object: &Object) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut line = Vec::new();
    escape(name, &mut line);
    let line = if out.is_terminal() { for_terminal(&line) } else { line };
    out.write_all(&line)?;
    let says = |Shown { client, process, holder, state }: Shown| {
        let process = process.map(|process| format!("process {process}, "));
        let known = process.or(holder.map(|holder| format!("{holder}, "))).unwrap_or_default();
        format!("client {client}, {known}{state}")
    };
    match object {
        Object::Queue(view) => {
            writeln!(out, ": {}, last token {}", view.kind, view.token)?;
            for Holder { seat, token, .. } in &view.holders {
                writeln!(out, "  held by {}, token {token}", says(clients.shown(seat)))?;
            }
            for seat in &view.waiters {
                writeln!(out, "  {} waits", says(clients.shown(seat)))?;
            }
        }
        Object::Barrier(view) => {
            writeln!(out, ": a barrier, opened {} times", view.generation)?;
            for seat in &view.members {
                writeln!(out, "  {} is a member", says(clients.shown(seat)))?;
            }
        }
    }
    Ok(())
}

fn described(clients: &Clients<'_>, name: &[u8], object: &Object) -> Value {
    let place = |seat: &Seat| {
        let Shown { client, process, holder, state } = clients.shown(seat);
        let session = seat.session.0;
        let mut shown =
            json!({ "client": client, "session": session, "process": process, "state": state });
        if let Some(holder) = holder {
            shown["holder"] = json!(holder);
        }
        shown
    };
    let holder = |it: &Holder| {
        let mut described = place(&it.seat);
        described["token"] = json!(it.token);
        described
    };
    let mut all = Map::new();
    put_bytes(&mut all, "name", name);
    match object {
        Object::Queue(view) => {
            all.insert("kind".to_owned(), json!(view.kind.name()));
            all.insert("token".to_owned(), json!(view.token));
            all.insert("holders".to_owned(), view.holders.iter().map(holder).collect());
            all.insert("waiters".to_owned(), view.waiters.iter().map(place).collect());
        }
        Object::Barrier(view) => {
            all.insert("kind".to_owned(), json!(ObjectKind::Barrier.name()));
            all.insert("generation".to_owned(), json!(view.generation));
            all.insert("members".to_owned(), view.members.iter().map(place).collect());
        }
    }
    Value::Object(all)
}

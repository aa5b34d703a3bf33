//! `swarm import`, `export` and `keys`.
//!
//! Import puts a batch of lines at a time, with several in flight. A batch ends in front of a line
//! whose key it has already, so that of two lines with one key the later wins; and where the next
//! line has not arrived yet, so that nothing waits for it.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use swarm_kv::{Error, block_on};
use swarm_worker::store::{Store, block_on_all, with_client};

use crate::commands::backup::{expires_after, left_until};
use crate::commands::keys::put_bytes;
use crate::common::args::{PoolArgs, ReadArgs};
use crate::common::cleanup;
use crate::common::escape::{escape, for_terminal, format_line};
use crate::common::exit::{Answer, AtLine, Failure, eprint_line, print_line};
use crate::common::lines::{Lines, Pair, front};
use crate::common::pool::{open_given, open_to_read};
use crate::common::units::count;

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The file; `-` reads standard input
    pub(crate) file: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct KeysArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// What the keys begin with [default: nothing, as all do]
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: OsString,
}

/// Puts in flight at a time.
const LANES: usize = 16;
/// Lines of a batch.
const BATCH: usize = 64;

/// Puts the lines of a file.
pub(crate) fn import(args: &ImportArgs, json: bool) -> Result<Answer, Failure> {
    let (input, size): (Box<dyn Read>, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let failed =
            |error| Failure::because(format!("cannot read {}", args.file.display()), error);
        let file = File::open(&args.file).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        (Box::new(file), meta.is_file().then_some(meta.len()))
    };
    let bar = match size {
        Some(size) => bar(size, "{wide_bar} {bytes}/{total_bytes} {eta}"),
        None => ProgressBar::new_spinner(),
    };
    let input = BufReader::with_capacity(1 << 16, bar.wrap_read(input));
    let pool = open_given(&args.pool)?;
    let (lines, expired) = with_client(&pool, |store| import_all(input, store))?;
    bar.finish_and_clear();
    if json {
        print_line(json!({ "lines": lines, "expired": expired }))?;
    } else if expired == 0 {
        eprint_line(count(lines, "line"));
    } else {
        eprint_line(format_args!("{}, of which {expired} had expired", count(lines, "line")));
    }
    Ok(Answer::Yes)
}

/// Keys and values to put, in any order.
#[derive(Default)]
struct Batch {
    pairs: Vec<Pair>,
    keys: HashSet<Vec<u8>>,
    /// How many were passed over, as they have expired.
    expired: Cell<u64>,
}

/// Returns how many lines there were, and how many of them have expired.
fn import_all(input: BufReader<impl Read>, store: &Store<'_>) -> Result<(u64, u64), Failure> {
    let mut lines = Lines::new(input);
    let mut batch = Batch::default();
    let mut stored = 0;
    loop {
        cleanup::set_last_words(interrupted_at(stored));
        let next = match lines.next_pair() {
            Ok(Some(pair)) => pair,
            end => {
                stored += batch.put(store, stored)?;
                return match end {
                    Err(bad) => Err(at_line(stored + 1, bad)),
                    Ok(_) => Ok((stored, batch.expired.get())),
                };
            }
        };
        if batch.keys.contains(&next.0) {
            stored += batch.put(store, stored)?;
        }
        batch.keys.insert(next.0.clone());
        batch.pairs.push(next);
        let waits = !lines.input().buffer().contains(&b'\n');
        if batch.pairs.len() == BATCH || waits {
            stored += batch.put(store, stored)?;
        }
        if waits {
            store.rest();
        }
    }
}

impl Batch {
    /// Puts all, behind so many lines that are stored, and is empty again. Says how many there were.
    fn put(&mut self, store: &Store<'_>, before: u64) -> Result<u64, Failure> {
        let pairs = std::mem::take(&mut self.pairs);
        self.keys.clear();
        let rest = RefCell::new(pairs.iter().zip(before + 1..));
        let lanes = (0..LANES.min(pairs.len())).map(|_| async {
            loop {
                let Some(((key, value, expires), line)) = rest.borrow_mut().next() else {
                    return Ok::<(), Failure>(());
                };
                let put = match expires.map(left_until) {
                    None => store.put(key, value).await,
                    Some(Some(left)) => store.put_with_ttl(key, value, left).await,
                    Some(None) => {
                        self.expired.set(self.expired.get() + 1);
                        Ok(())
                    }
                };
                let at = Some(AtLine { line, stored: before });
                put.map_err(|error| Failure::Store { error, at })?;
            }
        });
        block_on_all(lanes.collect())?;
        Ok(pairs.len() as u64)
    }
}

/// What is printed if a signal ends it when so many lines are known to be stored.
fn interrupted_at(stored: u64) -> String {
    format!(
        "swarm: interrupted: the first {} stored, of the next {BATCH} any may be; import the file again to have all",
        if stored == 1 { "line is".to_owned() } else { format!("{stored} lines are") }
    )
}

fn at_line(line: u64, problem: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("line {line}: {problem} (the lines before it are stored)"))
}

/// Prints all keys and values.
pub(crate) fn export(pool: &ReadArgs, json: bool) -> Result<Answer, Failure> {
    let pool = open_to_read(pool)?;
    if let Some(reader) = pool.reader() {
        let keys = || Ok(pool.accounts_while(&mut |_, _| true)?.0.usage.keys);
        let all = |each: Each<'_>| reader.for_each_with_ttl(each);
        export_all(keys, all, json).map_err(|failure| failure.in_pool(pool.path()))?;
    } else {
        with_client(&pool, |store| {
            let keys = || Ok(block_on(store.usage())?.keys);
            export_all(keys, |each| block_on(store.for_each(each)), json)
        })?;
    }
    Ok(Answer::Yes)
}

/// What each key and its value are given to, and how long it is there yet if it expires, until it breaks off.
type Each<'e> = &'e mut dyn FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()>;

/// Prints what `all` gives, of which there are so many `keys`.
fn export_all(
    keys: impl FnOnce() -> Result<u64, Failure>,
    all: impl FnOnce(Each<'_>) -> Result<(), Error>,
    json: bool,
) -> Result<(), Failure> {
    let bar = if io::stderr().is_terminal() {
        bar(keys()?, "{wide_bar} {pos}/{len} keys {eta}")
    } else {
        ProgressBar::hidden()
    };
    let is_terminal = io::stdout().is_terminal();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut line = Vec::new();
    let (mut written, mut first, mut expiring) = (Ok(()), true, 0);
    all(&mut |key, value, left| {
        expiring += u64::from(left.is_some());
        if json {
            line.clear();
            let mut pair = Map::new();
            put_bytes(&mut pair, "key", key);
            put_bytes(&mut pair, "value", value);
            pair.extend(left.map(|left| ("expires_ns".to_owned(), expires_after(left).into())));
            line.extend(format!("{}\n", Value::Object(pair)).into_bytes());
        } else {
            format_line(key, value, &mut line);
            if is_terminal {
                line = for_terminal(&line);
            }
        }
        let front = if std::mem::take(&mut first) { front(&line) } else { b"" };
        written = out.write_all(front).and_then(|()| out.write_all(&line));
        bar.inc(1);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    bar.finish_and_clear();
    written.and_then(|()| out.flush()).map_err(|error| Failure::output(&error))?;
    if expiring > 0 && !json {
        eprint_line(format_args!(
            "swarm: {} to expire, which lines of text do not say; those of --json do",
            if expiring == 1 { "a key is".to_owned() } else { format!("{expiring} keys are") }
        ));
    }
    Ok(())
}

/// Prints the keys that begin with a prefix.
pub(crate) fn keys(args: &KeysArgs, json: bool) -> Result<Answer, Failure> {
    let prefix = args.prefix.as_bytes();
    let pool = open_to_read(&args.pool)?;
    if let Some(reader) = pool.reader() {
        let all = |each: EachKey<'_>| {
            reader.for_each(|key, _| {
                if key.starts_with(prefix) { each(key) } else { ControlFlow::Continue(()) }
            })
        };
        print_keys(all, json).map_err(|failure| failure.in_pool(pool.path()))?;
    } else {
        with_client(&pool, |store| {
            print_keys(|each| block_on(store.for_each_key(prefix, each)), json)
        })?;
    }
    Ok(Answer::Yes)
}

/// What each key is given to, until it breaks off.
type EachKey<'e> = &'e mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// Prints the keys that `all` gives.
fn print_keys(
    all: impl FnOnce(EachKey<'_>) -> Result<(), Error>,
    json: bool,
) -> Result<(), Failure> {
    let is_terminal = io::stdout().is_terminal();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut line = Vec::new();
    let mut written = Ok(());
    all(&mut |key| {
        line.clear();
        if json {
            let mut object = Map::new();
            put_bytes(&mut object, "key", key);
            line.extend(Value::Object(object).to_string().into_bytes());
        } else {
            escape(key, &mut line);
            if is_terminal {
                line = for_terminal(&line);
            }
        }
        line.push(b'\n');
        written = out.write_all(&line);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written.and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}

/// A progress bar; it shows on a terminal only.
fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("templates here are well-formed");
    ProgressBar::new(length).with_style(style)
}

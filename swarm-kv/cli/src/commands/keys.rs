//! `swarm get`, `put`, `insert`, `update`, `delete`, `cas`, `incr`, `ttl` and `persist`.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use swarm_core::layout::MAX_VALUE;
use swarm_kv::{CompareAndSwap, TimeToLive, block_on};
use swarm_worker::store::{Store, with_client};

use crate::common::args::{PoolArgs, ReadArgs};
use crate::common::escape::for_terminal;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::limits::{check_key, check_value};
use crate::common::pool::{open_given, open_to_read};
use crate::common::units::parse_duration;

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) pool: ReadArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
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
pub(crate) struct IncrArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// The key, 1 to 255 bytes
    pub(crate) key: OsString,
    /// What is added; may be negative
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) by: i64,
}

enum Call<'a> {
    Get,
    Put(&'a [u8]),
    Insert(&'a [u8]),
    Update(&'a [u8]),
    Delete,
    Cas { old: &'a [u8], new: &'a [u8] },
    Incr(i64),
    PutWithTtl(&'a [u8], Duration),
    Ttl,
    Persist,
}

struct Keyed<'a> {
    key: &'a [u8],
    call: Call<'a>,
}

/// The result of a call.
enum CallResult {
    Done(bool),
    Value(Vec<u8>),
    /// Lost to this value, or to none.
    Lost(Option<Vec<u8>>),
    Life(TimeToLive),
}

impl Keyed<'_> {
    fn run(&self, store: &Store<'_>) -> Result<CallResult, Failure> {
        let key = self.key;
        Ok(match self.call {
            Call::Get => match block_on(store.get(key, |value| value.map(<[u8]>::to_vec)))? {
                Some(value) => CallResult::Value(value),
                None => CallResult::Done(false),
            },
            Call::Put(value) => {
                block_on(store.put(key, value))?;
                CallResult::Done(true)
            }
            Call::Insert(value) => CallResult::Done(block_on(store.insert(key, value))?),
            Call::Update(value) => CallResult::Done(block_on(store.update(key, value))?),
            Call::Delete => {
                block_on(store.delete(key))?;
                CallResult::Done(true)
            }
            Call::Cas { old, new } => {
                match block_on(store.compare_and_swap(key, Some(old), Some(new)))? {
                    CompareAndSwap::Swapped => CallResult::Done(true),
                    CompareAndSwap::Lost(found) => CallResult::Lost(found),
                }
            }
            Call::Incr(by) => {
                CallResult::Value(block_on(store.increment(key, by))?.to_string().into())
            }
            Call::PutWithTtl(value, ttl) => {
                block_on(store.put_with_ttl(key, value, ttl))?;
                CallResult::Done(true)
            }
            Call::Ttl => CallResult::Life(block_on(store.ttl(key))?),
            Call::Persist => CallResult::Done(block_on(store.persist(key))?),
        })
    }
}

/// Prints a key's value.
pub(crate) fn get(args: &GetArgs, json: bool) -> Result<Answer, Failure> {
    match read(&args.pool, &args.key)? {
        CallResult::Value(value) => {
            print_value(&value, json).map_err(|error| Failure::output(&error))?;
            Ok(Answer::Yes)
        }
        _ => no(json, "there is no such key"),
    }
}

/// Stores a value.
pub(crate) fn put(args: &PutArgs, json: bool) -> Result<Answer, Failure> {
    let value = value(&args.it.value)?;
    let put = args.ttl.map_or(Call::Put(&value), |ttl| Call::PutWithTtl(&value, ttl));
    done(call(&args.it.pool, &args.it.key, put)?, json, "")
}

/// Prints for how long a key is there yet, in seconds.
pub(crate) fn ttl(args: &KeyArgs, json: bool) -> Result<Answer, Failure> {
    let CallResult::Life(life) = call(&args.pool, &args.key, Call::Ttl)? else {
        return no(json, "there is no such key");
    };
    let left = match life {
        TimeToLive::Absent => return no(json, "there is no such key"),
        TimeToLive::Endless => None,
        TimeToLive::Left(left) => Some(left.as_secs_f64()),
    };
    if json {
        print_line(json!({ "done": true, "ttl_seconds": left }))?;
    } else {
        print_line(left.map_or("it does not expire".to_owned(), |left| format!("{left:.3}")))?;
    }
    Ok(Answer::Yes)
}

/// Lets a key stay that is to expire.
pub(crate) fn persist(args: &KeyArgs, json: bool) -> Result<Answer, Failure> {
    let persisted = call(&args.pool, &args.key, Call::Persist)?;
    done(persisted, json, "there is no such key, or it does not expire")
}

/// Stores a value under a new key.
pub(crate) fn insert(args: &ValueArgs, json: bool) -> Result<Answer, Failure> {
    let value = value(&args.value)?;
    done(call(&args.pool, &args.key, Call::Insert(&value))?, json, "the key exists")
}

/// Changes a value.
pub(crate) fn update(args: &ValueArgs, json: bool) -> Result<Answer, Failure> {
    let value = value(&args.value)?;
    done(call(&args.pool, &args.key, Call::Update(&value))?, json, "there is no such key")
}

/// Removes a key.
pub(crate) fn delete(args: &KeyArgs, json: bool) -> Result<Answer, Failure> {
    done(call(&args.pool, &args.key, Call::Delete)?, json, "")
}

/// Replaces a value that is expected. Where another is there, prints that.
pub(crate) fn cas(args: &CasArgs, json: bool) -> Result<Answer, Failure> {
    let (old, new) = (args.old.as_bytes(), value(&args.new)?);
    match call(&args.pool, &args.key, Call::Cas { old, new: &new })? {
        CallResult::Lost(Some(found)) => {
            if json {
                let mut printed = Map::from_iter([("done".to_owned(), json!(false))]);
                put_bytes(&mut printed, "value", &found);
                print_line(Value::Object(printed))?;
            } else {
                print_value(&found, false).map_err(|error| Failure::output(&error))?;
            }
            Ok(Answer::No)
        }
        CallResult::Lost(None) => no(json, "there is no such key"),
        brought => done(brought, json, ""),
    }
}

/// Adds to a number, and prints the sum.
pub(crate) fn incr(args: &IncrArgs, json: bool) -> Result<Answer, Failure> {
    if let CallResult::Value(mut sum) = call(&args.pool, &args.key, Call::Incr(args.by))? {
        if !json && !io::stdout().is_terminal() {
            sum.push(b'\n');
        }
        print_value(&sum, json).map_err(|error| Failure::output(&error))?;
    }
    Ok(Answer::Yes)
}

/// The value of a key, also where this user may not write the pool.
fn read(args: &ReadArgs, key: &OsStr) -> Result<CallResult, Failure> {
    let key = key.as_bytes();
    check_key(key).map_err(Failure::Usage)?;
    let pool = open_to_read(args)?;
    let Some(reader) = pool.reader() else {
        return with_client(&pool, |store| Keyed { key, call: Call::Get }.run(store));
    };
    let value = reader.get(key).map_err(|error| Failure::from(error).in_pool(pool.path()))?;
    Ok(value.map_or(CallResult::Done(false), CallResult::Value))
}

fn call(pool: &PoolArgs, key: &OsStr, call: Call<'_>) -> Result<CallResult, Failure> {
    let key = key.as_bytes();
    check_key(key).map_err(Failure::Usage)?;
    let keyed = Keyed { key, call };
    with_client(&open_given(pool)?, |store| keyed.run(store))
}

fn done(brought: CallResult, json: bool, refused: &str) -> Result<Answer, Failure> {
    if let CallResult::Done(false) = brought {
        return no(json, refused);
    }
    if json {
        print_line(json!({ "done": true }))?;
    }
    Ok(Answer::Yes)
}

fn no(json: bool, reason: &str) -> Result<Answer, Failure> {
    if json {
        print_line(json!({ "done": false, "reason": reason }))?;
    } else {
        eprint_line(format_args!("swarm: {reason}"));
    }
    Ok(Answer::No)
}

/// The value on the command line or, for `-`, on standard input. Behind `--` it is what it is.
fn value(argument: &OsStr) -> Result<Vec<u8>, Failure> {
    let mut value = argument.as_bytes().to_vec();
    let is_literal = || std::env::args_os().any(|argument| argument == "--");
    if value == b"-" && !is_literal() {
        value.clear();
        io::stdin()
            .take(MAX_VALUE as u64 + 1)
            .read_to_end(&mut value)
            .map_err(|error| Failure::because("cannot read the value", error))?;
    }
    check_value(&value).map_err(Failure::Usage)?;
    Ok(value)
}

/// Prints the bytes as they are, so that they can be piped on. A terminal gets a newline, and what it would take for an order
/// escaped.
fn print_value(value: &[u8], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        return writeln!(out, "{}", describe(value));
    }
    if out.is_terminal() {
        out.write_all(&for_terminal(value))?;
        out.write_all(b"\n")?;
    } else {
        out.write_all(value)?;
    }
    out.flush()
}

fn describe(value: &[u8]) -> Value {
    let mut object = Map::from_iter([("done".to_owned(), json!(true))]);
    put_bytes(&mut object, "value", value);
    Value::Object(object)
}

/// Adds bytes under `name` if they are text and in hexadecimal under `name_hex` otherwise.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), json!(text)),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{name}_hex"), json!(hex))
        }
    };
}

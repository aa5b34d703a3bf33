//! `swarm watch`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use swarm_worker::store::with_client;

use crate::commands::keys::put_bytes;
use crate::common::args::PoolArgs;
use crate::common::escape::escape;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::limits::check_key;
use crate::common::pool::open_given;
use crate::common::units::parse_duration;

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

/// Prints a key's value, and again each time that it changes.
pub(crate) fn run(args: &WatchArgs, json: bool) -> Result<Answer, Failure> {
    let key = args.key.as_bytes();
    check_key(key).map_err(Failure::Usage)?;
    let pool = open_given(&args.pool)?;
    let (mut changes, mut printed) = (None::<u64>, Ok(()));
    with_client(&pool, |store| {
        let each = |value: Option<&[u8]>| {
            printed = print(value, json);
            // The first one is what was there.
            let so_far = changes.map_or(0, |changes| changes + 1);
            changes = Some(so_far);
            match printed.is_err() || args.changes.is_some_and(|wanted| so_far >= wanted) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        Ok(store.watch(key, args.timeout, each)?)
    })?;
    printed?;
    let changes = changes.unwrap_or(0);
    if args.changes.is_some_and(|wanted| changes < wanted) {
        eprint_line("swarm: the key did not change so often within the time");
        return Ok(Answer::No);
    }
    Ok(Answer::Yes)
}

/// Prints a value on a line of its own.
fn print(value: Option<&[u8]>, json: bool) -> Result<(), Failure> {
    if json {
        let mut object = Map::from_iter([("there".to_owned(), json!(value.is_some()))]);
        value.into_iter().for_each(|value| put_bytes(&mut object, "value", value));
        return print_line(Value::Object(object));
    }
    let Some(value) = value else {
        eprint_line("swarm: there is no such key");
        return Ok(());
    };
    let mut line = Vec::new();
    escape(value, &mut line);
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))
}

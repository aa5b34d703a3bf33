//! `swarm restore`: the keys and values of a backup, into any pool.
//!
//! The invariant: *no key of a block is stored before all of the block was read and found whole*; of a regular file, before
//! all of the backup was.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use swarm_kv::{Cursor, block_on};
use swarm_worker::backup::{Bad, Decoder, Pairs};
use swarm_worker::store::{Store, block_on_all, with_client};

use crate::commands::backup::{Input, left_until, progress};
use crate::common::args::PoolArgs;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pace::Pace;
use crate::common::pool::open_given;
use crate::common::units::count;

pub(crate) const HELP: &str = "The pool may have any number of nodes and any capacity that the keys fit in. A pool that has \
keys is refused: with --merge those of the backup get the backup's values, and the others stay. Keys expire when they would have; \
those that have are left out. A regular file is gone \
over as a whole before anything is stored; of a pipe each block is, and what was stored before a bad one stays, and is \
reported. What was interrupted can be restored again, with --merge.

Examples:
  swarm restore pool.backup /dev/shm/new
  zstd -d < pool.backup.zst | swarm restore - /dev/shm/new";

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

/// Keys that are put at a time.
const TOGETHER: usize = 256;
/// Of those that expire, so many are in flight.
const LANES: usize = 16;

/// Puts the keys and values of a backup.
pub(crate) fn run(args: &RestoreArgs, json: bool) -> Result<Answer, Failure> {
    let input = Input::open(&args.file)?;
    if input.length().is_some() {
        let bad = |bad| failed(&input, bad, 0);
        input.counts_of_whole().map_err(bad)?;
        input.rewind().map_err(|why| input.cannot_read(why))?;
    }
    let pool = open_given(&args.pool)?;
    let pace = Pace::new(args.rate);
    let (stored, expired) = Default::default();
    let mut restore = Restore { input: &input, pace, stored, expired, refused: false };
    let done = with_client(&pool, |store| {
        if !args.merge && has_keys(store)? {
            return Err(has_some(&args.pool.pool));
        }
        restore.all(store)
    });
    let stored = restore.stored.get();
    done.map_err(|failure| match restore.refused {
        true => failure.and(&format!("{}; restore again with --merge", so_far(stored))),
        false => failure,
    })?;
    let expired = restore.expired;
    if json {
        print_line(json!({ "keys": stored, "expired": expired }))?;
    } else if expired == 0 {
        eprint_line(count(stored, "key"));
    } else {
        eprint_line(format_args!("{}; {expired} more had expired", count(stored, "key")));
    }
    Ok(Answer::Yes)
}

/// Whether there is a key.
fn has_keys(store: &Store<'_>) -> Result<bool, Failure> {
    let (mut cursor, mut any) = (Cursor::new(), false);
    while !any && block_on(store.next_keys(&mut cursor, |_, _, _| any = true))? {}
    Ok(any)
}

fn has_some(pool: &Path) -> Failure {
    Failure::Failed(format!(
        "{} has keys, and nothing was stored; restore into a new pool, or with --merge, which gives keys that both have the \
         backup's values and leaves the others as they are",
        pool.display()
    ))
}

/// A backup is refused of which so many keys are stored.
fn failed(input: &Input, bad: Bad, stored: u64) -> Failure {
    let failure = match bad {
        Bad::Unreadable(why) => input.cannot_read(why),
        bad => Failure::Failed(format!("{} {bad}", input.name())),
    };
    failure.and(&so_far(stored))
}

fn so_far(stored: u64) -> String {
    match stored {
        0 => "nothing was stored".to_owned(),
        1 => "1 key before that is stored".to_owned(),
        stored => format!("{stored} keys before that are stored"),
    }
}

/// Puts these pairs, to expire at their deadlines, except for those that have. Returns how many have.
fn put_expiring(store: &Store<'_>, pairs: &[(&[u8], &[u8], Option<u64>)]) -> Result<u64, Failure> {
    let (rest, expired) = (RefCell::new(pairs.iter()), Cell::new(0));
    let lanes = (0..LANES.min(pairs.len())).map(|_| async {
        loop {
            let Some((key, value, expires)) = rest.borrow_mut().next() else {
                return Ok::<(), Failure>(());
            };
            match expires.and_then(left_until) {
                Some(left) => store.put_with_ttl(key, value, left).await?,
                None => expired.set(expired.get() + 1),
            }
        }
    });
    block_on_all(lanes.collect())?;
    Ok(expired.get())
}

/// A backup on its way into a pool.
struct Restore<'i> {
    input: &'i Input,
    pace: Pace,
    stored: Cell<u64>,
    /// Keys that were left out, as they have expired since the backup.
    expired: u64,
    /// Whether the store did not take something.
    refused: bool,
}

impl Restore<'_> {
    fn all(&mut self, store: &Store<'_>) -> Result<(), Failure> {
        let input = self.input;
        let bar = progress(input.length());
        let bad = |stored: &Cell<u64>, bad| failed(input, bad, stored.get());
        let mut decoder = Decoder::new(input.bytes()).map_err(|it| bad(&self.stored, it))?;
        loop {
            self.set_last_words();
            // The next block may be long in coming.
            store.rest();
            let block = decoder.next_block().map_err(|it| bad(&self.stored, it))?;
            let Some(pairs) = block else { break };
            let stored = self.block(store, pairs);
            self.refused = stored.is_err();
            stored?;
            bar.set_position(decoder.bytes_read());
            bar.set_message(count(self.stored.get(), "key"));
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn block(&mut self, store: &Store<'_>, pairs: Pairs<'_>) -> Result<(), Failure> {
        let is_endless = |(.., expires): &(_, _, Option<u64>)| expires.is_none();
        let (endless, expiring): (Vec<_>, Vec<_>) = pairs.partition(is_endless);
        let (keys, values): (Vec<_>, Vec<_>) =
            endless.into_iter().map(|(key, value, _)| (key, value)).unzip();
        let together = self.pace.together(TOGETHER);
        for (keys, values) in keys.chunks(together).zip(values.chunks(together)) {
            block_on(store.put_many(keys, values))?;
            self.are_stored(store, keys.len() as u64);
        }
        for pairs in expiring.chunks(together) {
            let expired = put_expiring(store, pairs)?;
            self.expired += expired;
            self.are_stored(store, pairs.len() as u64 - expired);
        }
        Ok(())
    }

    fn are_stored(&mut self, store: &Store<'_>, more: u64) {
        self.stored.set(self.stored.get() + more);
        self.set_last_words();
        self.pace.keep(more, || store.rest());
    }

    /// What is printed if a signal ends it now.
    fn set_last_words(&self) {
        let stored = count(self.stored.get(), "key");
        cleanup::set_last_words(format!(
            "swarm: interrupted: {stored} of the backup are stored, of the next {TOGETHER} any may be; restore it again \
             with --merge to have all"
        ));
    }
}

//! `swarm backup`: all keys and values in a file of its own format, and whether such a file is whole.
//!
//! Keys are encoded in memory while their buckets are gone over, and written in between: a pipe that is slow, or a pace that
//! is kept, holds nothing of the pool back.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use swarm_kv::{Cursor, block_on};
use swarm_worker::backup::{Bad, Counts, Decoder, Encoder};
use swarm_worker::store::{Store, with_client};

use crate::common::args::PoolArgs;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::output::Place;
use crate::common::pace::Pace;
use crate::common::pool::open_given;
use crate::common::units::{count, show_size};

pub(crate) const HELP: &str = "Clients may work meanwhile. Each key is there with a value that it had while the backup was \
made, or is not there if it was absent then; keys are not all of one moment. FILE is written under another name and \
renamed when it is whole, so that an older backup stays until then. With `-` it goes to standard output, and whatever \
reads that has to look at the exit status, or to verify it.

Exit status: 0 done, or the file is whole; 1 --verify found it damaged or cut off; 2 wrong usage; 3 failure; 130 \
interrupted (Ctrl-C).

Examples:
  swarm backup /dev/shm/pool pool.backup
  swarm backup --verify pool.backup
  swarm backup /dev/shm/pool - | ssh host swarm restore - /dev/shm/pool";

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

/// Makes a backup, or looks at one.
pub(crate) fn run(args: &BackupArgs, json: bool) -> Result<Answer, Failure> {
    if let Some(file) = &args.verify {
        return verify(file, json);
    }
    let (Some(pool), Some(file)) = (&args.pool, &args.file) else {
        return Err(Failure::Usage("a backup is of a POOL and goes to a FILE".to_owned()));
    };
    // What cannot be written to is reported before anything else.
    let output = Output::open(file, json)?;
    let pool = open_given(&PoolArgs { pool: pool.clone(), degraded: args.degraded })?;
    let buckets = pool.geometry().first_buckets() as u64;
    let bar = bar(buckets, "{wide_bar} {percent} %, {msg} keys {eta}");
    let counts = with_client(&pool, |store| {
        let mut to = output.to();
        write_all(store, &mut *to, &output, Pace::new(args.rate), &bar)
    })?;
    bar.finish_and_clear();
    output.keep()?;
    if json {
        print_line(json!({ "keys": counts.keys, "bytes": counts.bytes }))?;
    } else {
        eprint_line(text(counts));
    }
    Ok(Answer::Yes)
}

/// Where a backup goes.
enum Output {
    Standard,
    File(Place, PathBuf),
}

impl Output {
    fn open(path: &Path, json: bool) -> Result<Self, Failure> {
        if path.as_os_str() != "-" {
            let place = Place::find(path).map_err(|error| cannot_write(path, error))?;
            return Ok(Self::File(place, path.to_owned()));
        }
        if io::stdout().is_terminal() {
            return Err(Failure::Usage("a backup is no text: give a file, or a pipe".to_owned()));
        }
        if json {
            return Err(Failure::Usage(
                "the backup itself goes to standard output: --json has no place there".to_owned(),
            ));
        }
        Ok(Self::Standard)
    }

    fn to(&self) -> Box<dyn Write + '_> {
        match self {
            Self::Standard => Box::new(io::stdout().lock()),
            Self::File(place, _) => Box::new(place.file()),
        }
    }

    /// What could not be written is no backup, also where nobody reads on.
    fn failed(&self, error: io::Error) -> Failure {
        match self {
            Self::Standard => Failure::because("cannot write the backup to standard output", error),
            Self::File(_, path) => cannot_write(path, error),
        }
    }

    fn keep(self) -> Result<(), Failure> {
        match self {
            Self::Standard => Ok(()),
            Self::File(place, path) => {
                place.keep_for_good().map_err(|error| cannot_write(&path, error))
            }
        }
    }

    /// What is printed if a signal ends it when so many keys are encoded.
    fn interrupted_at(&self, keys: u64) -> String {
        let keys = count(keys, "key");
        match self {
            Self::File(Place::Beside(..), path) => format!(
                "swarm: interrupted behind {keys}: no backup was made, and {} is as it was",
                path.display()
            ),
            _ => format!(
                "swarm: interrupted behind {keys}: what was written has no end mark, and is refused"
            ),
        }
    }
}

fn cannot_write(path: &Path, why: io::Error) -> Failure {
    Failure::because(format!("cannot write {}", path.display()), why)
}

/// Writes all keys and values of a store.
fn write_all(
    store: &Store<'_>,
    to: &mut dyn Write,
    output: &Output,
    mut pace: Pace,
    bar: &ProgressBar,
) -> Result<Counts, Failure> {
    let mut encoder = Encoder::new(rand::random(), now());
    let mut cursor = Cursor::new();
    loop {
        let before = encoder.counts().keys;
        cleanup::set_last_words(output.interrupted_at(before));
        let push = |key: &[u8], value: &[u8], left: Option<Duration>| {
            encoder.push(key, value, left.map(expires_after));
        };
        let goes_on = block_on(store.next_keys(&mut cursor, push))?;
        if !goes_on {
            encoder.end(now());
        }
        let whole = encoder.whole();
        if !whole.is_empty() {
            store.rest();
            to.write_all(whole).map_err(|error| output.failed(error))?;
            encoder.written();
        }
        let counts = encoder.counts();
        bar.set_position(cursor.done() as u64);
        bar.set_message(counts.keys.to_string());
        if !goes_on {
            to.flush().map_err(|error| output.failed(error))?;
            return Ok(counts);
        }
        pace.keep(counts.keys - before, || store.rest());
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// When something expires that is there for so long yet, in nanoseconds since 1970: a time that every pool's clock can be
/// compared with.
pub(crate) fn expires_after(left: Duration) -> u64 {
    now().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
}

/// How long something is there yet that expires at this time. `None` if it has expired.
pub(crate) fn left_until(expires: u64) -> Option<Duration> {
    expires.checked_sub(now()).filter(|left| *left > 0).map(Duration::from_nanos)
}

/// Says whether a backup is whole.
fn verify(path: &Path, json: bool) -> Result<Answer, Failure> {
    let input = Input::open(path)?;
    let bad = match input.counts_of_whole() {
        Ok((counts, begun)) => {
            if json {
                let Counts { keys, bytes } = counts;
                print_line(
                    json!({ "whole": true, "keys": keys, "bytes": bytes, "begun_ns": begun }),
                )?;
            } else {
                print_line(format_args!("whole: {}", text(counts)))?;
            }
            return Ok(Answer::Yes);
        }
        Err(Bad::Unreadable(why)) => return Err(input.cannot_read(why)),
        Err(bad) => bad,
    };
    if json {
        let (position, why) = (bad.position(), format!("it {bad}"));
        print_line(json!({
            "whole": false,
            "why": why,
            "block": position.map(|position| position.block),
            "byte": position.map(|position| position.byte),
        }))?;
    } else {
        eprint_line(format_args!("swarm: {} {bad}", input.name()));
    }
    Ok(Answer::No)
}

/// Where a backup comes from.
pub(crate) struct Input {
    /// `None`: standard input.
    file: Option<File>,
    path: PathBuf,
    /// Its length, if it is a file that can be gone over several times.
    length: Option<u64>,
}

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let path = path.to_owned();
        if path.as_os_str() == "-" {
            return Ok(Self { file: None, path, length: None });
        }
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
        let (meta, file) = opened
            .map_err(|why| Failure::because(format!("cannot read {}", path.display()), why))?;
        if meta.is_dir() {
            return Err(Failure::Failed(format!(
                "{} is a directory, and no backup",
                path.display()
            )));
        }
        Ok(Self { file: Some(file), path, length: meta.is_file().then_some(meta.len()) })
    }

    /// Its length, if it is a regular file.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Its bytes from where it stands on.
    pub(crate) fn bytes(&self) -> Box<dyn Read + '_> {
        match &self.file {
            Some(file) => Box::new(file),
            None => Box::new(io::stdin().lock()),
        }
    }

    /// From its beginning on again.
    pub(crate) fn rewind(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |mut file| io::Seek::rewind(&mut file))
    }

    pub(crate) fn name(&self) -> String {
        match &self.file {
            Some(_) => self.path.display().to_string(),
            None => "the backup on standard input".to_owned(),
        }
    }

    pub(crate) fn cannot_read(&self, why: io::Error) -> Failure {
        Failure::because(format!("cannot read {}", self.name()), why)
    }

    /// Goes over all of it: what there is, and when it was begun, if it is whole.
    pub(crate) fn counts_of_whole(&self) -> Result<(Counts, u64), Bad> {
        let bar = progress(self.length);
        let mut decoder = Decoder::new(self.bytes())?;
        while decoder.next_block()?.is_some() {
            bar.set_position(decoder.bytes_read());
        }
        bar.finish_and_clear();
        Ok((decoder.counts(), decoder.begun()))
    }
}

/// How much of a backup was read.
pub(crate) fn progress(length: Option<u64>) -> ProgressBar {
    match length {
        Some(length) => bar(length, "{wide_bar} {bytes}/{total_bytes} {eta}"),
        None => ProgressBar::new_spinner(),
    }
}

/// How much there is, for people.
pub(crate) fn text(Counts { keys, bytes }: Counts) -> String {
    format!("{}, {}", count(keys, "key"), show_size(bytes))
}

/// A progress bar; it shows on a terminal only.
fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("templates here are well-formed");
    ProgressBar::new(length).with_style(style)
}

//! A configuration that is changed while it is in use: a program that uses it sleeps until it changes.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin config-watch /dev/shm/pool
//! ```
//!
//! All of it is one value, so that nobody sees half of a change. A program that watches may miss a configuration that was soon replaced, and never the last one.
//! A task that watches has one of the handle's clients while it looks, and none while it sleeps; a thread sleeps for it.
//!
//! Here tasks and a thread watch while another process would change it, and each checks what it sees.

use std::error::Error;
use std::time::Duration;

use swarm_kv::Store;
use tokio::task::JoinSet;

const WATCHERS: usize = 8;
const CHANGES: u64 = 200;
const KEY: &[u8] = b"config:service";

/// A configuration, as text: lines of names and values.
#[derive(Debug)]
struct Config {
    version: u64,
    workers: u64,
    queue: u64,
}

impl Config {
    /// A queue is ten times as long as there are workers.
    fn new(version: u64) -> Self {
        let workers = 1 + version % 7;
        Self { version, workers, queue: 10 * workers }
    }

    fn text(&self) -> String {
        format!("version {}\nworkers {}\nqueue {}\n", self.version, self.workers, self.queue)
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            line.ok_or(format!("no {name} in {text:?}"))
        };
        Ok(Self {
            version: number("version")?,
            workers: number("workers")?,
            queue: number("queue")?,
        })
    }

    /// Checks what is seen after the configuration of that version.
    fn follows(&self, last: u64) -> Result<(), String> {
        let is_whole = self.queue == 10 * self.workers;
        if is_whole && self.version > last { Ok(()) } else { Err(format!("{self:?} after {last}")) }
    }
}

/// Uses the configuration until the last one is there. Returns how many it has seen.
async fn uses(store: Store) -> Result<u64, String> {
    let mut watch = store.watch(KEY);
    let (mut seen, mut last) = (0, 0);
    while last < CHANGES {
        let value = watch.changed().await.map_err(|error| error.to_string())?;
        let Some(value) = value else { continue };
        let config = Config::parse(&value)?;
        config.follows(last)?;
        (seen, last) = (seen + 1, config.version);
    }
    Ok(seen)
}

/// The same in a thread: a program without `async`.
fn uses_in_a_thread(store: &Store) -> Result<u64, String> {
    let store = store.blocking();
    let mut watch = store.watch(KEY);
    let (mut seen, mut last) = (0, 0);
    while last < CHANGES {
        let value = watch.changed().map_err(|error| error.to_string())?;
        let Some(value) = value else { continue };
        let config = Config::parse(&value)?;
        config.follows(last)?;
        (seen, last) = (seen + 1, config.version);
    }
    Ok(seen)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: config-watch POOL")?;
    let store = Store::open(pool)?;
    store.delete(KEY).await?;
    let mut tasks = JoinSet::new();
    for _ in 0..WATCHERS {
        tasks.spawn(uses(store.clone()));
    }
    let in_a_thread = store.clone();
    tasks.spawn_blocking(move || uses_in_a_thread(&in_a_thread));
    for version in 1..=CHANGES {
        store.put(KEY, Config::new(version).text().as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut seen = Vec::new();
    while let Some(watcher) = tasks.join_next().await {
        seen.push(watcher??);
    }
    let (least, most) = (seen.iter().min().unwrap_or(&0), seen.iter().max().unwrap_or(&0));
    println!(
        "{} watchers saw the last of {CHANGES} configurations, and {least} to {most} of them",
        seen.len()
    );
    Ok(())
}

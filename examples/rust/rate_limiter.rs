//! A rate limiter that processes share: so many requests at once, and so many a second.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin rate-limiter /dev/shm/pool
//! ```
//!
//! It is a token bucket whose state is one value: how many tokens there are, and as of when. `update_with` changes both as a whole: nobody holds
//! anything meanwhile, so that nothing has to be released or taken over, whichever process is killed.
//!
//! This program asks for tokens in four threads, each as another process would, and checks that no more are had than may be.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use swarm_kv::Store;

const CLIENTS: usize = 4;
/// Requests that may be made at once.
const BURST: f64 = 50.0;
/// Requests a second.
const RATE: f64 = 500.0;
const BUCKET: &[u8] = b"limits:requests";
/// For how long they are made.
const LASTS: Duration = Duration::from_secs(1);

/// How many tokens there are, and when that was so, in nanoseconds: 16 bytes.
fn parse(bucket: Option<&[u8]>, now: u64) -> (f64, u64) {
    let full = (BURST, now);
    let Some((tokens, at)) = bucket.and_then(|bucket| bucket.split_first_chunk::<8>()) else {
        return full;
    };
    let Ok(at) = at.try_into() else { return full };
    (f64::from_le_bytes(*tokens), u64::from_le_bytes(at))
}

/// Nanoseconds that processes agree on, more or less.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Takes a token if there is one. Returns how long to wait for one otherwise.
fn take(store: &Store) -> Result<Result<(), Duration>, swarm_kv::Error> {
    let now = now();
    let mut answer = Ok(());
    store.blocking().update_with(BUCKET, |bucket| {
        let (tokens, at) = parse(bucket, now);
        // Clocks of others may be ahead: time does not go back.
        let now = now.max(at);
        let tokens = (tokens + (now - at) as f64 * RATE / 1e9).min(BURST);
        // The answer of the last call counts: this is called again if another change came first.
        let left = if tokens >= 1.0 {
            answer = Ok(());
            tokens - 1.0
        } else {
            answer = Err(Duration::from_secs_f64((1.0 - tokens) / RATE));
            tokens
        };
        Some([left.to_le_bytes(), now.to_le_bytes()].concat())
    })?;
    Ok(answer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: rate-limiter POOL")?;
    let store = Store::open(pool)?;
    store.blocking().delete(BUCKET)?;
    let (began, first) = (Instant::now(), now());
    let asks = || -> Result<(u32, u32), swarm_kv::Error> {
        let (mut granted, mut refused) = (0, 0);
        while began.elapsed() < LASTS {
            match take(&store)? {
                Ok(()) => granted += 1,
                Err(wait) => {
                    refused += 1;
                    thread::sleep(wait);
                }
            }
        }
        Ok((granted, refused))
    };
    let answers = thread::scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| threads.spawn(asks)).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let granted: u32 = answers.iter().map(|(granted, _)| granted).sum();
    let refused: u32 = answers.iter().map(|(_, refused)| refused).sum();
    // As many as that time has brought, by the clocks that the bucket goes by.
    let (_, last) = parse(store.blocking().get(BUCKET)?.as_deref(), first);
    let most = BURST + RATE * last.saturating_sub(first) as f64 / 1e9;
    if f64::from(granted) > most || f64::from(granted) < BURST {
        return Err(format!("{granted} requests were made, and {most:.0} may be").into());
    }
    println!(
        "{CLIENTS} clients made {granted} requests, {most:.0} at most; {refused} times one had to wait"
    );
    Ok(())
}

//! Leader election: of several processes one leads, and the next one does once it has ended, however that came about.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin leader-election /dev/shm/pool
//! ```
//!
//! Candidates wait for a lock; the one that holds it leads. The lock's token counts the leaders. A leader that was stopped, and evicted meanwhile,
//! does not know that it leads no more: so what it writes has its token, and a receiver that has seen a larger one refuses it.
//!
//! This program starts three candidates, kills each one that leads, and checks that another one does, with a larger token.

use std::collections::HashMap;
use std::error::Error;
use std::os::unix::process::parent_id;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use swarm_kv::Store;

const CANDIDATES: usize = 3;
/// Leaders that are killed.
const KILLS: usize = 5;
/// Held by the leader.
const LEADERSHIP: &[u8] = b"election:leader";
/// What the leader writes: its token, its process, and how often it has written.
const STATE: &[u8] = b"election:state";
/// Is there once the candidates are to end.
const OVER: &[u8] = b"election:over";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [pool] => kills_leaders(pool),
        [pool, "candidate"] => is_candidate(&Store::open(pool)?),
        _ => Err("usage: leader-election POOL".into()),
    }
}

/// What a leader wrote.
fn parse(state: &[u8]) -> Option<(u64, u32, u64)> {
    let text = std::str::from_utf8(state).ok()?;
    let mut words = text.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Waits until it leads, and leads until it is over, or another one leads.
fn is_candidate(store: &Store) -> Result<(), Box<dyn Error>> {
    let store = store.blocking();
    let over = store.with_lock(LEADERSHIP, None, |token| -> Result<(), swarm_kv::Error> {
        let me = std::process::id();
        let parent = parent_id();
        while store.get(OVER)?.is_none() && parent_id() == parent {
            let mut is_fenced = false;
            store.update_with(STATE, |old| {
                let (newest, _, times) = old.and_then(parse).unwrap_or_default();
                is_fenced = newest > token;
                let kept = || old.map(<[u8]>::to_vec);
                if is_fenced { kept() } else { Some(format!("{token} {me} {}", times + 1).into()) }
            })?;
            if is_fenced {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })?;
    Ok(over.expect("it waits for as long as it takes")?)
}

fn kills_leaders(pool: &str) -> Result<(), Box<dyn Error>> {
    let store = Store::open(pool)?;
    let store = store.blocking();
    for key in [STATE, OVER] {
        store.delete(key)?;
    }
    let program = std::env::current_exe()?;
    let start = || Command::new(&program).args([pool, "candidate"]).spawn();
    let mut candidates = HashMap::<u32, Child>::new();
    for _ in 0..CANDIDATES {
        let child = start()?;
        candidates.insert(child.id(), child);
    }
    // Each leader in turn, by what it writes: its token is larger than those of all before it.
    let (mut leaders, mut watch) = (Vec::new(), store.watch(STATE));
    while leaders.len() <= KILLS {
        let state = watch.changed_within(Duration::from_secs(60))?.ok_or("nobody leads")?;
        let Some((token, process, _)) = state.as_deref().and_then(parse) else { continue };
        let last = leaders.last().copied().unwrap_or_default();
        if token < last {
            return Err(format!("leader {token} wrote after leader {last}").into());
        }
        if token == last {
            continue;
        }
        println!("leader {token} is process {process}");
        leaders.push(token);
        if leaders.len() <= KILLS {
            let mut leader = candidates.remove(&process).ok_or("a leader that was killed")?;
            leader.kill()?;
            leader.wait()?;
            let child = start()?;
            candidates.insert(child.id(), child);
        }
    }
    store.put(OVER, b"")?;
    for child in candidates.values_mut() {
        if !child.wait()?.success() {
            return Err("a candidate failed".into());
        }
    }
    println!("{KILLS} leaders were killed, and each was followed by another one");
    Ok(())
}

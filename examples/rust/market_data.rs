//! Market data: one process writes the newest quote of each symbol, and any number of processes read them.
//!
//! ```sh
//! cargo build --release --manifest-path examples/Cargo.toml
//! cargo run --release -- create /dev/shm/pool
//! examples/target/release/market-data read /dev/shm/pool &
//! examples/target/release/market-data read /dev/shm/pool &
//! examples/target/release/market-data write /dev/shm/pool
//! ```
//!
//! A reader sees each quote whole, and none that is older than one that it, or any other reader, has seen before. The
//! writer may be killed at any time: each symbol keeps its old or its new quote, and the next writer continues.

use std::error::Error;
use std::thread;
use std::time::Duration;

use swarm_kv::Store;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SYMBOLS: [&str; 4] = ["quote:AAA", "quote:BBB", "quote:CCC", "quote:DDD"];
/// Holds the number of the last quote of each symbol, from the end of the day on.
const CLOSE: &[u8] = b"market:close";
const QUOTES: u64 = 50_000;

/// A value: 32 bytes, in the byte order of any reader's language.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Quote {
    /// Counts the quotes of this symbol.
    number: U64,
    /// In ten-thousandths.
    bid: I64,
    ask: I64,
    bid_size: U32,
    ask_size: U32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", pool] => write(&Store::open(pool)?),
        ["read", pool] => read(&Store::open(pool)?),
        _ => Err("usage: market-data write|read POOL".into()),
    }
}

fn write(store: &Store) -> Result<(), Box<dyn Error>> {
    let store = store.blocking();
    store.delete(CLOSE)?;
    // Continues where an earlier writer ended, or was killed.
    let mut before = 0;
    for symbol in SYMBOLS {
        let quote = store.get_plain::<Quote>(symbol.as_bytes())?;
        before = quote.map_or(0, |quote| quote.number.get()).max(before);
    }
    let last = before + QUOTES;
    for number in before + 1..=last {
        for (at, symbol) in (0_i64..).zip(SYMBOLS) {
            let bid = 1_000_000 * (at + 1) + (number % 1_000) as i64;
            let quote = Quote {
                number: number.into(),
                bid: bid.into(),
                ask: (bid + 100).into(),
                bid_size: 200.into(),
                ask_size: 300.into(),
            };
            store.put_plain(symbol.as_bytes(), &quote)?;
        }
    }
    store.put_plain(CLOSE, &U64::new(last))?;
    println!("wrote {QUOTES} quotes of {} symbols", SYMBOLS.len());
    Ok(())
}

fn read(store: &Store) -> Result<(), Box<dyn Error>> {
    let store = store.blocking();
    let mut newest = [0; SYMBOLS.len()];
    let mut seen = 0;
    loop {
        // What is read after the close was written shows everything that was written before.
        let close = store.get_plain::<U64>(CLOSE)?.map(U64::get);
        for (newest, symbol) in newest.iter_mut().zip(SYMBOLS) {
            let Some(quote) = store.get_plain::<Quote>(symbol.as_bytes())? else { continue };
            let (number, spread) = (quote.number.get(), quote.ask.get() - quote.bid.get());
            if number < *newest || spread != 100 || close.is_some_and(|last| number < last) {
                return Err(format!("{symbol}: quote {number} after {newest} is wrong").into());
            }
            seen += u64::from(number > *newest);
            *newest = number;
        }
        if let Some(last) = close {
            println!("read {seen} new quotes up to number {last}; none was torn or out of order");
            return Ok(());
        }
        thread::sleep(Duration::from_micros(50));
    }
}

//! Backups: what goes in comes out; one that is changed in any way is refused, and nothing that it hands out before is wrong;
//! what is no backup is refused without a panic.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[path = "../../swarm-kv/cli/worker/src/backup.rs"]
#[allow(dead_code, reason = "a part of another crate")]
mod backup;

use backup::{Bad, Decoder, Encoder};

/// The longest value here: several make a block.
const LONG: usize = 1 << 17;

/// What happens to a file.
#[derive(Arbitrary, Debug)]
enum Change<'a> {
    Flip(u32, u8),
    Cut(u32),
    Append(&'a [u8]),
    Insert(u32, &'a [u8]),
    Remove(u32, u16),
    /// A part of it takes the place of another part.
    Copy(u32, u32, u16),
}

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// Of these keys, with values that are these bytes again and again.
    Backup {
        name: u64,
        pairs: Vec<(&'a [u8], u8, u32)>,
        changes: Vec<Change<'a>>,
    },
    Any(&'a [u8]),
}

type Pair = (Vec<u8>, Vec<u8>, Option<u64>);

fn decode(file: &[u8]) -> (Vec<Pair>, Result<(), Bad>) {
    let mut pairs = Vec::new();
    let mut decoder = match Decoder::new(Box::new(file)) {
        Ok(decoder) => decoder,
        Err(bad) => return (pairs, Err(bad)),
    };
    loop {
        match decoder.next_block() {
            Ok(Some(block)) => {
                pairs.extend(block.map(|(key, value, expires)| (key.to_vec(), value.to_vec(), expires)))
            }
            Ok(None) => return (pairs, Ok(())),
            Err(bad) => {
                assert!(bad.position().is_none_or(|position| position.byte <= file.len() as u64), "{bad}");
                return (pairs, Err(bad));
            }
        }
    }
}

fn encode(name: u64, pairs: &[Pair]) -> Vec<u8> {
    let mut encoder = Encoder::new(name, 0);
    let mut file = Vec::new();
    for (key, value, expires) in pairs {
        encoder.push(key, value, *expires);
        file.extend_from_slice(encoder.whole());
        encoder.written();
    }
    encoder.end(0);
    file.extend_from_slice(encoder.whole());
    file
}

fn change(file: &mut Vec<u8>, change: &Change<'_>) {
    let within = |at: u32, file: &[u8]| at as usize % (file.len() + 1);
    match *change {
        Change::Flip(at, bits) => {
            let at = within(at, file);
            if let Some(byte) = file.get_mut(at) {
                *byte ^= bits;
            }
        }
        Change::Cut(at) => file.truncate(within(at, file)),
        Change::Append(more) => file.extend_from_slice(more),
        Change::Insert(at, more) => {
            let at = within(at, file);
            file.splice(at..at, more.iter().copied());
        }
        Change::Remove(at, length) => {
            let at = within(at, file);
            let end = file.len().min(at + usize::from(length));
            file.drain(at..end);
        }
        Change::Copy(from, to, length) => {
            let from = within(from, file);
            let to = within(to, file);
            let end = file.len().min(from + usize::from(length)).min(from + file.len() - to);
            file.copy_within(from..end, to);
        }
    }
}

fuzz_target!(|input: Input| {
    match input {
        Input::Any(file) => {
            let (pairs, end) = decode(file);
            assert!(end.is_err() || pairs.iter().all(|(key, ..)| !key.is_empty()));
        }
        Input::Backup { name, pairs, changes } => {
            let keys = pairs.into_iter().filter(|(key, ..)| (1..256).contains(&key.len()));
            let pair = |(key, byte, length): (&[u8], u8, u32)| {
                // Some expire.
                let expires = (byte % 4 == 1).then_some(u64::from(length) << 20);
                (key.to_vec(), vec![byte; length as usize % LONG], expires)
            };
            let pairs: Vec<Pair> = keys.take(64).map(pair).collect();
            let file = encode(name, &pairs);
            let (outcome, end) = decode(&file);
            assert!(end.is_ok() && outcome == pairs, "what goes in comes out");
            let mut changed = file.clone();
            changes.iter().take(8).for_each(|it| change(&mut changed, it));
            let (outcome, end) = decode(&changed);
            assert!(outcome == pairs[..outcome.len()], "what is handed out is right");
            assert_eq!(end.is_ok(), changed == file, "a change is noticed");
        }
    }
});

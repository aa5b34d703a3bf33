//! Files to import: what is taken is what the lines say, up to the first that is none; what export
//! writes of it is read again as the same.
#![no_main]

use std::collections::BTreeMap;
use std::io::BufReader;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[path = "../../swarm-kv/cli/src/common/escape.rs"]
mod escape;
#[path = "../../swarm-kv/cli/src/common/limits.rs"]
mod limits;
#[path = "../../swarm-kv/cli/src/common/lines.rs"]
mod lines;

use lines::{Lines, Pair, front};

/// What may stand in front of all.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Times that make a value or a line too long, or almost.
const HUGE: [usize; 4] = [1 << 20, (1 << 20) + 1, (1 << 21) + 511, (1 << 21) + 512];

/// A file, as it is read: with a buffer of so many bytes. One of its bytes may come often.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    buffer: u8,
    again: Option<(u16, u8)>,
    file: &'a [u8],
}

impl Input<'_> {
    fn file(&self) -> Vec<u8> {
        let mut file = self.file.to_vec();
        if let Some((at, times)) = self.again {
            let at = usize::from(at) % file.len().max(1);
            let byte = file.get(at).copied().unwrap_or(b'\t');
            let times = usize::from(times);
            let times = times.checked_sub(252).map_or(times, |huge| HUGE[huge]);
            file.splice(at..at, std::iter::repeat_n(byte, times));
        }
        file
    }

    /// Whether it is so large that a small buffer, and a second look, would take long.
    fn is_huge(&self) -> bool {
        matches!(self.again, Some((_, 252..)))
    }

    fn buffer(&self) -> usize {
        if self.is_huge() { 1 << 16 } else { 1 + usize::from(self.buffer) }
    }
}

/// The pairs up to the end, or to the line that is none; and whether that is the end.
fn read(file: &[u8], buffer: usize) -> (Vec<Pair>, bool) {
    let mut lines = Lines::new(BufReader::with_capacity(buffer, file));
    let mut pairs = Vec::new();
    loop {
        match lines.next_pair() {
            Ok(Some(pair)) => pairs.push(pair),
            end => return (pairs, end.is_ok()),
        }
    }
}

/// Whether a line is one of JSON.
fn is_json(line: &[u8]) -> bool {
    line.starts_with(b"{") && !line.contains(&b'\t')
}

/// What a line of JSON says.
fn parse_json(line: &[u8]) -> Option<Pair> {
    let mut object: BTreeMap<String, Value> = serde_json::from_slice(line).ok()?;
    let expires = match object.remove("expires_ns") {
        Some(Value::Number(number)) => Some(number.as_u64()?),
        Some(_) => return None,
        None => None,
    };
    let text = |name: &str| match object.get(name) {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(()),
        None => Ok(None),
    };
    let bytes = |name: &str| match (text(name).ok()?, text(&format!("{name}_hex")).ok()?) {
        (Some(text), None) => Some(text.clone().into_bytes()),
        (None, Some(hex)) if hex.is_ascii() && hex.len() % 2 == 0 => {
            let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
            let all: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
            all.filter(|_| !hex.contains('+'))
        }
        _ => None,
    };
    Some((bytes("key")?, bytes("value")?, expires)).filter(|_| object.len() == 2)
}

/// The same, with the whole file at hand.
fn expected(file: &[u8]) -> (Vec<Pair>, bool) {
    let mut pairs = Vec::new();
    for line in file.strip_prefix(MARK).unwrap_or(file).split_inclusive(|&byte| byte == b'\n') {
        let whole = line.strip_suffix(b"\n");
        let line = whole.unwrap_or(line);
        let pair = if is_json(line) {
            parse_json(line.strip_suffix(b"\r").filter(|_| whole.is_some()).unwrap_or(line))
        } else {
            escape::parse_line(line).ok().map(|(key, value)| (key, value, None))
        };
        match pair {
            Some(pair) if (1..256).contains(&pair.0.len()) && pair.1.len() <= 1 << 20 => {
                pairs.push(pair);
            }
            _ => return (pairs, false),
        }
    }
    (pairs, true)
}

fuzz_target!(|input: Input| {
    let file = input.file();
    let outcome = read(&file, input.buffer());
    assert!(outcome == expected(&file), "what the lines say");
    if input.is_huge() {
        return;
    }
    let (pairs, whole) = outcome;
    let (mut written, mut line) = (Vec::new(), Vec::new());
    let mut pairs = pairs;
    for (key, value, expires) in &mut pairs {
        // Lines of text have no deadline.
        *expires = None;
        escape::format_line(key, value, &mut line);
        if written.is_empty() {
            written.extend_from_slice(front(&line));
        }
        written.extend_from_slice(&line);
    }
    assert!(read(&written, 1 << 16) == (pairs, true), "what was written");
    let has_json = || file.split(|&byte| byte == b'\n').any(is_json);
    if whole
        && file.last().is_none_or(|&byte| byte == b'\n')
        && !file.starts_with(MARK)
        && !has_json()
    {
        assert!(written == file, "there is one way to write it");
    }
});

//! The file that an import reads, line by line: those of `export` and those of `export --json`, also mixed.
//!
//! A line of a key and a value holds a tab, and one of JSON never does, as JSON has an escape for it.

use std::io::{BufRead, Read};

use serde_json::{Map, Value};
use swarm_core::layout::{MAX_KEY, MAX_VALUE};

use super::escape::parse_line;
use super::limits::{check_key, check_value};

/// A line is never longer, every byte escaped.
const MAX_LINE: usize = 2 * (MAX_KEY + MAX_VALUE) + 2;
/// Nor is one of JSON, where a byte takes six at most; nothing longer is read into memory.
const MAX_JSON: usize = 6 * (MAX_KEY + MAX_VALUE) + 96;
/// What some programs put in front of text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a file begins with whose first line is this: a key that begins with such a mark would lose it otherwise.
pub(crate) fn front(first_line: &[u8]) -> &'static [u8] {
    if first_line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK } else { b"" }
}

/// A key, its value, and when it expires, if it does: in nanoseconds since 1970. A line of JSON alone says so.
pub(crate) type Pair = (Vec<u8>, Vec<u8>, Option<u64>);

/// The lines of a file.
pub(crate) struct Lines<R> {
    input: R,
    /// Whether the next one is the first.
    first: bool,
}

impl<R: BufRead> Lines<R> {
    /// Of a file from its beginning on.
    pub(crate) fn new(input: R) -> Self {
        Self { input, first: true }
    }

    /// What they are read from.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// The next line's key and value; `None` at the end.
    pub(crate) fn next_pair(&mut self) -> Result<Option<Pair>, String> {
        let mut line = Vec::new();
        let mut limited = self.input.by_ref().take(MAX_JSON as u64 + 1);
        limited.read_until(b'\n', &mut line).map_err(|e| format!("cannot read it: {e}"))?;
        if std::mem::take(&mut self.first) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            return Ok(None);
        }
        let is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
        let is_json = line.starts_with(b"{") && !line.contains(&b'\t');
        if line.len() > if is_json { MAX_JSON } else { MAX_LINE } {
            return Err("it is longer than any key and value".to_owned());
        }
        let (key, value, expires) = if is_json {
            parse_json(line.strip_suffix(b"\r").filter(|_| is_whole).unwrap_or(&line))?
        } else {
            let (key, value) = parse_line(&line).map_err(|bad| bad.to_string())?;
            (key, value, None)
        };
        check_key(&key)?;
        check_value(&value)?;
        Ok(Some((key, value, expires)))
    }
}

/// A line of `export --json`.
fn parse_json(line: &[u8]) -> Result<Pair, String> {
    let mut object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|bad| format!("it is no JSON object: {bad}"))?;
    let (key, value) = (take_bytes(&mut object, "key")?, take_bytes(&mut object, "value")?);
    let expires = match object.remove("expires_ns") {
        None => None,
        Some(expires) => Some(expires.as_u64().ok_or("expires_ns is no number of nanoseconds")?),
    };
    match object.keys().next() {
        Some(other) => Err(format!(
            "an object has a key and a value, and expires_ns if it expires, and no {other}"
        )),
        None => Ok((key, value, expires)),
    }
}

/// Bytes under `name`, as text, or in hexadecimal.
fn take_bytes(object: &mut Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let hex = format!("{name}_hex");
    match (object.remove(name), object.remove(&hex)) {
        (Some(Value::String(text)), None) => Ok(text.into_bytes()),
        (None, Some(Value::String(digits))) => {
            from_hex(&digits).ok_or_else(|| format!("{hex} is not in hexadecimal"))
        }
        (None, None) => Err(format!("there is no {name}, nor {hex}")),
        _ => Err(format!("{name} or {hex} is a string, and one of them is there")),
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let byte = |&[high, low]: &[u8; 2]| {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        Some((digit(high)? * 16 + digit(low)?) as u8)
    };
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<Pair>, String> {
        let mut lines = Lines::new(text);
        let mut pairs = Vec::new();
        while let Some(pair) = lines.next_pair()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }

    fn pair(key: &[u8], value: &[u8]) -> Pair {
        (key.to_vec(), value.to_vec(), None)
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_key() {
        let mark = BYTE_ORDER_MARK;
        let text = [mark, b"a\tb\n", mark, b"c\td"].concat();
        let second = [mark, b"c"].concat();
        assert_eq!(all(&text), Ok(vec![pair(b"a", b"b"), pair(&second, b"d")]));
        let text = [mark, b"{\"key\":\"a\",\"value\":\"b\"}"].concat();
        assert_eq!(all(&text), Ok(vec![pair(b"a", b"b")]));
        assert_eq!(all(mark), Ok(vec![]));
        let line = [mark, b"a\tb\n"].concat();
        let written = [front(&line), &line].concat();
        assert_eq!(all(&written), Ok(vec![pair(&[mark, b"a"].concat(), b"b")]));
    }

    #[test]
    fn lines_of_both_kinds_are_told_apart() {
        let text = b"{\"key\":\"t\\tab\",\"value_hex\":\"ff0A\"}\r\n{\"key\":\tv\n";
        assert_eq!(all(text), Ok(vec![pair(b"t\tab", b"\xff\n"), pair(b"{\"key\":", b"v")]));
        let text = b"{\"key\":\"k\",\"value\":\"v\",\"expires_ns\":1790000000123456789}\n";
        assert_eq!(all(text), Ok(vec![(b"k".to_vec(), b"v".to_vec(), Some(1790000000123456789))]));
        for bad in [
            "{\"key\":\"k\",\"value\":\"v\",\"expires_ns\":1.5}",
            "{\"key\":\"k\",\"value\":\"v\",\"expires_ns\":-1}",
            "{\"key\":\"k\",\"value\":\"v\",\"expires_ns\":null}",
            "{",
            "{}",
            "{\"key\":\"k\"}",
            "{\"key\":\"\",\"value\":\"v\"}",
            "{\"key\":1,\"value\":\"v\"}",
            "{\"key\":\"k\",\"value_hex\":\"f\"}",
            "{\"key\":\"k\",\"value_hex\":\"+1\"}",
            "{\"key\":\"k\",\"key_hex\":\"00\",\"value\":\"v\"}",
            "{\"key\":\"k\",\"value\":\"v\",\"done\":true}",
            "{\"key\":\"k\",\"value\":\"v\"} {",
        ] {
            assert!(all(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

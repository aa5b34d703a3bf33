//! The file that an import reads, line by line.

use std::io::{BufRead, Read};

use swarm_core::layout::{MAX_KEY, MAX_VALUE};

use super::escape::parse_line;
use super::limits::{check_key, check_value};

/// A line is never longer, every byte escaped; nothing longer is read into memory.
const MAX_LINE: usize = 2 * (MAX_KEY + MAX_VALUE) + 2;

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// The next line's key and value; `None` at the end.
pub(crate) fn next_line(input: &mut impl BufRead) -> Result<Option<Pair>, String> {
    let mut line = Vec::new();
    let limit = MAX_LINE as u64 + 1;
    input.take(limit).read_until(b'\n', &mut line).map_err(|e| format!("cannot read it: {e}"))?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE {
        return Err("it is longer than any key and value".to_owned());
    }
    let (key, value) = parse_line(&line).map_err(|bad| bad.to_string())?;
    check_key(&key)?;
    check_value(&value)?;
    Ok(Some((key, value)))
}

//! Lines of `key<TAB>value`, with backslash escapes for tab, newline, carriage return, backslash.

use std::fmt;

/// Why a line is not a key and a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadLine {
    NoTab,
    SecondTab,
    BareReturn,
    UnknownEscape,
    OpenEscape,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTab => "there is no tab between key and value",
            Self::SecondTab => "there is a second tab; write a tab in a value as \\t",
            Self::BareReturn => "there is a carriage return; write it as \\r, or take it out",
            Self::UnknownEscape => {
                "a backslash comes before something else than t, n, r and backslash"
            }
            Self::OpenEscape => "a key or value ends in a single backslash; write it as \\\\",
        })
    }
}

/// Takes a line without its newline apart.
pub(crate) fn parse_line(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), BadLine> {
    let tab = line.iter().position(|&b| b == b'\t').ok_or(BadLine::NoTab)?;
    Ok((unescape(&line[..tab])?, unescape(&line[tab + 1..])?))
}

/// Bytes as a terminal may show them: what it would take for an order, or for no text, in the form `\x1b`.
pub(crate) fn for_terminal(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut encoded = [0; 4];
    let hex = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend(bytes.iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes()));
    };
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let bytes = letter.encode_utf8(&mut encoded).as_bytes();
            if letter.is_control() && !matches!(letter, '\n' | '\t') {
                hex(&mut out, bytes);
            } else {
                out.extend(bytes);
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

/// Puts a line together, with its newline.
pub(crate) fn format_line(key: &[u8], value: &[u8], line: &mut Vec<u8>) {
    line.clear();
    escape(key, line);
    line.push(b'\t');
    escape(value, line);
    line.push(b'\n');
}

/// Puts bytes behind others, as they stand in a line.
pub(crate) fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        let letter = match byte {
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\\' => b'\\',
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.extend([b'\\', letter]);
    }
}

fn unescape(bytes: &[u8]) -> Result<Vec<u8>, BadLine> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        out.push(match byte {
            b'\\' => match rest.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                Some(_) => return Err(BadLine::UnknownEscape),
                None => return Err(BadLine::OpenEscape),
            },
            b'\t' => return Err(BadLine::SecondTab),
            b'\r' => return Err(BadLine::BareReturn),
            plain => plain,
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut line = Vec::new();
        format_line(&all, &all, &mut line);
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'));
        assert_eq!(parse_line(&line), Ok((all.clone(), all)));
    }

    /// A value could move the cursor, or worse.
    #[test]
    fn a_terminal_gets_no_orders() {
        let shown = for_terminal("gr\u{fc}n\t\n\u{1b}[2J\r\u{9b}".as_bytes());
        assert_eq!(shown, "gr\u{fc}n\t\n\\x1b[2J\\x0d\\xc2\\x9b".as_bytes());
        assert_eq!(for_terminal(b"a\xff\xc3"), b"a\\xff\\xc3");
        assert_eq!(for_terminal(b""), b"");
    }

    #[test]
    fn what_is_no_line_says_why() {
        assert_eq!(parse_line(b""), Err(BadLine::NoTab));
        assert_eq!(parse_line(b"key value"), Err(BadLine::NoTab));
        assert_eq!(parse_line(b"a\tb\tc"), Err(BadLine::SecondTab));
        assert_eq!(parse_line(b"a\tb\r"), Err(BadLine::BareReturn));
        assert_eq!(parse_line(b"a\tb\\x"), Err(BadLine::UnknownEscape));
        assert_eq!(parse_line(b"a\\\tb"), Err(BadLine::OpenEscape));
        assert_eq!(parse_line(b"a\t"), Ok((b"a".to_vec(), Vec::new())));
    }
}

//! Lines of the import format: a line that is taken is one that export writes, and says the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../swarm-kv/src/cli/escape.rs"]
mod escape;

fuzz_target!(|line: &[u8]| {
    let Ok((key, value)) = escape::parse_line(line) else { return };
    let mut written = Vec::new();
    escape::format_line(&key, &value, &mut written);
    let newline = written.pop();
    assert_eq!(newline, Some(b'\n'));
    assert!(!written.contains(&b'\n'), "one line");
    assert_eq!(escape::parse_line(&written), Ok((key, value)));
});

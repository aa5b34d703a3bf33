//! Sizes and durations as people write them.

use std::time::Duration;

/// A letter alone is of 1024, as `truncate` and mount options have it.
const SIZES: [(&str, u64); 13] = [
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

const SECOND: u64 = 1_000_000_000;
const DURATIONS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
    ("d", 86_400 * SECOND),
];

/// A number of bytes: `256MiB`, `1.5 GiB`, `64000000`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.to_lowercase().as_str() {
        "" => 1,
        unit => find(&SIZES, unit).ok_or(
            "write a number and B, KiB, MiB, GiB or TiB (or K, M, G, T), KB, MB, GB or TB",
        )?,
    };
    scale(number, factor).ok_or_else(|| "not a number of bytes that fits".to_owned())
}

/// A duration: `0ns`, `2us`, `1ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" if number.parse() == Ok(0.0) => 1,
        unit => find(&DURATIONS, unit)
            .ok_or("write a number and ns, us, ms, s, m, h or d, as in 2us")?,
    };
    scale(number, factor)
        .map(Duration::from_nanos)
        .ok_or_else(|| "not a duration that fits".to_owned())
}

/// A number of things for people: `1 line`, `2 lines`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// A number of bytes for people.
pub(crate) fn show_size(bytes: u64) -> String {
    let (name, unit) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => ("KiB", 1u64 << 10),
        0x10_0000..0x4000_0000 => ("MiB", 1 << 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 1 << 30),
        _ => ("TiB", 1 << 40),
    };
    format!("{:.1} {name}", bytes as f64 / unit as f64)
}

/// A duration for people.
pub(crate) fn show_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// A duration that may not have been measured, for people.
pub(crate) fn show_measured(ns: Option<u64>) -> String {
    ns.map_or("-".to_owned(), show_ns)
}

/// A number a second for people.
pub(crate) fn show_rate(rate: f64) -> String {
    match rate {
        r if r >= 1e6 => format!("{:.2} M op/s", r / 1e6),
        r if r >= 1e3 => format!("{:.0} k op/s", r / 1e3),
        r => format!("{r:.0} op/s"),
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn find(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor)
}

/// Whole numbers are scaled exactly, others to the nearest unit.
fn scale(number: &str, factor: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let scaled = number.parse::<f64>().ok()? * factor as f64;
    (scaled.is_finite() && scaled < u64::MAX as f64).then_some(scaled.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_units() {
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("1.5 gib"), Ok(3 << 29));
        assert_eq!(parse_size("64000000"), Ok(64_000_000));
        assert_eq!(parse_size("7KB"), Ok(7_000));
        assert_eq!((parse_size("1G"), parse_size("5m")), (Ok(1 << 30), Ok(5 << 20)));
        assert_eq!((parse_size("1TiB"), parse_size("2t")), (Ok(1 << 40), Ok(2 << 40)));
        assert_eq!([1 << 30, 3 << 40].map(show_size), ["1.0 GiB", "3.0 TiB"]);
        for bad in ["", "MiB", "-1MiB", "12 parsecs", "1e9", "99999999999999999999", "1.2.3MiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!(count(0, "line"), "0 lines");
        assert_eq!(count(1, "memory node"), "1 memory node");
        assert_eq!(count(21, "key"), "21 keys");
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("0ns"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("2us"), Ok(Duration::from_micros(2)));
        assert_eq!(parse_duration("1.5ms"), Ok(Duration::from_micros(1500)));
        for bad in ["", "2", "us", "-2us", "2 weeks"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}

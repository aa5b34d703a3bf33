//! Histories as files: each line is a JSON object, an operation.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead, Read, Write};

use serde::{Deserialize, Deserializer, Serialize};
use swarm_core::history::{Answer, Call, Operation};

use crate::Failure;

/// The longest line that is read into memory: a key and two values of maximum length, escaped.
const MAX_LINE: u64 = 16 << 20;

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Read a value.
    Get,
    /// Store a value.
    Put,
    /// Store a value under a new key.
    Insert,
    /// Replace a value.
    Update,
    /// Remove a key.
    Delete,
    /// Replace an expected value.
    #[serde(rename = "cas")]
    CompareAndSwap,
    /// Replace a value by another, and return it.
    Swap,
    /// Add to a number.
    #[serde(rename = "incr")]
    Increment,
    /// Store a value that expires.
    #[serde(rename = "put_with_ttl")]
    PutWithTtl,
    /// Let a key stay that is to expire.
    Persist,
    /// Ask whether a key expires.
    Ttl,
    /// The end of a value that expires, which nobody asks for.
    #[serde(skip_deserializing)]
    Expire,
}

impl Op {
    /// How many kinds there are.
    pub const COUNT: usize = 12;
    /// What `torture` does.
    pub const TORTURE: [Self; 10] = [
        Self::Get,
        Self::Put,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::CompareAndSwap,
        Self::Increment,
        Self::PutWithTtl,
        Self::Persist,
        Self::Ttl,
    ];

    /// Returns the kind of a call.
    pub fn of(call: Call) -> Self {
        match call {
            Call::Get => Self::Get,
            Call::Put(_) => Self::Put,
            Call::Insert(_) => Self::Insert,
            Call::Update(_) => Self::Update,
            Call::Delete => Self::Delete,
            Call::CompareAndSwap { .. } => Self::CompareAndSwap,
            Call::Swap(_) => Self::Swap,
            Call::Increment(_) => Self::Increment,
            Call::PutWithTtl { .. } => Self::PutWithTtl,
            Call::Persist => Self::Persist,
            Call::Ttl => Self::Ttl,
            Call::Expire(_) => Self::Expire,
        }
    }

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::CompareAndSwap => "cas",
            Self::Swap => "swap",
            Self::Increment => "incr",
            Self::PutWithTtl => "put_with_ttl",
            Self::Persist => "persist",
            Self::Ttl => "ttl",
            Self::Expire => "expire",
        }
    }
}

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done.
    Ok,
    /// The key did not exist, or, for a persist, did not expire.
    Absent,
    /// The key existed already; a cas found another value than it expected.
    Exists,
    /// The client got no answer.
    Unknown,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Absent, Self::Exists, Self::Unknown];

    /// Returns the outcome of an operation.
    pub fn of(op: &Operation) -> Self {
        match (op.call, op.answered) {
            (_, None) => Self::Unknown,
            (_, Some((_, Answer::Value(None) | Answer::Life(None))))
            | (Call::Update(_) | Call::Persist, Some((_, Answer::Refused))) => Self::Absent,
            (_, Some((_, Answer::Refused)))
            | (Call::CompareAndSwap { .. }, Some((_, Answer::Value(_)))) => Self::Exists,
            _ => Self::Ok,
        }
    }

    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Exists => "exists",
            Self::Unknown => "unknown",
        }
    }
}

/// An operation, as encoded in a line. All fields are required, but `expected`, which a cas has and
/// no other operation, and `ttl_ns`, which a put_with_ttl has, and no others are allowed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    client: u64,
    op: Op,
    key: String,
    #[serde(deserialize_with = "nullable")]
    value: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    expected: Option<Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ns: Option<u64>,
    call_ns: u64,
    #[serde(deserialize_with = "nullable")]
    return_ns: Option<u64>,
    outcome: Outcome,
    #[serde(deserialize_with = "nullable")]
    read: Option<String>,
}

/// What a ttl reads of a key that expires, and of one that does not.
const LIVES: [&str; 2] = ["expires", "stays"];

/// Deserializes a field that may be null but not missing: an `Option` alone would accept both.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// Deserializes a field that may be null or missing, and keeps the two apart.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Numbers for the keys or values of a history.
#[derive(Debug, Default)]
pub struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Names {
    /// Returns the number of a name.
    pub fn number(&mut self, name: String) -> u64 {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// Returns the name with a number.
    pub fn name(&self, number: u64) -> &str {
        usize::try_from(number).ok().and_then(|at| self.names.get(at)).map_or("?", |name| name)
    }
}

/// Operations, and the names of their keys and values.
#[derive(Debug, Default)]
pub struct History {
    /// The calls and their answers.
    pub operations: Vec<Operation>,
    /// The names of the keys.
    pub keys: Names,
    /// The names of the values that are no [numbers](Self::value).
    names: Names,
}

/// Values that are decimal numbers below this are their own numbers, so that they can be added to;
/// others are numbered from here on.
const FIRST_NAME: u64 = 1 << 63;

/// Returns the number that a value is, if it is a decimal number without leading zeros, and not too
/// large.
fn decimal(value: &str) -> Option<u64> {
    let canonical = value == "0" || value.starts_with(|c: char| ('1'..='9').contains(&c));
    value.parse().ok().filter(|&number| canonical && number < FIRST_NAME)
}

impl History {
    /// Encodes an operation as a line.
    pub fn line(&self, op: &Operation) -> Line {
        let name = |value| self.value_name(value).into_owned();
        let value = match op.call {
            Call::Put(value) | Call::Insert(value) | Call::Update(value) => Some(name(value)),
            Call::CompareAndSwap { new, .. } | Call::Swap(new) => new.map(name),
            Call::Increment(by) => Some(name(by)),
            Call::PutWithTtl { value, .. } | Call::Expire(value) => Some(name(value)),
            Call::Get | Call::Delete | Call::Persist | Call::Ttl => None,
        };
        let ttl_ns = if let Call::PutWithTtl { ttl, .. } = op.call { Some(ttl) } else { None };
        let expected = match op.call {
            Call::CompareAndSwap { expected, .. } => Some(expected.map(name)),
            _ => None,
        };
        let read = match op.answered {
            Some((_, Answer::Value(read))) => read.map(name),
            Some((_, Answer::Life(Some(expires)))) => Some(LIVES[usize::from(!expires)].to_owned()),
            _ => None,
        };
        Line {
            client: op.client as u64,
            op: Op::of(op.call),
            key: self.keys.name(op.key).to_owned(),
            value,
            expected,
            ttl_ns,
            call_ns: op.called,
            return_ns: op.answered.map(|(at, _)| at),
            outcome: Outcome::of(op),
            read,
        }
    }

    /// Writes all operations, in their order.
    pub fn write(&self, mut out: impl Write) -> std::io::Result<()> {
        for op in &self.operations {
            serde_json::to_writer(&mut out, &self.line(op))?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Reads a file of lines. `what` names it.
    pub fn read(mut input: impl BufRead, what: &str) -> Result<Self, Failure> {
        let mut history = Self::default();
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let length = (&mut input)
                .take(MAX_LINE)
                .read_until(b'\n', &mut line)
                .map_err(|error| Failure::because(format!("cannot read {what}"), error))?;
            if length == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let taken = if length as u64 == MAX_LINE {
                Err(format!("it is longer than {MAX_LINE} bytes"))
            } else {
                parse(&line).and_then(|line| history.take(line))
            };
            taken.map_err(|why| Failure::Failed(format!("{what}, line {number}: {why}")))?;
        }
        Ok(history)
    }

    fn take(&mut self, line: Line) -> Result<(), String> {
        let Line { client, op, key, value, expected, ttl_ns, call_ns, return_ns, outcome, read } =
            line;
        let client = usize::try_from(client).map_err(|_| "client is too large a number")?;
        if value.is_some() && matches!(op, Op::Get | Op::Delete | Op::Persist | Op::Ttl) {
            return Err(format!("{} has a value, and writes none", op.name()));
        }
        if expected.is_some() != (op == Op::CompareAndSwap) {
            return Err("a cas states what it expects, no other operation does".to_owned());
        }
        if ttl_ns.is_some() != (op == Op::PutWithTtl) {
            return Err("a put_with_ttl has ttl_ns, no other operation does".to_owned());
        }
        let answer = match (op, outcome, read) {
            (_, Outcome::Unknown, None) => None,
            (Op::Get | Op::Swap, Outcome::Ok, Some(read))
            | (Op::CompareAndSwap, Outcome::Exists, Some(read)) => {
                Some(Answer::Value(Some(self.value(read))))
            }
            (Op::Ttl, Outcome::Ok, read) => {
                let life = LIVES.iter().position(|life| Some(*life) == read.as_deref());
                let life = life.ok_or("a ttl that is ok reads expires, or stays")?;
                Some(Answer::Life(Some(life == 0)))
            }
            (Op::Ttl, Outcome::Absent, None) => Some(Answer::Life(None)),
            (Op::Increment, Outcome::Ok, Some(read)) => {
                Some(Answer::Value(Some(decimal(&read).ok_or("an incr has a sum below 2^63")?)))
            }
            (Op::Get | Op::Swap, Outcome::Ok, None) => {
                return Err(format!(
                    "a {} that is ok states what it read; of no key it is absent",
                    op.name()
                ));
            }
            (Op::Increment, Outcome::Ok, None) => {
                return Err("an incr that is ok states what it read, the sum".to_owned());
            }
            (Op::CompareAndSwap, Outcome::Exists, None) => {
                return Err("a cas that found another value states what it read".to_owned());
            }
            (_, _, Some(_)) => {
                return Err(
                    "only a get, swap, incr or ttl that is ok, or a cas that found another \
                            value, reads something"
                        .to_owned(),
                );
            }
            (Op::Get | Op::Swap | Op::CompareAndSwap, Outcome::Absent, None) => {
                Some(Answer::Value(None))
            }
            (Op::Insert, Outcome::Exists, None)
            | (Op::Update | Op::Persist, Outcome::Absent, None) => Some(Answer::Refused),
            (_, Outcome::Ok, None) => Some(Answer::Done),
            (op, outcome, None) => {
                return Err(format!("the outcome of {} is never {}", op.name(), outcome.name()));
            }
        };
        let answered = match (answer, return_ns) {
            (None, _) => None,
            (Some(_), None) => {
                return Err("an operation that never returned has the outcome unknown".to_owned());
            }
            (Some(_), Some(at)) if at < call_ns => {
                return Err("it returned before it was called".to_owned());
            }
            (Some(answer), Some(at)) => Some((at, answer)),
        };
        let by = value.as_deref().and_then(decimal);
        let new = value.map(|value| self.value(value));
        let written = || new.ok_or(format!("{} has no value", op.name()));
        let call = match op {
            Op::Get => Call::Get,
            Op::Put => Call::Put(written()?),
            Op::Insert => Call::Insert(written()?),
            Op::Update => Call::Update(written()?),
            Op::Delete => Call::Delete,
            Op::CompareAndSwap => {
                let expected = expected.flatten().map(|value| self.value(value));
                Call::CompareAndSwap { expected, new }
            }
            Op::Swap => Call::Swap(new),
            Op::Increment => Call::Increment(by.ok_or("the value of an incr is what it adds")?),
            Op::PutWithTtl => {
                Call::PutWithTtl { value: written()?, ttl: ttl_ns.unwrap_or_default() }
            }
            Op::Persist => Call::Persist,
            Op::Ttl => Call::Ttl,
            Op::Expire => return Err("nobody asks for an expire".to_owned()),
        };
        let key = self.keys.number(key);
        self.operations.push(Operation { key, client, call, called: call_ns, answered });
        Ok(())
    }

    /// Returns the number of a value.
    pub fn value(&mut self, name: String) -> u64 {
        decimal(&name).unwrap_or_else(|| FIRST_NAME + self.names.number(name))
    }

    /// Returns the value with a number.
    pub fn value_name(&self, number: u64) -> Cow<'_, str> {
        match number.checked_sub(FIRST_NAME) {
            Some(name) => Cow::Borrowed(self.names.name(name)),
            None => Cow::Owned(number.to_string()),
        }
    }
}

fn parse(line: &[u8]) -> Result<Line, String> {
    // The parser would also accept an array of the fields' values.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err("not an operation: it is no JSON object".to_owned());
    }
    serde_json::from_slice(line).map_err(|error| {
        // The parser sees one line only, so its line number is useless.
        let text = error.to_string();
        let why = text.split(" at line ").next().unwrap_or(&text);
        format!("not an operation, at column {}: {why}", error.column())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"client":1,"op":"get","key":"k","value":null,"call_ns":5,"return_ns":9,"outcome":"ok","read":"v"}"#;

    fn read(text: &[u8]) -> Result<History, String> {
        History::read(text, "it").map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = [
            GOOD,
            r#"{"client":2,"op":"insert","key":"k","value":"v","call_ns":1,"return_ns":null,"outcome":"unknown","read":null}"#,
            r#"{"client":3,"op":"update","key":"k","value":"w","call_ns":1,"return_ns":2,"outcome":"absent","read":null}"#,
            r#"{"client":3,"op":"delete","key":"\u0000","value":null,"call_ns":3,"return_ns":3,"outcome":"ok","read":null}"#,
            r#"{"client":4,"op":"cas","key":"k","value":"w","expected":null,"call_ns":3,"return_ns":4,"outcome":"exists","read":"v"}"#,
            r#"{"client":4,"op":"cas","key":"k","value":null,"expected":"v","call_ns":5,"return_ns":6,"outcome":"ok","read":null}"#,
            r#"{"client":4,"op":"swap","key":"k","value":"007","call_ns":7,"return_ns":8,"outcome":"absent","read":null}"#,
            r#"{"client":4,"op":"incr","key":"n","value":"7","call_ns":9,"return_ns":10,"outcome":"ok","read":"12"}"#,
            r#"{"client":4,"op":"put_with_ttl","key":"n","value":"7","ttl_ns":5,"call_ns":11,"return_ns":12,"outcome":"ok","read":null}"#,
            r#"{"client":4,"op":"persist","key":"n","value":null,"call_ns":13,"return_ns":14,"outcome":"absent","read":null}"#,
            r#"{"client":4,"op":"persist","key":"n","value":null,"call_ns":13,"return_ns":14,"outcome":"ok","read":null}"#,
            r#"{"client":4,"op":"ttl","key":"n","value":null,"call_ns":15,"return_ns":16,"outcome":"ok","read":"expires"}"#,
            r#"{"client":4,"op":"ttl","key":"n","value":null,"call_ns":15,"return_ns":16,"outcome":"ok","read":"stays"}"#,
            r#"{"client":4,"op":"ttl","key":"n","value":null,"call_ns":15,"return_ns":16,"outcome":"absent","read":null}"#,
            "",
        ]
        .join("\n");
        let mut again = Vec::new();
        read(text.as_bytes()).expect("it is good").write(&mut again).expect("memory is there");
        assert_eq!(String::from_utf8_lossy(&again), text);
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        for (bad, why) in [
            ("{", "line 2: not an operation"),
            ("7", "not an operation"),
            (r#"[1,"get","k",null,5,9,"ok","v"]"#, "no JSON object"),
            ("\u{fffd}", "not an operation"),
            (&GOOD[..40], "not an operation"),
            (&GOOD.replace("get", "swop"), "unknown variant"),
            (&GOOD.replace("get", "expire"), "unknown variant"),
            (&GOOD.replace("get", "ttl"), "reads expires, or stays"),
            (&GOOD.replace("get", "put_with_ttl"), "has ttl_ns"),
            (&GOOD.replace("null,", "null,\"ttl_ns\":5,"), "no other operation does"),
            (&GOOD.replace("get", "cas"), "what it expects"),
            (&GOOD.replace("null,", "null,\"expected\":null,"), "no other operation does"),
            (&GOOD.replace("get", "swap").replace("\"v\"", "null"), "what it read"),
            (&GOOD.replace("get", "incr"), "a sum below"),
            (&GOOD.replace("get", "incr").replace("\"v\"", "\"7\""), "what it adds"),
            (&GOOD.replace("get", "incr").replace("\"v\"", "null"), "the sum"),
            (
                &GOOD
                    .replace("get", "cas")
                    .replace("null,", "null,\"expected\":null,")
                    .replace("\"ok\"", "\"exists\"")
                    .replace("\"v\"", "null"),
                "found another value",
            ),
            (&GOOD.replace("\"key\":\"k\",", ""), "missing field `key`"),
            // Fields that may be null are still required.
            (&GOOD.replace("\"value\":null,", ""), "missing field `value`"),
            (&GOOD.replace("\"return_ns\":9,", ""), "missing field `return_ns`"),
            (&GOOD.replace(",\"read\":\"v\"", ""), "missing field `read`"),
            (&GOOD.replace("\"read\"", "\"reads\""), "unknown field `reads`"),
            (&GOOD.replace(":9", ":4"), "before it was called"),
            (&GOOD.replace(":9", ":-9"), "not an operation"),
            (&GOOD.replace(":9", ":null"), "never returned"),
            (&GOOD.replace("\"v\"", "null"), "what it read"),
            (&GOOD.replace("\"ok\"", "\"exists\""), "only a get"),
            (&GOOD.replace("\"ok\"", "\"absent\""), "only a get"),
            (&GOOD.replace("\"ok\"", "\"unknown\""), "only a get"),
            (&GOOD.replace("get", "put").replace("ok", "unknown"), "only a get"),
            (&GOOD.replace("\"value\":null", "\"value\":\"w\""), "get has a value"),
            (
                &GOOD
                    .replace("get", "delete")
                    .replace("\"value\":null", "\"value\":\"w\"")
                    .replace("\"v\"", "null"),
                "delete has a value",
            ),
            (&GOOD.replace("get", "put"), "only a get"),
            (&GOOD.replace("get", "put").replace("\"v\"", "null"), "has no value"),
            (
                &GOOD.replace("get", "delete").replace("\"v\"", "null").replace("ok", "absent"),
                "never absent",
            ),
        ] {
            let text = read(format!("{GOOD}\n{bad}\n").as_bytes()).expect_err(bad);
            assert!(text.contains(why) && text.contains("line 2"), "{bad}: {text}");
        }
        assert!(read(&[0xff, 0xfe, b'\n']).is_err());
        assert!(read(b"").is_ok() && read(b"\n \n").is_ok());
    }
}

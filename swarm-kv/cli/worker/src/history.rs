//! Histories as files: one JSON object a line, an operation each.

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};

use serde::{Deserialize, Deserializer, Serialize};
use swarm_core::history::{Answer, Call, Operation};

use crate::Failure;

/// Nothing longer is read into memory: a key and two values of the greatest length, escaped.
const MAX_LINE: u64 = 16 << 20;

/// What a client asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Read a value.
    Get,
    /// Store a value.
    Put,
    /// Store a value under a new key.
    Insert,
    /// Change a value.
    Update,
    /// Remove a key.
    Delete,
}

impl Op {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Get, Self::Put, Self::Insert, Self::Update, Self::Delete];

    /// The kind of a call.
    pub fn of(call: Call) -> Self {
        match call {
            Call::Get => Self::Get,
            Call::Put(_) => Self::Put,
            Call::Insert(_) => Self::Insert,
            Call::Update(_) => Self::Update,
            Call::Delete => Self::Delete,
        }
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done.
    Ok,
    /// There was no such key.
    Absent,
    /// The key was there already.
    Exists,
    /// Nobody was told.
    Unknown,
}

impl Outcome {
    /// All.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Absent, Self::Exists, Self::Unknown];

    /// What became of an operation.
    pub fn of(op: &Operation) -> Self {
        match (op.call, op.answered) {
            (_, None) => Self::Unknown,
            (Call::Get, Some((_, Answer::Value(None))))
            | (Call::Update(_), Some((_, Answer::Refused))) => Self::Absent,
            (_, Some((_, Answer::Refused))) => Self::Exists,
            _ => Self::Ok,
        }
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Exists => "exists",
            Self::Unknown => "unknown",
        }
    }
}

/// An operation as a line tells it. All fields are there, and no others.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    client: u64,
    op: Op,
    key: String,
    #[serde(deserialize_with = "nullable")]
    value: Option<String>,
    call_ns: u64,
    #[serde(deserialize_with = "nullable")]
    return_ns: Option<u64>,
    outcome: Outcome,
    #[serde(deserialize_with = "nullable")]
    read: Option<String>,
}

/// A field that may be null, and may not be left out: an `Option` alone would take both.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// What stands for the keys and values of a history.
#[derive(Debug, Default)]
pub struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Names {
    /// The number of a name.
    pub fn number(&mut self, name: String) -> u64 {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// The name with a number.
    pub fn name(&self, number: u64) -> &str {
        usize::try_from(number).ok().and_then(|at| self.names.get(at)).map_or("?", |name| name)
    }
}

/// Operations, and what their keys and values are called.
#[derive(Debug, Default)]
pub struct History {
    /// What was called, and what was answered.
    pub operations: Vec<Operation>,
    /// What the keys are called.
    pub keys: Names,
    /// What the values are called.
    pub values: Names,
}

impl History {
    /// An operation as a line.
    pub fn line(&self, op: &Operation) -> Line {
        let name = |value| self.values.name(value).to_owned();
        let value = match op.call {
            Call::Put(value) | Call::Insert(value) | Call::Update(value) => Some(name(value)),
            Call::Get | Call::Delete => None,
        };
        let read = match op.answered {
            Some((_, Answer::Value(read))) => read.map(name),
            _ => None,
        };
        Line {
            client: op.client as u64,
            op: Op::of(op.call),
            key: self.keys.name(op.key).to_owned(),
            value,
            call_ns: op.called,
            return_ns: op.answered.map(|(at, _)| at),
            outcome: Outcome::of(op),
            read,
        }
    }

    /// Writes all operations, in the order that they have.
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
        let Line { client, op, key, value, call_ns, return_ns, outcome, read } = line;
        let client = usize::try_from(client).map_err(|_| "client is too large a number")?;
        if value.is_some() && matches!(op, Op::Get | Op::Delete) {
            return Err(format!("{} has a value, and writes none", op.name()));
        }
        let answer = match (op, outcome, read) {
            (_, Outcome::Unknown, None) => None,
            (Op::Get, Outcome::Ok, Some(read)) => Some(Answer::Value(Some(self.value(read)))),
            (Op::Get, Outcome::Ok, None) => {
                return Err("a get that is ok tells what it read; of no key it is absent".into());
            }
            (_, _, Some(_)) => return Err("only a get that is ok reads something".to_owned()),
            (Op::Get, Outcome::Absent, None) => Some(Answer::Value(None)),
            (Op::Insert, Outcome::Exists, None) | (Op::Update, Outcome::Absent, None) => {
                Some(Answer::Refused)
            }
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
        let written =
            || value.map(|value| self.value(value)).ok_or(format!("{} has no value", op.name()));
        let call = match op {
            Op::Get => Call::Get,
            Op::Put => Call::Put(written()?),
            Op::Insert => Call::Insert(written()?),
            Op::Update => Call::Update(written()?),
            Op::Delete => Call::Delete,
        };
        let key = self.keys.number(key);
        self.operations.push(Operation { key, client, call, called: call_ns, answered });
        Ok(())
    }

    fn value(&mut self, name: String) -> u64 {
        self.values.number(name)
    }
}

fn parse(line: &[u8]) -> Result<Line, String> {
    // An array of the fields' values would do for the parser.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err("not an operation: it is no JSON object".to_owned());
    }
    serde_json::from_slice(line).map_err(|error| {
        // There is one line only, as far as the parser knows.
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
            (&GOOD.replace("get", "cas"), "unknown variant"),
            (&GOOD.replace("\"key\":\"k\",", ""), "missing field `key`"),
            // What may be null is there all the same.
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
            let told = read(format!("{GOOD}\n{bad}\n").as_bytes()).expect_err(bad);
            assert!(told.contains(why) && told.contains("line 2"), "{bad}: {told}");
        }
        assert!(read(&[0xff, 0xfe, b'\n']).is_err());
        assert!(read(b"").is_ok() && read(b"\n \n").is_ok());
    }
}

//! `swarm info --verify`: whether all of a pool is whole.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use swarm_kv::{Fault, Verdict};

use crate::commands::keys::put_bytes;
use crate::common::args::ReadArgs;
use crate::common::escape::for_terminal;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pool::open_to_read;
use crate::common::units::count;

/// The most faults that are printed one by one.
const MOST_PRINTED: usize = 100;

/// Looks at everything, and reports what is wrong.
pub(crate) fn run(args: &ReadArgs, json: bool) -> Result<Answer, Failure> {
    let pool = open_to_read(args)?;
    let style = ProgressStyle::with_template("verifying {wide_bar} {percent} % {elapsed}");
    let bar = ProgressBar::new(0).with_style(style.expect("the template is well-formed"));
    let verdict = pool.verify(&mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let verdict = verdict?;
    if json {
        print_line(summary(&verdict))?;
    } else {
        print_verdict(&verdict)?;
    }
    Ok(match verdict.is_sound() {
        false => Answer::No,
        // Of what clients worked on at each look nothing is known.
        true if verdict.busy > 0 => Answer::Unclear,
        true => Answer::Yes,
    })
}

/// For programs.
fn summary(verdict: &Verdict) -> Value {
    let fault = |fault: &Fault| {
        let mut object = Map::new();
        object.insert("fault".into(), json!(fault.kind.name()));
        object.insert("node".into(), json!(fault.node));
        object.insert("hash".into(), json!(format!("{:016x}", fault.hash)));
        if let Some(key) = &fault.key {
            put_bytes(&mut object, "key", key);
        }
        Value::Object(object)
    };
    json!({
        "sound": verdict.is_sound() && verdict.busy == 0,
        "buckets": verdict.buckets,
        "keys": verdict.keys,
        "nodes_down": verdict.down,
        "behind": verdict.behind,
        "torn_in_place": verdict.torn,
        "busy": verdict.busy,
        "fault_count": verdict.fault_count,
        "faults": verdict.faults.iter().map(fault).collect::<Vec<_>>(),
    })
}

/// For people.
fn print_verdict(verdict: &Verdict) -> Result<(), Failure> {
    let Verdict { buckets, keys, down, behind, torn, faults, fault_count, busy, .. } = verdict;
    print_line(format_args!("{:<16}{buckets}", "buckets"))?;
    print_line(format_args!("{:<16}{keys}", "keys"))?;
    let behind: Vec<_> = behind.iter().map(ToString::to_string).collect();
    print_line(format_args!(
        "{:<16}{}: keys whose latest write each node leaves to the others, as it may",
        "left out",
        behind.join(", ")
    ))?;
    print_line(format_args!("{:<16}{torn} in place, which a reader mends", "torn"))?;
    for node in down {
        print_line(format_args!("{:<16}node {node} does not answer", "down"))?;
    }
    for fault in faults.iter().take(MOST_PRINTED) {
        let node = fault.node.map(|node| format!(" at node {node}")).unwrap_or_default();
        let of = match &fault.key {
            Some(key) => format!("key {}", String::from_utf8_lossy(&for_terminal(key))),
            None => format!("hash {:016x}", fault.hash),
        };
        print_line(format_args!("{:<16}{}{node}: {of}", "fault", fault.kind.name()))?;
    }
    if *fault_count > MOST_PRINTED as u64 {
        print_line(format_args!("{:<16}{} more", "", fault_count - MOST_PRINTED as u64))?;
    }
    if *busy > 0 {
        eprint_line(format_args!(
            "{}: clients were at work there at each look, and there is no verdict on them",
            count(*busy, "key or bucket")
        ));
    }
    let sound = match verdict.is_sound() {
        false => count(*fault_count, "fault"),
        true if *busy > 0 => "not known: run it again while clients do less".to_owned(),
        true => "sound".to_owned(),
    };
    print_line(format_args!("{:<16}{sound}", "verdict"))
}

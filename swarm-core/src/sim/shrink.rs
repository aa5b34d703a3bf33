//! Reducing a run that fails until it can be read.
//!
//! The run is repeated with the scheduler's decisions recorded. Then operations, faults and ranges
//! of decisions are left out, larger ones first, as long as the run fails in the same way. The rest
//! is run a last time and its steps are printed.

use core::any::Any;
use core::cell::Cell;
use std::boxed::Box;
use std::cell::RefCell;
use std::format;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::string::{String, ToString};
use std::sync::Once;
use std::thread_local;
use std::vec::Vec;

use super::script::{Decision, ReplayRules, Script};
use super::seeds::number;
use super::trace::Trace;

/// Maximum number of runs for shrinking, by default.
const RUNS: usize = 6000;

std::thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `play`, and turns a panic into an error. The panic is not reported.
fn attempt<T>(play: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                report(info);
            }
        }));
    });
    QUIET.set(true);
    let played = panic::catch_unwind(AssertUnwindSafe(play));
    QUIET.set(false);
    played.unwrap_or_else(|payload| Err(format!("panic: {}", message(&*payload))))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Returns the kind of a failure: the same for two runs that fail in the same way.
fn kind(error: &str) -> &str {
    let end = error.find(['\n', '{', '[', '(']).unwrap_or(error.len());
    let line = error[..end].trim_start_matches("panic: ");
    line.split(|c: char| c.is_ascii_digit()).next().unwrap_or(line)
}

struct Shrinking<P> {
    play: P,
    /// How the run failed at first.
    kind: String,
    left_out: Vec<usize>,
    script: Script,
    calm: bool,
    runs: usize,
}

impl<P: Fn(&ReplayRules) -> Result<(), String>> Shrinking<P> {
    /// Returns whether the run still fails; if so, keeps it as the one to reduce further.
    fn fails(&mut self, left_out: &[usize], script: Script) -> bool {
        if self.runs == 0 {
            return false;
        }
        self.runs -= 1;
        let script = Rc::new(script);
        let conduct = ReplayRules {
            script: Some(Rc::clone(&script)),
            left_out: left_out.into(),
            calm: self.calm,
            ..ReplayRules::default()
        };
        let failed =
            attempt(|| (self.play)(&conduct)).is_err_and(|error| kind(&error) == self.kind);
        drop(conduct);
        if failed {
            self.left_out = left_out.into();
            self.script = Rc::unwrap_or_clone(script);
        }
        failed
    }

    /// Leaves out what runs in between on synchronous fabrics.
    fn with_calm(&mut self) {
        if !self.calm {
            self.calm = true;
            let left_out = self.left_out.clone();
            self.calm = self.fails(&left_out, self.script.clone());
        }
    }

    fn without_operations(&mut self, operations: usize) {
        for operation in (0..operations).rev() {
            if !self.left_out.contains(&operation) {
                let mut left_out = self.left_out.clone();
                left_out.push(operation);
                self.fails(&left_out, self.script.clone());
            }
        }
    }

    fn without_faults(&mut self) {
        let left_out = self.left_out.clone();
        let plain = |decision: &&Decision| !matches!(decision, Decision::Fault(_));
        let script = Script(self.script.0.iter().filter(plain).copied().collect());
        if script == self.script || self.fails(&left_out, script) {
            return;
        }
        for at in (0..self.script.len()).rev() {
            if matches!(self.script.0.get(at), Some(Decision::Fault(_))) {
                let mut script = self.script.clone();
                script.0.remove(at);
                self.fails(&left_out, script);
            }
        }
    }

    /// Leaves out ranges of decisions, from the end backwards.
    fn without_decisions(&mut self) {
        let left_out = self.left_out.clone();
        let mut stretch = self.script.len().next_power_of_two();
        while stretch > 0 {
            let mut end = self.script.len();
            while end > 0 {
                let start = end.saturating_sub(stretch);
                let mut script = self.script.clone();
                script.0.drain(start..end);
                self.fails(&left_out, script);
                end = start;
            }
            stretch /= 2;
        }
    }

    /// Merges decisions into larger ones: words into verbs.
    fn with_whole_verbs(&mut self) {
        let left_out = self.left_out.clone();
        for at in 0..self.script.len() {
            if let Decision::Queue { word: word @ Some(_), .. } = &mut self.script.0[at].clone() {
                let mut script = self.script.clone();
                *word = None;
                let Decision::Queue { queue, .. } = script.0[at] else { continue };
                script.0[at] = Decision::Queue { queue, word: None };
                self.fails(&left_out, script);
            }
        }
    }
}

/// Returns the story of a run that fails: what is wrong, and the few steps that lead to it.
///
/// `play` runs by the [`ReplayRules`]: its simulator [follows](super::Sim::follow) them, and it
/// skips those of the run's `operations` that they leave out. It must do the same each time.
///
/// `SWARM_SHRINK` limits the number of runs for shrinking; with 0, nothing is shrunk.
///
/// # Panics
/// If that is not a number.
pub fn story(operations: usize, play: impl Fn(&ReplayRules) -> Result<(), String>) -> String {
    let runs = number("SWARM_SHRINK").map_or(RUNS, |runs| runs as usize);
    let tape = Rc::new(RefCell::new(Script::default()));
    let free = ReplayRules { tape: Some(Rc::clone(&tape)), ..ReplayRules::default() };
    let Err(error) = attempt(|| play(&free)) else {
        return "the run does not fail when it is played again".into();
    };
    if runs == 0 {
        return error;
    }
    let script = tape.take();
    let length = script.len();
    let kind = kind(&error).into();
    let mut shrinking = Shrinking { play, kind, left_out: Vec::new(), script, calm: false, runs };
    if !shrinking.fails(&[], shrinking.script.clone()) {
        return format!("{error}\nThe script of this run does not fail; it is not shrunk.");
    }
    loop {
        let before = (shrinking.left_out.len(), shrinking.script.len());
        shrinking.with_calm();
        shrinking.without_faults();
        shrinking.without_operations(operations);
        shrinking.without_decisions();
        if shrinking.runs == 0 || before == (shrinking.left_out.len(), shrinking.script.len()) {
            break;
        }
    }
    shrinking.with_whole_verbs();
    let Shrinking { play, left_out, script, calm, .. } = shrinking;
    let (decisions, gone) = (script.len(), left_out.len());
    let trace = Rc::new(RefCell::new(Trace::default()));
    let last = ReplayRules {
        script: Some(Rc::new(script)),
        left_out,
        calm,
        tape: None,
        trace: Some(Rc::clone(&trace)),
    };
    let error = attempt(|| play(&last)).err().unwrap_or(error);
    let trace = trace.take();
    format!(
        "{error}\nShrunk from {length} decisions to {decisions}, with {gone} of {operations} \
         operations left out:\n{trace:#}"
    )
}

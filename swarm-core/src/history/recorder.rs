//! Recording histories.

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::{Answer, Call, Operation};

/// Records the operations of clients that share a thread.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Rc<RefCell<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    time: u64,
    operations: Vec<Option<Operation>>,
}

impl Recorder {
    /// Returns an empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the call of an operation. Returns its number.
    pub fn called(&self, client: usize, key: u64, call: Call) -> usize {
        let mut recorded = self.0.borrow_mut();
        recorded.time += 1;
        let called = recorded.time;
        recorded.operations.push(Some(Operation { key, client, call, called, answered: None }));
        recorded.operations.len() - 1
    }

    /// Records the answer of operation `number`. An operation stays unanswered if it ended in an
    /// error and may or may not have taken effect.
    pub fn answered(&self, number: usize, answer: Answer) {
        let mut recorded = self.0.borrow_mut();
        recorded.time += 1;
        let at = recorded.time;
        if let Some(operation) = &mut recorded.operations[number] {
            operation.answered = Some((at, answer));
        }
    }

    /// Removes operation `number` from the history: it ended in an error that reports that it had
    /// no effect.
    pub fn struck(&self, number: usize) {
        self.0.borrow_mut().operations[number] = None;
    }

    /// Returns the history so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.0.borrow().operations.iter().flatten().copied().collect()
    }
}

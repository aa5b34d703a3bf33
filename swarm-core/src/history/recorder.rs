//! Taking histories down.

use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::{Answer, Call, Operation};

/// Takes down the operations of clients that share a thread.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Rc<RefCell<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    time: u64,
    operations: Vec<Option<Operation>>,
}

impl Recorder {
    /// Nothing was recorded yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An operation begins. Yields its number.
    pub fn called(&self, client: usize, key: u64, call: Call) -> usize {
        let mut recorded = self.0.borrow_mut();
        recorded.time += 1;
        let called = recorded.time;
        recorded.operations.push(Some(Operation { key, client, call, called, answered: None }));
        recorded.operations.len() - 1
    }

    /// Operation `number` was answered. One that ended in an error after
    /// which it may have taken effect, or never, is left unanswered.
    pub fn answered(&self, number: usize, answer: Answer) {
        let mut recorded = self.0.borrow_mut();
        recorded.time += 1;
        let at = recorded.time;
        if let Some(operation) = &mut recorded.operations[number] {
            operation.answered = Some((at, answer));
        }
    }

    /// Operation `number` ended in an error that says that it had no effect: it is none of the history.
    pub fn struck(&self, number: usize) {
        self.0.borrow_mut().operations[number] = None;
    }

    /// The history so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.0.borrow().operations.iter().flatten().copied().collect()
    }
}

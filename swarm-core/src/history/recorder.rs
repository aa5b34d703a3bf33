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
    /// Lives: the number of the put, the deadline, and since when a clock has shown that, if one has.
    lives: Vec<(usize, u64, Option<u64>)>,
    /// The latest that any clock has shown.
    latest: u64,
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

    /// Records when the value of operation number `put` expires, by clocks.
    pub fn lives_until(&self, put: usize, deadline: u64) {
        let mut recorded = self.0.borrow_mut();
        let since = (recorded.latest >= deadline).then_some(recorded.time);
        recorded.lives.push((put, deadline, since));
    }

    /// Records what a client's clock shows. A value may have expired once any clock has shown its
    /// deadline, and not before.
    pub fn shown(&self, reading: u64) {
        let recorded = &mut *self.0.borrow_mut();
        let latest = recorded.latest.max(reading);
        recorded.latest = latest;
        let is_over = |life: &&mut (usize, u64, Option<u64>)| life.2.is_none() && latest >= life.1;
        let mut over = recorded.lives.iter_mut().filter(is_over).peekable();
        if over.peek().is_some() {
            // What was answered before this look comes before it.
            recorded.time += 1;
        }
        over.for_each(|(.., since)| *since = Some(recorded.time));
    }

    /// Returns the history so far.
    pub fn operations(&self) -> Vec<Operation> {
        let recorded = self.0.borrow();
        let expire = |&(put, _, since): &(usize, u64, Option<u64>)| {
            let put = recorded.operations[put]?;
            let Call::PutWithTtl { value, .. } = put.call else { return None };
            Some(Operation { call: Call::Expire(value), called: since?, answered: None, ..put })
        };
        let expired = recorded.lives.iter().filter_map(expire);
        recorded.operations.iter().flatten().copied().chain(expired).collect()
    }
}

//! Increments, one of them by a client that is stopped when two of three nodes have its record.
//! The answer that it gets when it goes on decides whether it adds once more: each increment counts
//! once, and one whose outcome is reported as open counts once or never.

use std::cell::Cell;
use std::rc::Rc;

use crate::stopped_proposer::{CHANGES, Client, N2, OWN, Story, at, block_on, change_to};
use swarm_core::cell::{Proposed, View, read};
use swarm_core::error::Error;
use swarm_core::history::{Answer, BUDGET, Call, Recorder, check_key};
use swarm_core::quorum::Timeouts;

/// A counter that is 0 at first, and all that is done to it.
struct Counter {
    story: Story,
    recorder: Recorder,
}

/// Returns the value and its view.
fn look(client: &Client) -> (u64, View) {
    let found = block_on(read(client, &at(), &())).expect("a majority is there");
    (found[0], found.view)
}

/// Adds 1 as a user would: from what is known, and once more if another client was first.
fn increment(
    client: &Client,
    recorder: &Recorder,
    known: (u64, View),
    nth: u64,
) -> Result<(), Error> {
    let noted = recorder.called(client.session().client, 0, Call::Increment(1));
    let (mut value, mut view) = known;
    for nth in nth..nth + 2 {
        if let Proposed::Committed(_) = change_to(client, &view, nth, value + 1)? {
            recorder.answered(noted, Answer::Value(Some(value + 1)));
            return Ok(());
        }
        (value, view) = look(client);
    }
    panic!("no client is in its way any more");
}

/// Adds 1 so many times, from record 1 on.
fn increment_often(client: &Client, recorder: &Recorder, times: u64) {
    for nth in 1..=times {
        increment(client, recorder, look(client), nth).expect("no other client is there");
    }
}

impl Counter {
    fn far_and_near() -> [Self; 2] {
        Story::far_and_near().map(|story| Self { story, recorder: Recorder::new() })
    }

    /// The client adds 1, and is stopped half-way: others complete its change, or come first, and
    /// add `times`.
    fn increment_stopped(&self, completed: bool, times: u64) -> Result<(), Error> {
        let (recorder, done) = (self.recorder.clone(), Rc::new(Cell::new(false)));
        let seen = Rc::clone(&done);
        self.story.stop_at(N2, move |nodes, busy| {
            nodes.away.set(completed.then_some(N2));
            // Without node 2 its record is all that is seen, and may be committed.
            assert_eq!(look(busy).0, u64::from(completed));
            nodes.away.set(None);
            increment_often(busy, &recorder, times);
            seen.set(true);
        });
        let outcome = increment(&self.story.stopped, &self.recorder, (0, self.story.stale), OWN);
        assert!(done.get(), "it was stopped");
        outcome
    }

    /// Checks the value in the end, and that the history is linearizable with it.
    fn comes_to(&self, total: u64) {
        let noted = self.recorder.called(1, 0, Call::Get);
        let (value, _) = look(&self.story.busy);
        self.recorder.answered(noted, Answer::Value(Some(value)));
        assert_eq!(value, total);
        let history = self.recorder.operations();
        check_key(&history, Some(0), BUDGET).unwrap_or_else(|rejected| panic!("{rejected}"));
    }
}

/// Others adopted its record, which committed it, and built thousands of changes on it. With the
/// answer that it lost, it would add once more.
#[test]
fn an_increment_that_others_completed_and_built_upon_counts_once() {
    for counter in Counter::far_and_near() {
        assert_eq!(counter.increment_stopped(true, CHANGES), Ok(()));
        counter.comes_to(CHANGES + 1);
    }
}

/// Others built on what it built on, and its record was never committed, although two nodes took
/// it. With the answer that it is committed, its increment would be missing.
#[test]
fn an_increment_that_came_too_late_is_tried_again_and_counts_once() {
    for counter in Counter::far_and_near() {
        assert_eq!(counter.increment_stopped(false, CHANGES), Ok(()));
        counter.comes_to(CHANGES + 1);
    }
}

/// It cannot follow thousands of records before its deadline. The error leaves the outcome open,
/// and either is possible: an answer that it lost would be false in the first case, one that it is
/// committed in the second.
#[test]
fn an_increment_that_ends_in_an_error_counts_once_or_never() {
    let both = || Counter::far_and_near();
    for (completed, counter) in [true, false].into_iter().flat_map(|it| both().map(|c| (it, c))) {
        let soon = Timeouts { deadline: 50 * CHANGES, ..Timeouts::default() };
        counter.story.stopped.set_timeouts(soon);
        assert_eq!(counter.increment_stopped(completed, CHANGES), Err(Error::Contended));
        counter.comes_to(CHANGES + u64::from(completed));
        let open = counter.recorder.operations().iter().filter(|op| op.answered.is_none()).count();
        assert_eq!(open, 1, "it is the one whose outcome is open");
    }
}

//! A cell that is a number, under random schedules: clients add to it, compare and swap it, swap it
//! and read it. The history of all of them is linearizable, also with those whose outcome is not
//! known: they took effect once or never.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fastrand::Rng;

use crate::common::{RECORDS, number, record};
use crate::{TestGroup, World};
use swarm_core::cell::{CellRef, Proposal, Proposed, View, propose, read, try_read};
use swarm_core::error::Error;
use swarm_core::history::{Answer, BUDGET, Call, Recorder, check_key};
use swarm_core::sim::seeds::{again, seeds};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{ReplayRules, dropped_after};

/// A client numbers its operations below this.
const ROUNDS: usize = 5;

/// What all clients of a run share.
#[derive(Clone, Default)]
struct Shared {
    recorder: Recorder,
    errors: Rc<RefCell<Vec<Error>>>,
    /// Records that were handed out.
    records: Rc<Cell<u64>>,
    /// Changes that were lost, and were tried again.
    lost: Rc<Cell<u64>>,
    dropped: Rc<Cell<u64>>,
}

/// Returns the value that replaces `value`, and the answer if that is committed; or the answer, if
/// nothing is to be replaced.
fn apply(call: Call, value: Option<u64>) -> (Option<Option<u64>>, Answer) {
    match call {
        Call::CompareAndSwap { expected, new } if expected == value => (Some(new), Answer::Done),
        Call::Swap(new) => (Some(new), Answer::Value(value)),
        Call::Increment(by) => {
            let sum = Some(value.unwrap_or(0).wrapping_add(by));
            (Some(sum), Answer::Value(sum))
        }
        _ => (None, Answer::Value(value)),
    }
}

/// Returns the cell's value and its view. A record without a payload is no value.
async fn look(group: &TestGroup, at: &CellRef) -> Result<(Option<u64>, View), Error> {
    // On synchronous memory in a straight line, if that is enough.
    let found = match try_read(group, at) {
        Some(found) => found,
        None => read(group, at, &()).await?,
    };
    Ok((found.first().copied(), found.view))
}

/// Does one operation. `None` if memory is used up.
async fn operate(
    group: &TestGroup,
    at: &CellRef,
    shared: &Shared,
    call: Call,
    cached: &mut Option<(Option<u64>, View)>,
) -> Result<Option<Answer>, Error> {
    // What is remembered may be stale: it decides nothing but what is proposed.
    let mut known = cached.take().filter(|_| call != Call::Get);
    loop {
        let stale = known.is_some();
        let (value, view) = match known.take() {
            Some(known) => known,
            None => look(group, at).await?,
        };
        let (new, answer) = apply(call, value);
        let Some(new) = new else {
            if stale {
                continue;
            }
            *cached = Some((value, view));
            return Ok(Some(answer));
        };
        let index = shared.records.replace(shared.records.get() + 1);
        if index >= RECORDS {
            return Ok(None);
        }
        let payload = new.as_slice();
        let (change, record) = (number(group.session().client, index + 1), record(index));
        let proposal = Proposal { change, record, payload, initial_writes: &[], sparing: false };
        match propose(group, at, &view, &proposal, &()).await? {
            Proposed::Committed(view) => {
                *cached = (view.record() == record).then_some((new, view));
                return Ok(Some(answer));
            }
            // It took no effect and never will: what is there now is changed instead.
            Proposed::Lost { .. } => shared.lost.set(shared.lost.get() + 1),
        }
    }
}

fn random_call(rng: &mut Rng) -> Call {
    let some = |rng: &mut Rng| (rng.u8(..4) > 0).then(|| rng.u64(0..4));
    match rng.u8(..10) {
        0 | 1 => Call::Get,
        2 => Call::CompareAndSwap { expected: some(rng), new: some(rng) },
        3 => Call::Swap(some(rng)),
        _ => Call::Increment(1),
    }
}

/// Runs a client: some operations, one after the other.
async fn live(group: TestGroup, at: CellRef, shared: Shared, mut rng: Rng, conduct: ReplayRules) {
    let mut cached = None;
    let client = group.session().client;
    // Half of the clients only count, and read.
    let counts = rng.bool();
    for round in 0..rng.usize(1..=ROUNDS) {
        let call = match random_call(&mut rng) {
            Call::Get => Call::Get,
            _ if counts => Call::Increment(1),
            call => call,
        };
        let drop_after = (rng.u8(..10) == 0).then(|| rng.u32(1..20));
        if conduct.leaves_out(client * ROUNDS + round) {
            continue;
        }
        let noted = shared.recorder.called(client, 0, call);
        let operation = operate(&group, &at, &shared, call, &mut cached);
        match dropped_after(drop_after, operation).await {
            Some(Ok(Some(answer))) => shared.recorder.answered(noted, answer),
            Some(Ok(None)) => return,
            Some(Err(error)) => shared.errors.borrow_mut().push(error),
            None => shared.dropped.set(shared.dropped.get() + 1),
        }
    }
}

/// Plays a seed. Returns what happened, and how many operations were answered.
fn play(seed: u64, conduct: &ReplayRules) -> Result<(Shared, usize), String> {
    let mut rng = Rng::with_seed(seed ^ 0xc0c0);
    let mut world = World::new(seed, &mut rng, conduct);
    let shared = Shared::default();
    for client in 0..world.last {
        let (group, rng) = world.enter(client, &mut rng);
        let (at, shared) = (world.at, shared.clone());
        world.sim.spawn(client, live(group, at, shared, rng, conduct.clone()));
    }
    let last = shared.clone();
    let played = world
        .play(|_| Ok(()))
        .and_then(|()| world.check_errors(&shared.errors.borrow()))
        .and_then(|()| {
            let failed = shared.errors.borrow().len();
            world.look_last(|group, at| {
                let last = last.clone();
                async move {
                    let noted = last.recorder.called(group.session().client, 0, Call::Get);
                    match look(&group, &at).await {
                        Ok((value, _)) => last.recorder.answered(noted, Answer::Value(value)),
                        Err(error) => last.errors.borrow_mut().push(error),
                    }
                }
            })?;
            if shared.errors.borrow().len() > failed {
                return Err("a last read fails".into());
            }
            Ok(())
        });
    let history = shared.recorder.operations();
    let judged = played
        .and_then(|()| check_key(&history, None, BUDGET).map_err(|rejected| rejected.to_string()));
    judged.map_err(|what| {
        let lines: String = history.iter().map(|op| format!("{op}\n")).collect();
        format!("{what}\n{lines}")
    })?;
    let answered = history.iter().filter(|op| op.answered.is_some()).count();
    Ok((shared, answered))
}

#[test]
fn read_modify_write_is_linearizable_under_any_schedule() {
    let (mut operations, mut outcome, mut lost, mut dropped) = (0, 0, 0, 0);
    for seed in seeds(3000) {
        // Panics inside of the protocol name no seed: they are caught to report it.
        let Ok(Ok((shared, answered))) =
            std::panic::catch_unwind(|| play(seed, &ReplayRules::free()))
        else {
            let story = story(4 * ROUNDS, |conduct| play(seed, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("seed {seed} (played alone by `{again}`): {story}");
        };
        operations += shared.recorder.operations().len();
        outcome += answered;
        lost += shared.lost.get();
        dropped += shared.dropped.get();
    }
    println!("{operations} operations, {outcome} answered, {dropped} dropped, {lost} tried again");
    assert!(outcome > operations * 8 / 10, "too few operations came to an end");
    assert!(operations < 1000 || lost > 0, "no client lost to another");
}

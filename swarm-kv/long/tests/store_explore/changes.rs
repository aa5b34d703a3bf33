//! Changes that depend on the value, beside other operations on the same key: of two that replace one value, one is
//! lost; what a client that dies left half done is done once or never.

use swarm_core::history::Call;

use crate::{BOTH, Cells, DEPTHS, EXPIRED, EXPIRING, NOTHING, OUTGROWS, Plan, READS};

/// The value that is there when the race begins.
const FIRST: Option<u64> = Some(900);
const CHANGE: &[(u64, Call)] = &[(0, Call::CompareAndSwap { expected: FIRST, new: Some(1) })];
const RIVAL: &[(u64, Call)] = &[(0, Call::CompareAndSwap { expected: FIRST, new: Some(9) })];
const GET: &[(u64, Call)] = &[(0, Call::Get)];

/// Explores a race for the key that is there, in a pool without keyed cells, in one where the first change makes a cell of the
/// key, and for a key that is a cell; where it is its turn to be explored deep, also with a node and a client that crash, anywhere.
fn play(name: &str, racers: &'static [&'static [(u64, Call)]]) {
    for (cells, name) in [
        (Cells::Never, format!("{name}, without cells")),
        (Cells::Later, format!("{name}, which makes a cell")),
        (Cells::Already, format!("{name}, of a cell")),
    ] {
        let plan = Plan { racers, there: 1, known: true, cells, ..NOTHING };
        plan.play_many_steps(&name);
        plan.play_deep(&name, BOTH);
    }
}

#[test]
fn change_against_update() {
    play("change against update", &[CHANGE, &[(0, Call::Update(5))], GET]);
}

#[test]
fn change_against_get() {
    play("change against get", &[CHANGE, READS]);
}

#[test]
fn change_against_delete() {
    play("change against delete", &[CHANGE, &[(0, Call::Delete)], GET]);
}

#[test]
fn change_against_insert() {
    play("change against insert", &[&[(0, Call::Swap(None))], &[(0, Call::Insert(5))], GET]);
}

#[test]
fn change_against_change() {
    play("change against change", &[CHANGE, RIVAL, GET]);
}

/// Neither is lost: the second one replaces what the first one wrote.
#[test]
fn swap_against_swap() {
    const SWAPS: [&[(u64, Call)]; 2] = [&[(0, Call::Swap(Some(1)))], &[(0, Call::Swap(Some(9)))]];
    play("swap against swap", &[SWAPS[0], SWAPS[1], GET]);
}

/// A value that has no room in the cell: it is forwarded, and a register goes on.
#[test]
fn forward_against_change() {
    const LONGER: &[(u64, Call)] = &[(0, Call::Update(OUTGROWS))];
    const AND_GONE: &[(u64, Call)] = &[(0, Call::Update(OUTGROWS)), (0, Call::Delete)];
    for (name, longer, rival) in [
        ("forward against change", LONGER, CHANGE),
        ("forward against update", LONGER, &[(0, Call::Update(5))]),
        ("forward against delete", LONGER, &[(0, Call::Delete)]),
        ("forward against forward", LONGER, &[(0, Call::Update(OUTGROWS + 4))]),
        ("forward and delete against insert", AND_GONE, &[(0, Call::Insert(5))]),
    ] {
        let racers: &'static [&'static [(u64, Call)]] = Box::leak(Box::new([longer, rival, GET]));
        let plan = Plan { racers, there: 1, known: true, cells: Cells::Already, ..NOTHING };
        plan.play_many_steps(name);
        plan.play_deep(name, BOTH);
    }
}

/// The first client finds the value expired, by its clock, and the others do not: what they write is not taken away, and what
/// the first one found absent is absent.
#[test]
fn expiry_against_all_else() {
    for (name, rival) in [
        ("expiry against put", Call::Put(5)),
        ("expiry against a new life", Call::Put(EXPIRING + 4)),
        ("expiry against swap", Call::Swap(Some(9))),
        ("expiry against change", Call::CompareAndSwap { expected: Some(EXPIRING), new: Some(1) }),
        ("expiry against delete", Call::Delete),
        ("expiry against insert", Call::Insert(5)),
        ("expiry against forward", Call::Update(OUTGROWS)),
        ("expiry against forward that keeps its life", Call::Swap(Some(OUTGROWS))),
    ] {
        let late: &[(u64, Call)] = Box::leak(Box::new([(0, Call::Get), (0, Call::Get)]));
        let rival: &[(u64, Call)] = Box::leak(Box::new([(0, rival), (0, Call::Get)]));
        let racers: &'static [&'static [(u64, Call)]] = Box::leak(Box::new([late, rival, GET]));
        let cells = Cells::Expiring;
        let plan = Plan { racers, there: 1, known: true, cells, clocks: &[EXPIRED], ..NOTHING };
        plan.play_many_steps(name);
        plan.play_deep(name, BOTH);
    }
}

/// Where the key is not there, a change is an insert.
#[test]
fn change_against_change_of_no_value() {
    const ADD: &[(u64, Call)] = &[(0, Call::CompareAndSwap { expected: None, new: Some(1) })];
    let racers: &[&[_]] = &[ADD, &[(0, Call::Swap(Some(5)))], GET];
    Plan { racers, known: true, ..NOTHING }.play("change against change of no value", DEPTHS);
}

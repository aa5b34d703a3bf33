"""Values that change as a whole, in one process and in several."""

import asyncio
import json
import multiprocessing
import pickle
import threading

import pytest

import swarm


@pytest.fixture
def other(pool):
    with swarm.open(pool, clients=1) as other:
        yield other


def in_threads(work, count=4):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_integer_changes_as_a_whole(db, other):
    mine, theirs = db.atomic(b"n", initial=7), other.atomic("n", 7)
    assert mine.load() == 7 and b"n" not in db, "it need not be created"
    assert mine.swap(-1) == 7 and theirs.load() == -1
    assert theirs.compare_exchange(5, 6) == -1 and theirs.load() == -1
    assert theirs.compare_exchange(-1, 6) == -1 and mine.load() == 6
    assert mine.fetch_add() == 6 and mine.fetch_add(-3) == 7
    assert theirs.fetch_update(lambda n: n * 10) == (4, 40)
    assert theirs.fetch_update(lambda n: None) == (40, 40)
    with pytest.raises(ZeroDivisionError):
        mine.fetch_update(lambda n: n // 0)
    assert mine.load() == 40


def test_what_has_more_than_64_bits_is_refused(db):
    signed, unsigned = db.atomic(b"signed"), db.atomic(b"unsigned", signed=False)
    assert signed.swap(2**63 - 1) == 0 and unsigned.swap(2**64 - 1) == 0
    for full in (signed, unsigned):
        value = full.load()
        with pytest.raises(OverflowError, match="64 bits"):
            full.fetch_add(1)
        with pytest.raises(OverflowError):
            full.swap(value + 1)
        with pytest.raises(OverflowError):
            full.compare_exchange(value, value + 1)
        with pytest.raises(OverflowError):
            full.fetch_add(2**200)
        assert full.load() == value
    assert signed.swap(-(2**63)) == 2**63 - 1
    with pytest.raises(OverflowError):
        signed.fetch_add(-1)
    with pytest.raises(OverflowError):
        unsigned.swap(-1)
    with pytest.raises(OverflowError):
        db.atomic(b"initial", -1, signed=False).load()
    with pytest.raises(TypeError):
        signed.swap("1")


def test_no_change_of_several_threads_is_lost(db):
    n, added = db.atomic(b"n"), db.atomic(b"added")
    state = db.guarded(b"state", json=True)

    def work():
        for _ in range(50):
            n.fetch_update(lambda value: value + 1)
            added.fetch_add(2)
            state.update(lambda numbers: (numbers or []) + [len(numbers or [])])

    in_threads(work)
    assert n.load() == 200 and added.load() == 400
    assert state.get() == list(range(200))


def test_a_state_changes_by_a_function(db, other):
    mine, theirs = db.guarded(b"state"), other.guarded("state")
    assert mine.get() is None
    assert mine.update(lambda state: (state or b"") + b"a") == b"a"
    assert theirs.update(lambda state: state + b"b") == b"ab" and mine.get() == b"ab"
    assert mine.update(lambda state: b"") == b"" and theirs.get() == b""
    with pytest.raises(TypeError, match="bytes"):
        mine.update(lambda state: None)
    with pytest.raises(ZeroDivisionError):
        mine.update(lambda state: 1 // 0)
    assert mine.get() == b""
    # Called again where another change came first; it may use the handle.
    seen = []

    def change(state):
        if not seen:
            theirs.update(lambda state: state + b"!")
        seen.append(state)
        db[b"seen"] = b"%d" % len(seen)
        return state + b"?"

    assert mine.update(change) == b"!?" and seen == [b"", b"!"]


def test_a_state_is_what_json_knows(db, other):
    players, same = db.guarded(b"players", json=True), other.guarded(b"players", json=True)

    def join(state):
        state = state or {"players": []}
        state["players"].append("Zoë")
        return state

    assert players.update(join) == {"players": ["Zoë"]}
    assert same.update(join)["players"] == ["Zoë", "Zoë"] and len(players.get()["players"]) == 2
    assert json.loads(db.guarded(b"players").get()) == players.get()
    assert players.update(lambda state: None) is None and same.get() is None
    with pytest.raises(TypeError):
        players.update(lambda state: {"bytes": b"no"})
    db.guarded(b"players").update(lambda state: b"no {json}")
    with pytest.raises(ValueError):
        same.get()


def test_a_key_used_as_something_else_is_an_error(db):
    db.atomic(b"n").swap(1)
    for wrong in (db.guarded(b"n").get, db.lock(b"n").acquire):
        with pytest.raises(swarm.OtherKind, match="atomic") as raised:
            wrong()
        assert not raised.value.may_have_taken_effect
    db[b"text"] = b"text"
    with pytest.raises(swarm.OtherKind):
        db.atomic(b"text").fetch_add()
    with pytest.raises(swarm.OtherKind):
        db.guarded(b"text").update(lambda state: b"")
    with pytest.raises(swarm.GiveUp):
        db.atomic(b"").load()
    with pytest.raises(TypeError):
        db.guarded(7)
    assert db[b"text"] == b"text" and db.atomic(b"n").load() == 1


def test_they_are_encoded_as_in_rust(db):
    """As `values_are_what_other_languages_make_of_them` of the store's `objects::tests` has it."""
    mark = b"\xffswarm"
    db.atomic(b"n").swap(-2)
    assert db[b"n"] == mark + b"\x07\x01" + b"\xfe" + 7 * b"\xff"
    db[b"n"] = mark + b"\x07\x01" + (1 << 63).to_bytes(8, "little")
    assert db.atomic(b"n", signed=False).load() == 1 << 63
    assert db.atomic(b"n").load() == -(1 << 63)
    db.guarded(b"state").update(lambda _: b"state")
    assert db[b"state"] == mark + b"\x08\x01" + b"\x05state"
    db[b"state"] = mark + b"\x08\x01" + b"\xac\x02" + 300 * b"x"
    assert db.guarded(b"state").get() == 300 * b"x"
    db.guarded(b"json", json=True).update(lambda _: {"a": [1]})
    assert db[b"json"] == mark + b"\x08\x01" + b'\x0a{"a": [1]}'
    # Of another type.
    db[b"n"] = mark + b"\x07\x01" + b"short"
    with pytest.raises(swarm.GiveUp):
        db.atomic(b"n").load()
    db[b"state"] = mark + b"\x08\x01" + b"\x05four"
    with pytest.raises(swarm.GiveUp):
        db.guarded(b"state").get()


def count(n, state):
    for _ in range(30):
        n.fetch_add(1)
        state.update(lambda state: b"%d" % (int(state or b"0") + 1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_change_the_values_that_they_are_given(db, method):
    values = db.atomic(b"n", 5), db.guarded(b"state")
    context = multiprocessing.get_context(method)
    children = [context.Process(target=count, args=values) for _ in range(3)]
    for child in children:
        child.start()
    count(*values)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert values[0].load() == 125 and values[1].get() == b"120"
    assert pickle.loads(pickle.dumps(db.atomic(b"m", 3, signed=False))).load() == 3
    assert pickle.loads(pickle.dumps(db.guarded(b"json", json=True))).json is True


def test_tasks_change_values(pool):
    async def main():
        async with swarm.AsyncStore(swarm.open(pool, clients=1)) as db:
            n, state = db.atomic("n"), db.guarded("state", json=True)

            async def work():
                await n.fetch_add(1)
                await n.fetch_update(lambda value: value + 1)
                await state.update(lambda numbers: (numbers or []) + [1])

            await asyncio.gather(*(work() for _ in range(50)))
            assert await n.load() == 100 and await state.get() == 50 * [1]
            assert await n.swap(-1) == 100 and await n.compare_exchange(-1, 2) == -1
            assert await n.fetch_update(lambda value: None) == (2, 2)
            with pytest.raises(swarm.OtherKind):
                await db.guarded("n").get()
            with pytest.raises(OverflowError):
                await n.fetch_add(2**63 - 1)

    asyncio.run(main())

"""What one process does with a handle."""

import collections.abc
import math
import multiprocessing
import threading
import time
from datetime import timedelta

import pytest

import swarm


def test_a_handle_is_a_mapping(db):
    assert isinstance(db, collections.abc.MutableMapping)
    db[b"color"] = b"green"
    assert db[b"color"] == b"green" and b"color" in db
    assert db.get(b"color") == b"green"
    assert db.get(b"none") is None and db.get(b"none", b"default") == b"default"
    with pytest.raises(KeyError):
        db[b"none"]
    with pytest.raises(KeyError):
        del db[b"none"]
    del db[b"color"]
    assert b"color" not in db
    assert db.setdefault(b"k", b"1") == b"1" and db.setdefault(b"k", b"2") == b"1"
    assert db.pop(b"k") == b"1" and db.pop(b"k", None) is None
    db.update({b"a": b"1", b"b": b"2"})
    assert len(db) == 2 and sorted(db) == [b"a", b"b"]
    assert sorted(db.values()) == [b"1", b"2"]
    db.clear()
    assert len(db) == 0 and list(db.items()) == []


def test_an_insert_and_a_replacement_return_what_they_found(db):
    assert db.replace(b"k", b"0") is False
    assert db.insert(b"k", b"1") is True
    assert db.insert(b"k", b"2") is False
    assert db[b"k"] == b"1"
    assert db.replace(b"k", b"3") is True
    db.delete(b"k")
    db.delete(b"k")
    assert db.get(b"k") is None


def test_a_change_depends_on_the_value(db):
    assert db.cas(b"k", b"1", b"2") is False and b"k" not in db
    assert db.cas(b"k", None, b"1") is True
    assert db.cas(b"k", None, b"2") is False and db[b"k"] == b"1"
    assert db.cas(b"k", b"1", b"2") is True
    assert db.swap(b"k", b"3") == b"2" and db.swap(b"other", b"1") is None
    assert db.cas(b"k", b"3", None) is True and b"k" not in db
    assert db.update_with(b"k", lambda value: (value or b"") + b"a") == b"a"
    assert db.update_with(b"k", lambda value: value + b"b") == b"ab"
    assert db.update_with(b"k", lambda value: None) is None and b"k" not in db
    assert db.pop(b"other") == b"1"
    with pytest.raises(KeyError):
        db.pop(b"other")
    with pytest.raises(TypeError):
        db.pop(b"other", None, None)


def test_numbers_are_added_to(db):
    assert db.incr(b"n") == 1 and db.incr(b"n", 41) == 42 and db.incr(b"n", by=-50) == -8
    assert db[b"n"] == b"-8"
    db[b"n"] = b"9223372036854775807"
    with pytest.raises(swarm.GiveUp) as raised:
        db.incr(b"n")
    assert not raised.value.may_have_taken_effect
    assert db[b"n"] == b"9223372036854775807"
    db[b"n"] = b"many"
    with pytest.raises(swarm.GiveUp):
        db.incr(b"n")
    with pytest.raises(OverflowError):
        db.incr(b"n", 1 << 63)


def test_keys_expire(db):
    db.put(b"k", b"v", ttl=timedelta(hours=1))
    assert 3000 < db.ttl(b"k") <= 3600 and db[b"k"] == b"v"
    assert db.persist(b"k") is True and db.persist(b"k") is False
    assert db.ttl(b"k") == math.inf and db.ttl(b"none") is None
    db.put(b"k", b"v", ttl=0.05)
    time.sleep(0.06)
    assert b"k" not in db and db.get(b"k") is None and db.keys() == []
    db.put(b"k", b"v", ttl=1000)
    db.put(b"k", b"w")
    assert db.ttl(b"k") == math.inf
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError):
            db.put(b"k", b"v", ttl=wrong)
    with pytest.raises(swarm.GiveUp):
        db.put(b"k", bytes(5000), ttl=1)
    assert db[b"k"] == b"w"


def test_threads_that_change_one_key_lose_nothing(db):
    def work():
        for _ in range(50):
            db.incr(b"n")
            db.update_with(b"text", lambda value: (value or b"") + b".")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db[b"n"] == b"200" and db[b"text"] == b"." * 200


def test_keys_and_items_are_found_by_what_they_begin_with(db):
    everything = {b"%d:%d" % (n % 3, n): b"%d" % n for n in range(300)}
    db.put_many(everything)
    assert dict(db.items()) == everything
    ones = {key: value for key, value in everything.items() if key.startswith(b"1:")}
    assert dict(db.items(prefix=b"1:")) == ones
    assert sorted(db.keys(b"1:")) == sorted(ones)
    assert db.get_many([b"0:0", b"none", b"2:2"]) == [b"0", None, b"2"]
    db.delete_many(key for key in [*ones, b"none"])
    assert db.keys(b"1:") == [] and len(db.keys()) == len(everything) - len(ones)


def test_arrays_come_back_as_they_went(db):
    numpy = pytest.importorskip("numpy")
    keys = [b"row:%d" % n for n in range(100)]
    rows = numpy.arange(400, dtype=numpy.float32).reshape(100, 4)
    db.put_array(keys, rows)
    row = numpy.dtype((numpy.void, 16))
    values, there = db.get_array(keys + [b"none"], row)
    assert there.tolist() == [True] * 100 + [False]
    assert (values[:100].view(numpy.float32).reshape(100, 4) == rows).all()
    with pytest.raises(swarm.GiveUp):
        db.get_array(keys, numpy.float64)


def test_arrays_of_another_type_are_refused_before_memory_is_taken(db):
    numpy = pytest.importorskip("numpy")
    db[b"k"] = b"12345678"
    # 128 GiB.
    large = numpy.dtype((numpy.void, 1 << 27))
    with pytest.raises(swarm.GiveUp):
        db.get_array([b"k"] * 1024, large)
    with pytest.raises(ValueError):
        db.get_array([b"k"], numpy.dtype("V0"))
    values, there = db.get_array([], large)
    assert len(values) == 0 and len(there) == 0


def test_a_callback_reads_a_value(db):
    for value in (b"", b"green", bytes(range(256)) * 400):
        db[b"k"] = value
        assert db.read(b"k", bytes) == value
        assert db.read(b"k", lambda view: (len(view), view.readonly)) == (len(value), True)
    assert db.read(b"none", bytes) is None and db.read(b"none", bytes, b"default") == b"default"
    with pytest.raises(ZeroDivisionError):
        db.read(b"k", lambda view: 1 // 0)
    # It may use the handle, and read in turn.
    db[b"other"] = b"red"
    both = db.read(b"k", lambda one: db.read(b"other", lambda two: bytes(one[:2]) + bytes(two)))
    assert both == b"\0\1red"
    with pytest.raises(swarm.GiveUp):
        db.read(b"", bytes)


def test_what_a_callback_was_given_is_dead_afterwards(db):
    db[b"one"], db[b"two"] = b"1" * 5000, b"2" * 5000
    view = db.read(b"one", lambda view: view)
    with pytest.raises(ValueError):
        view[0]


@pytest.mark.parametrize("keep", ["slice", "view", "object", "array", "slices_array"])
def test_what_a_callback_keeps_is_refused_and_keeps_its_bytes(db, keep):
    """A buffer that was used again under a slice, or freed under an array, would show another value, or anything."""
    db[b"one"], db[b"two"] = b"1" * 5000, b"2" * 100_000
    kept = []

    def callback(view):
        if keep == "slice":
            kept.append(view[10:4000])
        elif keep == "view":
            kept.append(memoryview(view))
        elif keep == "object":
            kept.append(view.obj)
        else:
            numpy = pytest.importorskip("numpy")
            kept.append(numpy.frombuffer(view[1:] if keep == "slices_array" else view, numpy.uint8))

    with pytest.raises(BufferError):
        db.read(b"one", callback)
    for _ in range(10):
        assert db.read(b"two", bytes) == b"2" * 100_000
    assert set(bytes(kept[0])) == {ord("1")}
    kept.clear()
    assert db.read(b"one", len) == 5000


def test_threads_and_children_read_by_callbacks(pool):
    with swarm.open(pool, clients=2) as db:
        values = {b"%d" % n: bytes([n]) * (100 + 1000 * n) for n in range(8)}
        db.put_many(values)

        def work():
            for _ in range(200):
                for key, value in values.items():
                    assert db.read(key, bytes) == value

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        for thread in threads:
            thread.join()


def test_exceptions_say_what_to_do(pool, db):
    with pytest.raises(swarm.GiveUp) as raised:
        db[b""] = b"value"
    assert raised.value.may_have_taken_effect is False
    with pytest.raises(swarm.GiveUp):
        db[b"key"] = bytes((1 << 20) + 1)
    with pytest.raises(TypeError):
        db["text"] = b"value"
    with pytest.raises(swarm.MakeRoom):
        for n in range(1000):
            db[b"large %d" % n] = bytes(1 << 20)
    with pytest.raises(swarm.OpenError):
        swarm.open(pool / "none")
    assert issubclass(swarm.MakeRoom, swarm.Error) and issubclass(swarm.OpenError, swarm.Error)
    db.close()
    with pytest.raises(ValueError):
        db[b"key"]
    db.reopen()
    assert db.get(b"key") is None


def test_threads_share_a_handle(pool):
    with swarm.open(pool, clients=2) as db:

        def work(me):
            for n in range(200):
                db[b"%d:%d" % (me, n)] = b"%d" % n
                assert db[b"%d:%d" % (me, n)] == b"%d" % n

        threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(db) == 1600
        assert 1200 < db.estimated_len() < 2000

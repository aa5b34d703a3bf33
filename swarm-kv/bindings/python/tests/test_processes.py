"""Processes that share a pool, come by a handle in every way there is, and are killed or stopped."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import pytest

import swarm


def use(db, me):
    """What a child does with a handle of its parent."""
    db[b"child %d" % me] = b"%d" % os.getpid()
    assert db[b"parent"] == b"was here"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_use_the_handle_that_they_are_given(db, method):
    db[b"parent"] = b"was here"
    context = multiprocessing.get_context(method)
    children = [context.Process(target=use, args=(db, me)) for me in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    pids = {int(db[b"child %d" % me]) for me in range(3)}
    assert len(pids) == 3 and os.getpid() not in pids
    db[b"parent"] = b"goes on"


def count(db):
    for _ in range(100):
        db.incr(b"n")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_count_lose_nothing(db, method):
    context = multiprocessing.get_context(method)
    children = [context.Process(target=count, args=(db,)) for _ in range(3)]
    for child in children:
        child.start()
    count(db)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert db[b"n"] == b"400"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes_map_over_keys(db, method):
    db.put_many((b"%d" % n, b"%d" % (n * n)) for n in range(50))
    with multiprocessing.get_context(method).Pool(3) as processes:
        assert processes.map(db.__getitem__, [b"%d" % n for n in range(50)]) == [
            b"%d" % (n * n) for n in range(50)
        ]


def test_a_child_of_a_child_has_a_handle_of_its_own(db):
    def forked(act):
        child = os.fork()
        if child == 0:
            try:
                act()
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def grandchild():
        db[b"grandchild"] = b"was here"

    def child():
        db[b"child"] = b"was here"
        assert forked(grandchild) == 0

    assert forked(child) == 0
    assert db.get_many([b"child", b"grandchild"]) == [b"was here"] * 2


def test_a_pickled_handle_is_opened_again(db):
    db[b"key"] = b"value"
    with pickle.loads(pickle.dumps(db)) as again:
        assert again[b"key"] == b"value"
        again[b"key"] = b"other"
    assert db[b"key"] == b"other"


WRITER = """
import sys, swarm
with swarm.open(sys.argv[1]) as db:
    n = 0
    while True:
        n += 1
        db[b"counter"] = b"%d" % n
        print(n, flush=True)
"""


AT_WORK = """
import sys, swarm
with swarm.open(sys.argv[1]) as db:
    print("at work", flush=True)
    while True:
        db[b"child"] = b"is at work"
"""


def writer(pool, program=WRITER):
    return subprocess.Popen(
        [sys.executable, "-c", program, str(pool)], stdout=subprocess.PIPE, text=True
    )


def test_what_a_killed_process_reported_is_there(pool, db):
    for _ in range(3):
        child = writer(pool)
        for _ in range(200):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        last = int(rest[-1]) if rest else last
        child.wait()
        child.stdout.close()
        assert int(db[b"counter"]) in (last, last + 1), "it may have died before it could report"


def is_ended(db, child):
    """Writes the pool over while the child is stopped. What is refused is tried again, if the child is in an operation."""
    n = 0
    while n < 40_000:
        try:
            for _ in range(100):
                db[b"%d" % (n % 100)] = b"v" * 1000
                n += 1
        except (swarm.MakeRoom, swarm.Retry):
            pass
        if child.poll() is not None:
            return True
    return False


def test_a_handle_that_may_ends_who_is_stopped_in_an_operation(pool):
    for bad in (-1, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="evict_stopped"):
            swarm.open(pool, evict_stopped=bad)
    with swarm.open(pool, clients=1, evict_stopped=0.1) as former:
        store = pickle.loads(pickle.dumps(former))
    store.reopen()
    assert store.evict_stopped == 0.1
    child = writer(pool, AT_WORK)
    child.stdout.readline()
    ended = False
    with store as db:
        for _ in range(1000):
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            ended = is_ended(db, child)
            if ended:
                break
            # It was stopped between two operations, and held nobody up.
            child.send_signal(signal.SIGCONT)
    if not ended:
        child.kill()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    assert ended


def test_who_is_stopped_holds_nobody_up(pool, db):
    child = writer(pool)
    try:
        for _ in range(100):
            child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        # Stopped when the kernel says so, and not before.
        os.waitpid(child.pid, os.WUNTRACED)
        for n in range(2000):
            db[b"counter"] = b"mine %d" % n
            assert db[b"counter"] == b"mine %d" % n
    finally:
        child.kill()
        child.wait()
        child.stdout.close()

"""Objects and watches, in one process."""

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time

import pytest

import swarm

# So long that what is waited for comes.
LONG = 60


def until(is_so):
    """Waits until it is so."""
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def other(pool):
    with swarm.open(pool, clients=1) as other:
        yield other


def test_a_lock_is_held_by_one_and_its_tokens_grow(db, other):
    lock = db.lock(b"lock")
    with lock as guard:
        assert guard.token == 1 and guard.is_held() and not guard.is_unsettled
        view = other.lock("lock").view()
        assert view.kind == "lock" and view.waiters == [] and view.token == 1
        assert [(holder.seat, holder.token, holder.weight) for holder in view.holders] == [
            (guard.seat, 1, 1)
        ]
        assert other.lock(b"lock").try_acquire() is None
        with pytest.raises(swarm.TimedOut, match="lock.*0.02 s"):
            other.lock(b"lock").acquire(timeout=0.02)
        with pytest.raises(TimeoutError):
            with other.lock("lock", timeout=0.02):
                pass
        assert lock.view().waiters == [], "one that gave up has left the queue"
    with pytest.raises(RuntimeError):
        guard.release()
    guard = other.lock(b"lock").acquire(timeout=LONG)
    assert guard.token == 2
    guard.release()
    with pytest.raises(ZeroDivisionError):
        with lock:
            1 // 0
    assert lock.try_acquire().token == 4, "and dropped at once"
    gc.collect()
    assert lock.view().holders == []


def test_arguments_that_cannot_be_are_refused(db):
    for wrong in (-1, float("nan"), 1e300):
        with pytest.raises(ValueError, match="timeout"):
            db.lock(b"lock").acquire(timeout=wrong)
    db.lock(b"lock").acquire(timeout=float("inf")).release()
    for permits in (0, 33):
        with pytest.raises(ValueError, match="permits"):
            db.semaphore(b"permits", permits).acquire()
    with pytest.raises(ValueError):
        db.semaphore(b"permits", 2).many(3).acquire()
    with pytest.raises(swarm.GiveUp):
        db.lock(b"").acquire()
    with pytest.raises(TypeError):
        db.lock(7)
    db.close()
    with pytest.raises(ValueError, match="closed"):
        db.lock(b"lock").acquire()


def test_a_key_used_as_something_else_is_an_error(db):
    db.lock(b"lock").acquire().release()
    with pytest.raises(swarm.OtherKind, match="lock") as raised:
        db.once(b"lock").begin()
    assert isinstance(raised.value, swarm.GiveUp) and not raised.value.may_have_taken_effect
    db[b"text"] = b"text"
    with pytest.raises(swarm.OtherKind):
        db.latch(b"text", 1).count_down()
    db.semaphore(b"permits", 3).acquire().release()
    with pytest.raises(swarm.OtherNumber):
        db.semaphore(b"permits", 2).acquire()


def test_an_evicted_holder_gets_an_error(db, other):
    guard = db.lock(b"lock").acquire()
    assert other.lock(b"lock").evict(guard.token) is True
    assert other.lock(b"lock").evict(guard.token) is False
    assert not guard.is_held()
    with other.lock(b"lock", timeout=LONG) as next:
        assert next.token == 2 and next.is_unsettled
        next.settle([b"account"])
        assert not next.is_unsettled
        with pytest.raises(swarm.TakenAway, match="token 1"):
            guard.release()
        assert next.is_held()
    with pytest.raises(swarm.TakenAway):
        with db.lock(b"lock") as guard:
            other.lock(b"lock").evict(guard.token)


def test_many_read_or_one_writes_and_permits_are_counted(db, other):
    shared, same = db.rw_lock(b"shared", timeout=0.02), other.rw_lock(b"shared", timeout=0.02)
    with shared.read(), same.read():
        assert len(shared.read().view().holders) == 2
        assert shared.write().try_acquire() is None
    with same.write() as writer:
        assert shared.write().view().holders[0].weight == 32
        with pytest.raises(swarm.TimedOut):
            shared.read().acquire(0.02)
        assert shared.write().evict(writer.token)
        with shared.read():
            pass
        writer.is_released = True
    permits, theirs = db.semaphore("permits", 3), other.semaphore("permits", 3)
    with permits.many(2), theirs:
        assert theirs.try_acquire() is None
    theirs.many(3).acquire().release()


def test_what_is_to_be_done_once_is_done_by_one(db, other):
    with pytest.raises(ZeroDivisionError):
        with db.once(b"once").begin() as doing:
            assert doing.token == 1
            with pytest.raises(swarm.TimedOut):
                other.once(b"once").begin(timeout=0.02)
            1 // 0
    doing = other.once(b"once").begin(timeout=LONG)
    assert db.once(b"once").evict(doing.token)
    with pytest.raises(swarm.TakenAway):
        doing.done()
    with db.once(b"once").begin() as doing:
        assert doing.token == 3 and db.once(b"once").view().holders[0].token == 3
    assert other.once(b"once").begin() is None and db.once(b"once").begin(timeout=0) is None


def test_a_latch_opens_when_it_was_counted_down(db, other):
    with pytest.raises(swarm.TimedOut):
        db.latch(b"latch", 3).wait(timeout=0.02)
    assert other.latch(b"latch", 3).count_down() == 2 and db.latch(b"latch", 3).left_to_count() == 2
    thread = threading.Thread(target=other.latch(b"latch", 3).count_down, args=(5,))
    thread.start()
    db.latch(b"latch", 3).wait(timeout=LONG)
    thread.join()
    assert db.latch(b"latch", 3).left_to_count() == 0


def test_members_of_a_barrier_wait_for_each_other(db, other):
    mine, theirs = db.barrier(b"barrier", 2).join(), other.barrier(b"barrier", 2).join()
    with pytest.raises(swarm.TimedOut):
        mine.wait(timeout=0.02)
    thread = threading.Thread(target=theirs.wait, args=(LONG,))
    thread.start()
    view = mine.wait(timeout=LONG)
    thread.join()
    assert view.generation == 1 and set(view.members) == {mine.seat, theirs.seat}
    assert db.barrier(b"barrier", 2).evict(theirs.seat) is True
    assert db.barrier(b"barrier", 2).evict(theirs.seat) is False
    with pytest.raises(swarm.Evicted):
        theirs.wait()
    mine.leave()
    with other.barrier(b"barrier", 2).join() as member:
        assert db.barrier(b"barrier", 2).view().members == [member.seat]
    assert db.barrier(b"barrier", 2).view().members == []


def test_who_waits_keeps_no_client_from_who_holds(pool):
    """Each of six threads that wait would take the only client."""
    with swarm.open(pool, clients=1) as db:
        lock = db.lock(b"lock", timeout=LONG)

        def work():
            with lock:
                db[b"n"] = b"%d" % (int(db[b"n"]) + 1)

        threads = [threading.Thread(target=work) for _ in range(6)]
        with lock:
            for thread in threads:
                thread.start()
            until(lambda: len(lock.view().waiters) == 6)
            db[b"n"] = b"0"
        for thread in threads:
            thread.join()
        assert db[b"n"] == b"6"


def test_a_watch_returns_changes_and_never_misses_the_last(db, other):
    watch = db.watch(b"key")
    assert watch.changed() is None
    with pytest.raises(swarm.TimedOut, match="key"):
        watch.changed(timeout=0.02)

    def write():
        for n in range(1, 101):
            other[b"key"] = b"%d" % n

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    while last < 100:
        value = int(watch.changed(timeout=LONG))
        assert value > last
        last = value
    thread.join()
    del other[b"key"]
    assert watch.changed(timeout=LONG) is None
    other[b"key"] = b"end"
    assert list(db.watch(b"key", timeout=0.02)) == [b"end"]
    db.reopen()
    assert watch.changed(timeout=0.02) == b"end"
    with pytest.raises(swarm.GiveUp):
        db.watch(b"").changed()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("what", ["lock", "watch", "latch", "barrier", "once"])
def test_a_signal_ends_a_wait(db, other, what):
    """As Ctrl-C does, by KeyboardInterrupt."""
    held = other.lock(b"lock").acquire()
    doing = other.once(b"once").begin()
    member = db.barrier(b"barrier", 2).join()
    watch = db.watch(b"key")
    watch.changed()
    waits = {
        "lock": db.lock(b"lock").acquire,
        "watch": watch.changed,
        "latch": db.latch(b"latch", 1).wait,
        "barrier": member.wait,
        "once": db.once(b"once").begin,
    }

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    # It comes while the main thread waits, which lets go of the interpreter's lock for that.
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            waits[what](timeout=LONG)
        assert time.monotonic() - began < LONG
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert db.lock(b"lock").view().waiters == [] and db.once(b"once").view().waiters == []
    held.release()
    doing.done()
    # What was waited for is usable still.
    other[b"key"] = b"value"
    assert watch.changed(timeout=LONG) == b"value"
    other.barrier(b"barrier", 2).evict(member.seat)
    with pytest.raises(swarm.Evicted):
        member.wait()


def test_other_threads_run_while_one_waits(db, other):
    with other.lock(b"lock"):
        waits = threading.Thread(target=lambda: db.lock(b"lock").acquire(LONG).release())
        began = time.monotonic()
        waits.start()
        until(lambda: db.lock(b"lock").view().waiters)
        assert time.monotonic() - began < LONG / 2
    waits.join()


# What a shell begins in the background ignores SIGINT, and so does what that begins, unless it says otherwise.
WAITER = """
import signal, sys, swarm
signal.signal(signal.SIGINT, signal.default_int_handler)
with swarm.open(sys.argv[1]) as db:
    print("waits", flush=True)
    db.lock(b"lock").acquire()
"""


def test_a_process_that_waits_is_interrupted(pool, db, run):
    with db.lock(b"lock"):
        child = run(WAITER, pool)
        child.stdout.readline()
        until(lambda: db.lock(b"lock").view().waiters)
        child.send_signal(signal.SIGINT)
        # By KeyboardInterrupt.
        assert child.wait(LONG) == -signal.SIGINT
        assert db.lock(b"lock").view().waiters == []


def count(lock, db):
    for _ in range(20):
        with lock:
            db[b"n"] = b"%d" % (int(db[b"n"]) + 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_use_the_lock_that_they_are_given(db, method):
    db[b"n"] = b"0"
    lock = db.lock(b"lock", timeout=LONG)
    context = multiprocessing.get_context(method)
    children = [context.Process(target=count, args=(lock, db)) for _ in range(3)]
    for child in children:
        child.start()
    count(lock, db)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert db[b"n"] == b"80"


def test_objects_are_pickled_with_their_names(db):
    with pickle.loads(pickle.dumps(db.semaphore(b"permits", 3).many(2))) as guard:
        assert guard.token == 1 and db.semaphore(b"permits", 3).view().holders[0].weight == 2
    assert pickle.loads(pickle.dumps(db.rw_lock("shared"))).name == b"shared"
    assert pickle.loads(pickle.dumps(db.barrier("barrier", 3))).parties == 3
    assert pickle.loads(pickle.dumps(db.latch("latch", 3))).left_to_count() == 3
    assert pickle.loads(pickle.dumps(db.once("once"))).begin().token == 1
    assert pickle.loads(pickle.dumps(db.watch(b"key", 5))).timeout == 5


def test_a_child_of_a_holder_holds_nothing(db, other):
    guard = db.lock(b"lock").acquire()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(swarm.Reopen):
                guard.release()
            assert db.lock(b"lock").try_acquire() is None
            del guard
            gc.collect()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert guard.is_held() and other.lock(b"lock").try_acquire() is None
    guard.release()


HOLDER = """
import sys, swarm
db = swarm.open(sys.argv[1])
guard = db.lock(b"lock").acquire()
member = db.barrier(b"barrier", 2).join()
doing = db.once(b"once").begin()
db[b"state"] = b"half done"
print(guard.token, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_held_goes_to_the_next(pool, db, other, run):
    child = run(HOLDER, pool)
    assert int(child.stdout.readline()) == 1
    taken = []

    def takes_over():
        with other.lock(b"lock", timeout=LONG) as guard:
            taken.append((guard.token, guard.is_unsettled))
            guard.settle([b"state"])

    with pytest.raises(swarm.TimedOut):
        db.lock(b"lock").acquire(timeout=0.1)
    waits = threading.Thread(target=takes_over)
    waits.start()
    member = db.barrier(b"barrier", 2).join()
    with pytest.raises(swarm.TimedOut):
        member.wait(timeout=0.1)
    child.kill()
    child.wait()
    waits.join()
    assert taken == [(2, True)]
    assert member.wait(timeout=LONG).members == [member.seat], "it waits for the dead no more"
    assert db.once(b"once").begin(timeout=LONG).token == 2
    assert not db.lock(b"lock").acquire().is_unsettled


def test_a_stopped_process_keeps_what_it_holds_until_it_is_evicted(pool, db, run):
    child = run(HOLDER, pool)
    token = int(child.stdout.readline())
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    with pytest.raises(swarm.TimedOut):
        db.lock(b"lock").acquire(timeout=0.2)
    assert db.lock(b"lock").evict(token)
    with db.lock(b"lock", timeout=LONG) as guard:
        assert guard.token == token + 1


CHANGER = """
import sys, swarm
with swarm.open(sys.argv[1]) as db:
    for n in range(1, 501):
        db[b"key"] = b"%d" % n
"""


def test_a_watch_sees_the_last_value_of_another_process(pool, db, run):
    watch = db.watch(b"key", timeout=LONG)
    assert next(watch) is None
    child = run(CHANGER, pool)
    last = 0
    for value in watch:
        assert int(value) > last
        last = int(value)
        if last == 500:
            break
    assert last == 500
    child.wait()

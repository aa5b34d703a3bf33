"""What processes coordinate by, each under a name of its own: locks, semaphores, onces, latches, barriers; values that change as a
whole; and keys that are watched.

A handle makes them: `db.lock(b"report")`. asyncio's are in `swarm.aio`.
"""

import json as json_text
import threading

from . import _swarm
from .views import BarrierView, Holder, QueueView, Seat, barrier_view, queue_view


class TimedOut(_swarm.Error, TimeoutError):
    """What was waited for did not come in time. Nothing is held, and no place in a queue is left behind."""

    may_have_taken_effect = False


def named(name):
    """The key of an object: text stands for its UTF-8."""
    return name.encode() if isinstance(name, str) else keyed(name)


def keyed(key):
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    return key


def _same(value):
    return value


class Blocking:
    """Runs operations with the thread asleep, until they end or a signal's handler raises."""

    @staticmethod
    def _run(wait, then=_same):
        return then(wait.run())

    @staticmethod
    def _me():
        return threading.get_ident()


class GuardBase:
    """A part of an object that is held, until it is released, its holder is evicted, or its process ends. It belongs to no thread."""

    def __init__(self, guard):
        self._guard = guard
        self.is_released = False

    @property
    def token(self):
        """Larger than the tokens of all holders before. Let what the object guards refuse a client that comes with a smaller one than it has
        seen: a holder that was evicted may not know yet."""
        return self._guard.token

    @property
    def seat(self):
        return Seat(*self._guard.seat)

    @property
    def is_unsettled(self):
        """Whether a holder before this one died or was evicted, and nobody has settled since. What the object guards may be half
        done then."""
        return self._guard.is_unsettled()

    def is_held(self):
        """Whether it is held still. It may be so no more when this returns: fence with the token what must not be done twice."""
        return self._run(self._guard.is_held())

    def settle(self, keys):
        """Settles keys that the object guards: what holders that have ended wrote under them took effect before this, or never will."""
        return self._run(self._guard.settle([keyed(key) for key in keys]))

    def release(self):
        """Releases it, and lets in the next one. Raises TakenAway if it was held no more."""
        wait = self._guard.release()
        self.is_released = True
        return self._run(wait)


class Guard(Blocking, GuardBase):
    __doc__ = GuardBase.__doc__

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.is_released:
            self.release()


class LockBase:
    """What is acquired and released: by one holder at a time, or by several that have a part each. The first that comes gets it first."""

    _guard_type = Guard

    def __init__(self, store, name, timeout=None, kind="lock", permits=1, wanted=1):
        self.store, self.timeout = store, timeout
        self._queue = (kind, named(name), permits, wanted)
        # Guards of `with` blocks, by the thread or task that is in them.
        self._entered = {}

    def __reduce__(self):
        kind, name, permits, wanted = self._queue
        return (type(self), (self.store, name, self.timeout, kind, permits, wanted))

    @property
    def name(self):
        return self._queue[1]

    def _timely(self, timeout):
        def guard(held):
            if held is None:
                raise TimedOut(f"{self._queue[0]} {self.name!r} was not free within {timeout} s")
            return self._guard_type(held)

        return guard

    def acquire(self, timeout=None):
        """Waits until it is held, for `timeout` seconds at most, and returns a guard. Raises TimedOut. A process that acquires what it
        holds itself waits like any other."""
        return self._run(_swarm.acquire(self.store, self._queue, timeout), self._timely(timeout))

    def try_acquire(self):
        """A guard if it is free and nobody waits, else None."""
        return self._run(
            _swarm.acquire(self.store, self._queue, 0),
            lambda held: None if held is None else self._guard_type(held),
        )

    def evict(self, token):
        """Takes it away from the holder with this token, which need not have ended, and lets in the next one. The holder gets
        TakenAway when it releases it. False, with no effect, if that holds it no more."""
        return self._run(_swarm.evict(self.store, self._queue, token))

    def view(self):
        """Who holds it and who waits, at this moment."""
        return self._run(_swarm.view(self.store, self._queue), queue_view)

    def _enters(self, guard):
        self._entered.setdefault(self._me(), []).append(guard)
        return guard

    def _exits(self):
        guards = self._entered[self._me()]
        guard = guards.pop()
        if not guards:
            del self._entered[self._me()]
        return guard


class Lock(Blocking, LockBase):
    __doc__ = LockBase.__doc__

    def __enter__(self):
        return self._enters(self.acquire(self.timeout))

    def __exit__(self, *_):
        guard = self._exits()
        if not guard.is_released:
            guard.release()


class RwLock:
    """A lock that up to 32 hold to `read()`, or one to `write()`. One that comes to read waits behind a writer that waits."""

    _lock_type = Lock

    def __init__(self, store, name, timeout=None):
        self.store, self.name, self.timeout = store, named(name), timeout

    def __reduce__(self):
        return (type(self), (self.store, self.name, self.timeout))

    def read(self):
        return self._lock_type(self.store, self.name, self.timeout, "read")

    def write(self):
        return self._lock_type(self.store, self.name, self.timeout, "write")


class SemaphoreBase:
    """Permits, 1 to 32, that holders have some of. All users have to pass the same number of permits, or OtherNumber is raised."""

    def __init__(self, store, name, permits, timeout=None, wanted=1):
        super().__init__(store, name, timeout, "semaphore", permits, wanted)

    def __reduce__(self):
        _, name, permits, wanted = self._queue
        return (type(self), (self.store, name, permits, self.timeout, wanted))

    def many(self, wanted):
        """So many permits, to acquire all at a time."""
        _, name, permits, _ = self._queue
        return type(self)(self.store, name, permits, self.timeout, wanted)


class Semaphore(SemaphoreBase, Lock):
    __doc__ = SemaphoreBase.__doc__


class DoingBase:
    """What has the one that is to do something once, until it reports that it is done, or gives up and the next one begins."""

    def __init__(self, doing):
        self._doing = doing
        self.is_over = False

    @property
    def token(self):
        return self._doing.token

    def done(self):
        """Reports that it is done, for good. Raises TakenAway if another one may have begun it meanwhile."""
        wait = self._doing.done()
        self.is_over = True
        return self._run(wait)

    def give_up(self):
        wait = self._doing.give_up()
        self.is_over = True
        return self._run(wait)


class Doing(Blocking, DoingBase):
    """As a context: done at its end, given up if it raises."""

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if not self.is_over:
            self.done() if kind is None else self.give_up()


class OnceBase:
    """Something that is done once. One at a time does it; if that one ends, is evicted or gives up before it is done, the next one
    begins."""

    _doing_type = Doing
    _lock_type = Lock

    def __init__(self, store, name):
        self.store, self.name = store, named(name)

    def __reduce__(self):
        return (type(self), (self.store, self.name))

    def begin(self, timeout=None):
        """Waits until it is done, and returns None, or until it is the caller's to do, and returns the object by which it reports that. Raises TimedOut."""

        def begun(outcome):
            is_done, doing = outcome
            if doing is None and not is_done:
                raise TimedOut(f"once {self.name!r} was not done within {timeout} s")
            return doing and self._doing_type(doing)

        return self._run(_swarm.begin_once(self.store, self.name, timeout), begun)

    def _as_lock(self):
        return self._lock_type(self.store, self.name, None, "once")

    def evict(self, token):
        """Lets the next one begin in place of the one with this token."""
        return self._as_lock().evict(token)

    def view(self):
        return self._as_lock().view()


class Once(Blocking, OnceBase):
    __doc__ = OnceBase.__doc__


class LatchBase:
    """A number that is counted down, and opens at 0. Counts are of nobody: a process that ends before it has counted is waited for in
    vain."""

    def __init__(self, store, name, count):
        self.store, self.name, self.count = store, named(name), count

    def __reduce__(self):
        return (type(self), (self.store, self.name, self.count))

    def count_down(self, by=1):
        """Counts it down, to 0 at most, and returns what is left."""
        return self._run(_swarm.count_down(self.store, self.name, self.count, by))

    def left_to_count(self):
        return self._run(_swarm.left_to_count(self.store, self.name, self.count))

    def wait(self, timeout=None):
        """Waits until it is open. Raises TimedOut."""

        def opened(is_open):
            if not is_open:
                raise TimedOut(f"latch {self.name!r} did not open within {timeout} s")

        return self._run(
            _swarm.wait_for_latch(self.store, self.name, self.count, timeout), opened
        )


class Latch(Blocking, LatchBase):
    __doc__ = LatchBase.__doc__


class MemberBase:
    """A member of a barrier, until it leaves, is evicted, or its process ends."""

    def __init__(self, member, name):
        self._member, self._name = member, name
        self.has_left = False

    @property
    def seat(self):
        """By what others evict it."""
        return Seat(*self._member.seat)

    def wait(self, timeout=None):
        """Arrives, waits until all members have, and returns who they are by then: one that met and has left is not among them. Raises
        TimedOut: it has arrived then, and the next call goes on; and Evicted."""

        def met(parts):
            if parts is None:
                raise TimedOut(f"not all came to barrier {self._name!r} within {timeout} s")
            return barrier_view(parts)

        return self._run(self._member.wait(timeout), met)

    def leave(self):
        """Nobody waits for it any more. Raises Evicted if it was no member."""
        wait = self._member.leave()
        self.has_left = True
        return self._run(wait)


class Member(Blocking, MemberBase):
    __doc__ = MemberBase.__doc__

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.has_left:
            self.leave()


class BarrierBase:
    """Where members wait for each other, again and again. It opens once `parties` have joined and every member has arrived; more may
    join. All users have to pass the same number."""

    _member_type = Member

    def __init__(self, store, name, parties):
        self.store, self.name, self.parties = store, named(name), parties

    def __reduce__(self):
        return (type(self), (self.store, self.name, self.parties))

    def join(self):
        """A member: from now on the others wait for it. Raises Crowded."""
        return self._run(
            _swarm.join_barrier(self.store, self.name, self.parties),
            lambda member: self._member_type(member, self.name),
        )

    def evict(self, seat):
        """Takes a member out, which need not have ended. False if it is none any more."""
        return self._run(_swarm.evict_member(self.store, self.name, self.parties, tuple(seat)))

    def view(self):
        return self._run(
            _swarm.view_barrier(self.store, self.name, self.parties), barrier_view
        )


class Barrier(Blocking, BarrierBase):
    __doc__ = BarrierBase.__doc__


class AtomicBase:
    """An integer of 64 bits that changes as a whole: with a sign, -2**63 to 2**63 - 1, or without, 0 to 2**64 - 1. All users pass the same
    initial value, which it has until it is changed. What does not fit raises OverflowError, and changes nothing. It is Rust's
    `Atomic<i64>` or `Atomic<u64>`."""

    def __init__(self, store, name, initial=0, signed=True):
        self.store, self.name, self.initial, self.signed = store, named(name), initial, signed

    def __reduce__(self):
        return (type(self), (self.store, self.name, self.initial, self.signed))

    def _changes(self, operation, *arguments):
        integer = (self.name, self.initial, self.signed)
        return self._run(operation(self.store, integer, *arguments))

    def load(self):
        return self._changes(_swarm.load)

    def swap(self, value):
        """Makes it this value, and returns the one before."""
        return self._changes(_swarm.swap, value)

    def compare_exchange(self, expected, new):
        """Makes it `new` if it is `expected`, and returns the value that was there: `expected`, if it was."""
        return self._changes(_swarm.compare_exchange, expected, new)

    def fetch_add(self, by=1):
        """Adds to it, and returns the value before."""
        return self._changes(_swarm.fetch_add, by)


class Atomic(Blocking, AtomicBase):
    __doc__ = AtomicBase.__doc__

    def fetch_update(self, change):
        """Makes it what `change` makes of it, and returns the values before and after; where `change` returns None or raises, it stays. It is
        called again where another change came first."""
        value = self.load()
        while True:
            new = change(value)
            if new is None:
                return value, value
            found = self.compare_exchange(value, new)
            if found == value:
                return value, new
            value = found


class GuardedBase:
    """A state that changes as a whole, by a function of the old one: nothing is held, so nothing is left behind by a process that ends.
    It is bytes, Rust's `Guarded<Vec<u8>>`, or with `json` what JSON knows: its text is Rust's `Guarded<String>`."""

    def __init__(self, store, name, json=False):
        self.store, self.name, self.json = store, named(name), json

    def __reduce__(self):
        return (type(self), (self.store, self.name, self.json))

    def _decoded(self, state):
        return json_text.loads(state) if self.json and state is not None else state

    def _encoded(self, state):
        if self.json:
            return json_text.dumps(state).encode()
        if not isinstance(state, bytes):
            raise TypeError(f"a state is bytes, not {type(state).__name__}")
        return state

    def _bytes(self):
        return self._run(_swarm.get_guarded(self.store, self.name))

    def _replaces(self, state, new):
        return self._run(_swarm.change_guarded(self.store, self.name, state, new))

    def get(self):
        """The state, or None if it was never set."""
        return self._run(_swarm.get_guarded(self.store, self.name), self._decoded)


class Guarded(Blocking, GuardedBase):
    __doc__ = GuardedBase.__doc__

    def update(self, change):
        """Makes the state what `change` makes of it, and returns that. Where none was set, it is made of None. It is called again where
        another change came first; where it raises, the state stays."""
        state = self._bytes()
        while True:
            value = change(self._decoded(state))
            new = self._encoded(value)
            if new == state:
                return value
            is_changed, state = self._replaces(state, new)
            if is_changed:
                return value


class WatchBase:
    """A key, as it changes. Of several changes in a row some may be missed, and never the last one; a value that is written again is no
    change. In a child that the process forks it begins anew, with the value that is there: so a value may be returned twice."""

    def __init__(self, store, key, timeout=None):
        self.store, self.key, self.timeout = store, keyed(key), timeout
        self._watch = _swarm.Watch(self.key)

    def __reduce__(self):
        return (type(self), (self.store, self.key, self.timeout))

    def changed(self, timeout=None):
        """The value once it is another one than was returned last, None if the key is not there; the first time at once. Raises
        TimedOut if it does not change within `timeout` seconds; what changes later is returned by the next call."""

        def value(outcome):
            has_changed, value = outcome
            if not has_changed:
                raise TimedOut(f"{self.key!r} did not change within {timeout} s")
            return value

        return self._run(self._watch.changed(self.store, timeout), value)


class Watch(Blocking, WatchBase):
    """As an iterator: the values, one after the other, until none comes within the watch's `timeout`."""

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.changed(self.timeout)
        except TimedOut:
            raise StopIteration from None

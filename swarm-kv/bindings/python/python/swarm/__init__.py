"""A replicated, linearizable key-value store in shared memory, with no server in between.

    import swarm

    swarm.create("/dev/shm/pool", capacity=64 << 20)
    with swarm.open("/dev/shm/pool") as db:
        db[b"color"] = b"green"
        print(db[b"color"])

Any number of processes open the same pool. A handle may be used by all threads of a process; a child that the process forks
opens one of its own at its first operation, and a handle that is pickled is opened again where it is unpickled.
Keys have 1 to 255 bytes, values up to 1 MiB; both are `bytes`.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from collections.abc import Mapping, MutableMapping
from datetime import timedelta

from . import aio, objects
from ._swarm import (
    Crowded,
    Error,
    Evicted,
    GiveUp,
    Handle,
    MakeRoom,
    OpenError,
    OtherKind,
    OtherNumber,
    Reopen,
    Retry,
    TakenAway,
    create as _create,
)
from .objects import TimedOut

__all__ = [
    "AsyncStore",
    "Crowded",
    "Error",
    "Evicted",
    "GiveUp",
    "MakeRoom",
    "OpenError",
    "OtherKind",
    "OtherNumber",
    "Reopen",
    "Retry",
    "Store",
    "TakenAway",
    "TimedOut",
    "create",
    "open",
]


def _at_most_one(default):
    if len(default) > 1:
        raise TypeError(f"pop takes a key and at most one default, not {len(default)}")


def _popped(key, value, default):
    if value is not None:
        return value
    if not default:
        raise KeyError(key)
    return default[0]


def _seconds(ttl):
    return ttl.total_seconds() if isinstance(ttl, timedelta) else ttl


class _Objects:
    """What makes objects and watches, of `swarm.objects` or of `swarm.aio`. A name is bytes, or text, which stands for its UTF-8."""

    def _store(self):
        return self

    def lock(self, name, timeout=None):
        """The lock of this name. It need not be created. `timeout` is for `with` blocks: seconds to wait for it, or None."""
        return self._objects.Lock(self._store(), name, timeout)

    def rw_lock(self, name, timeout=None):
        """The readers-writer lock of this name: `with db.rw_lock(b"x").read():`."""
        return self._objects.RwLock(self._store(), name, timeout)

    def semaphore(self, name, permits, timeout=None):
        """The semaphore of this name, of 1 to 32 permits."""
        return self._objects.Semaphore(self._store(), name, permits, timeout)

    def once(self, name):
        """What is to be done once under this name."""
        return self._objects.Once(self._store(), name)

    def latch(self, name, count):
        """The latch of this name, which opens when it was counted down `count` times."""
        return self._objects.Latch(self._store(), name, count)

    def barrier(self, name, parties):
        """The barrier of this name, which opens for the first time when so many have joined."""
        return self._objects.Barrier(self._store(), name, parties)

    def atomic(self, name, initial=0, signed=True):
        """The integer of 64 bits of this name, which is `initial` until it is changed."""
        return self._objects.Atomic(self._store(), name, initial, signed)

    def guarded(self, name, json=False):
        """The state of this name that functions change as a whole: bytes, or with `json` what JSON knows."""
        return self._objects.Guarded(self._store(), name, json)

    def watch(self, key, timeout=None):
        """Watches a key, whether or not it is there. `timeout` is for iterating: it ends if the value does not change for so long."""
        return self._objects.Watch(self._store(), key, timeout)


class Store(_Objects, Handle, MutableMapping):
    """A handle to a pool: a mapping from bytes to bytes. What is met on the way over it comes in no order."""

    _objects = objects

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        return (type(self), (self.path, self.clients, self.evict_stopped))

    def __repr__(self):
        return f"swarm.open({str(self.path)!r})"

    # Two handles are equal if they are one: what is in the pool changes.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def get(self, key, default=None):
        """The value of a key, or `default` if it is not there."""
        value = Handle.get(self, key)
        return default if value is None else value

    def read(self, key, callback, default=None):
        """What `callback` returns for the value of a key, or `default` if it is not there. It gets a read-only memoryview of a
        buffer that the handle uses again: no bytes are made. The view is released when the callback returns; if it
        kept a slice or an array of it, this raises BufferError. It may use the handle."""
        return Handle.read(self, key, callback, default)

    def __delitem__(self, key):
        """Deletes a key that is there. It looks first: like `popitem`, not atomic beside others that change the key. `pop` is, and
        takes memory."""
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    def __iter__(self):
        return iter(self._keys(b""))

    def __len__(self):
        """How many keys there are. All of them are gone over: `estimated_len` is quicker."""
        return len(self._keys(b""))

    def estimated_len(self):
        """About how many keys there are, by a part of the index; exact where that is small."""
        return Handle.__len__(self)

    def put(self, key, value, ttl=None):
        """Puts a value. With `ttl`, in seconds or as a timedelta, the key expires after that time: it is as if it had been deleted. A
        later put ends the time to live, what depends on the value keeps it. Values of up to 4,088 bytes."""
        if ttl is None:
            Handle.put(self, key, value)
        else:
            self._put_with_ttl(key, value, _seconds(ttl))

    def ttl(self, key):
        """For how many seconds a key is there yet: math.inf if it does not expire, None if it is not there."""
        return Handle.ttl(self, key)

    def persist(self, key):
        """Lets a key stay that is to expire. False, with no effect, if it is not there or does not expire."""
        return Handle.persist(self, key)

    def cas(self, key, expected, new):
        """Makes `new` the value of a key if its value is `expected`, and returns whether it was; None stands for no value. It
        takes effect once or never, and changes nothing if it was not. Like all that depend on the value, it takes memory."""
        return Handle.cas(self, key, expected, new)

    def incr(self, key, by=1):
        """Adds to the number under a key, in decimal digits, and returns the sum. No value counts as 0. Numbers and sums have 64
        bits; a value that is none raises GiveUp, as does a sum beyond that, and nothing changes."""
        return Handle.incr(self, key, by)

    def swap(self, key, value):
        """Puts a value, and returns the one before, or None."""
        return Handle.swap(self, key, value)

    def update_with(self, key, change):
        """Makes the value of a key what `change` makes of it, and returns that; None stands for no value, on either side. It is
        called again where another change of the key came first, so that none is lost. State that changes as a whole, such as JSON,
        needs no lock: this is the way."""
        while True:
            value = Handle.get(self, key)
            new = change(value)
            if new == value or self.cas(key, value, new):
                return new

    def setdefault(self, key, default):
        """The value of a key, which is `default` from here on if there was none. Atomic."""
        value = self._put_if_absent(key, default)
        return default if value is None else value

    def pop(self, key, *default):
        """Deletes a key, and returns the value that it had; `default`, or a KeyError, if there was none. Atomic: of several, one
        gets the value. Unlike `del`, it takes memory."""
        _at_most_one(default)
        return _popped(key, self._get_and_delete(key), default)

    def clear(self):
        """Deletes all keys, one after the other."""
        for key in self._keys(b""):
            self.delete(key)

    def keys(self, prefix=b""):
        """The keys that begin with `prefix`, in no order. The whole index is gone over."""
        return self._keys(prefix)

    def items(self, prefix=b""):
        """The keys that begin with `prefix`, and their values, in no order. The whole index is gone over."""
        return self._items(prefix)

    def values(self, prefix=b""):
        """The values of the keys that begin with `prefix`, in no order."""
        return [value for _, value in self._items(prefix)]

    def get_many(self, keys):
        """The values of keys, in their order: None where there is none."""
        return self._get_many(list(keys))

    def put_many(self, pairs):
        """Puts the pairs of a mapping, or of key and value. Each of them is atomic, all together are not."""
        pairs = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
        self._put_many([key for key, _ in pairs], [value for _, value in pairs])

    def delete_many(self, keys):
        """Deletes keys, and leaves out those that are not there. Each is atomic, all together are not."""
        self._delete_many(list(keys))

    def update(self, pairs=()):
        """As `put_many`. Keys are bytes, so none are taken by name."""
        self.put_many(pairs)

    def get_array(self, keys, dtype):
        """The values of keys as a NumPy array of `dtype`, whose size each of them has, and which of them are there."""
        import numpy

        dtype = numpy.dtype(dtype)
        values, there = self._get_array(list(keys), dtype.itemsize)
        return numpy.frombuffer(values, dtype), numpy.frombuffer(there, bool)

    def put_array(self, keys, values):
        """Puts the elements of a NumPy array, or its rows, under keys."""
        if values.dtype.hasobject:
            raise TypeError("an array of objects has no bytes to store")
        keys, width = list(keys), values.itemsize
        for length in values.shape[1:]:
            width *= length
        self._put_array(keys, values.tobytes(), width)


class AsyncStore(_Objects):
    """The operations of a handle for asyncio. One that ends at once, which is almost each, is over before the event loop
    turns; one that takes waiting goes on in a thread of its own executor. A task that is cancelled meanwhile leaves it to its end, or, before it
    got a thread, drops it: it may or may not have taken effect."""

    _objects = aio

    def __init__(self, store):
        self.store = store
        # What was begun holds a client, or its place in the queue for one. So it never waits for a thread behind what has yet
        # to begin.
        self._begun = ThreadPoolExecutor(thread_name_prefix="swarm", max_workers=64)
        self._bulk = ThreadPoolExecutor(thread_name_prefix="swarm-bulk", max_workers=1)

    def _store(self):
        return self.store

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._begun.shutdown(wait=False)
        self._bulk.shutdown(wait=False)
        self.store.close()

    async def _run(self, operation, key, value=None, expected=None, by=0, ttl=None):
        ttl = None if ttl is None else _seconds(ttl)
        is_over, outcome = self.store._begin(operation, key, value, expected, by, ttl)
        if is_over:
            return outcome
        return await asyncio.get_running_loop().run_in_executor(self._begun, outcome.finish)

    async def _in_thread(self, operation, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._bulk, operation, *arguments)

    async def get(self, key, default=None):
        value = await self._run("get", key)
        return default if value is None else value

    async def put(self, key, value, ttl=None):
        await self._run("put", key, value, ttl=ttl)

    async def ttl(self, key):
        return await self._run("ttl", key)

    async def persist(self, key):
        return await self._run("persist", key)

    async def insert(self, key, value):
        return await self._run("insert", key, value)

    async def replace(self, key, value):
        return await self._run("replace", key, value)

    async def delete(self, key):
        await self._run("delete", key)

    async def cas(self, key, expected, new):
        return await self._run("cas", key, new, expected)

    async def incr(self, key, by=1):
        return await self._run("incr", key, by=by)

    async def swap(self, key, value):
        return await self._run("swap", key, value)

    async def update_with(self, key, change):
        while True:
            value = await self.get(key)
            new = change(value)
            if new == value or await self.cas(key, value, new):
                return new

    async def setdefault(self, key, default):
        value = await self._run("put_if_absent", key, default)
        return default if value is None else value

    async def pop(self, key, *default):
        _at_most_one(default)
        return _popped(key, await self._run("get_and_delete", key), default)

    async def get_many(self, keys):
        return await self._in_thread(self.store.get_many, keys)

    async def put_many(self, pairs):
        await self._in_thread(self.store.put_many, pairs)

    async def delete_many(self, keys):
        await self._in_thread(self.store.delete_many, keys)

    async def keys(self, prefix=b""):
        return await self._in_thread(self.store.keys, prefix)

    async def items(self, prefix=b""):
        return await self._in_thread(self.store.items, prefix)


def create(path, nodes=3, capacity=256 << 20, max_clients=64):
    """Makes a pool: a directory with a file of `capacity` bytes for each memory node, which is reserved at once."""
    _create(path, nodes, capacity, max_clients)


def open(path, clients=4, evict_stopped=None):
    """Opens a pool. `clients` are the slots of the pool that this process takes at most: as many operations are under way at a
    time, and one is enough for a program that does not wait for nodes in several threads.

    `evict_stopped` is a number of seconds: if memory is short, this handle kills each process of another client that has been
    stopped or frozen for so long in the middle of an operation, and says so on standard error. Without it such a client is
    named in the error of the write that is refused. A process under a debugger is stopped, too. The handles that a child, an unpickling
    or `reopen` opens go by it as well."""
    return Store(path, clients, evict_stopped)

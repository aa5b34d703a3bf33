"""`swarm.objects` for asyncio: the same, awaited. `swarm.AsyncStore` makes them.

A task that waits takes no thread and none of the handle's clients. For an object it looks again by the loop's timers, some
milliseconds apart; for a watch a thread of the library sleeps, and wakes the task. A task that is cancelled leaves no place behind.
"""

import asyncio

from . import objects
from .objects import TimedOut


class Awaited:
    """Polls operations from the event loop."""

    @staticmethod
    async def _run(wait, then=objects._same):
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake():
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass  # The loop is closed.

        try:
            while True:
                woken.clear()
                is_over, outcome = wait.poll(wake)
                if is_over:
                    return then(outcome)
                if outcome is None:
                    await woken.wait()
                else:
                    await asyncio.sleep(outcome)
        finally:
            wait.drop()

    @staticmethod
    def _me():
        return asyncio.current_task()


class Guard(Awaited, objects.GuardBase):
    __doc__ = objects.GuardBase.__doc__

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        if not self.is_released:
            await self.release()


class Lock(Awaited, objects.LockBase):
    __doc__ = objects.LockBase.__doc__
    _guard_type = Guard

    async def __aenter__(self):
        return self._enters(await self.acquire(self.timeout))

    async def __aexit__(self, *_):
        guard = self._exits()
        if not guard.is_released:
            await guard.release()


class RwLock(objects.RwLock):
    __doc__ = objects.RwLock.__doc__
    _lock_type = Lock


class Semaphore(objects.SemaphoreBase, Lock):
    __doc__ = objects.SemaphoreBase.__doc__


class Doing(Awaited, objects.DoingBase):
    __doc__ = objects.Doing.__doc__

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, *_):
        if not self.is_over:
            await (self.done() if kind is None else self.give_up())


class Once(Awaited, objects.OnceBase):
    __doc__ = objects.OnceBase.__doc__
    _doing_type = Doing
    _lock_type = Lock


class Latch(Awaited, objects.LatchBase):
    __doc__ = objects.LatchBase.__doc__


class Member(Awaited, objects.MemberBase):
    __doc__ = objects.MemberBase.__doc__

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        if not self.has_left:
            await self.leave()


class Barrier(Awaited, objects.BarrierBase):
    __doc__ = objects.BarrierBase.__doc__
    _member_type = Member


class Atomic(Awaited, objects.AtomicBase):
    __doc__ = objects.AtomicBase.__doc__

    async def fetch_update(self, change):
        value = await self.load()
        while True:
            new = change(value)
            if new is None:
                return value, value
            found = await self.compare_exchange(value, new)
            if found == value:
                return value, new
            value = found


class Guarded(Awaited, objects.GuardedBase):
    __doc__ = objects.GuardedBase.__doc__

    async def update(self, change):
        state = await self._bytes()
        while True:
            value = change(self._decoded(state))
            new = self._encoded(value)
            if new == state:
                return value
            is_changed, state = await self._replaces(state, new)
            if is_changed:
                return value


class Watch(Awaited, objects.WatchBase):
    __doc__ = objects.Watch.__doc__

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.changed(self.timeout)
        except TimedOut:
            raise StopAsyncIteration from None

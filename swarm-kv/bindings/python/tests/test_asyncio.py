"""asyncio's twins."""

import asyncio
import time

import pytest

import swarm


def test_tasks_share_a_handle(pool):
    async def work(db, me):
        key = b"task %d" % me
        assert await db.insert(key, b"1") is True
        assert await db.insert(key, b"2") is False
        assert await db.replace(key, b"3") is True
        await db.put(key, key)
        assert await db.get(key) == key
        await db.delete(key)
        assert await db.get(key, b"gone") == b"gone"

    async def main():
        async with swarm.AsyncStore(swarm.open(pool)) as db:
            await asyncio.gather(*(work(db, me) for me in range(500)))
            counted = await asyncio.gather(*(db.incr(b"n") for _ in range(100)))
            assert sorted(counted) == list(range(1, 101))
            assert await db.cas(b"n", b"100", b"101") is True
            assert await db.cas(b"n", b"100", b"102") is False
            assert await db.swap(b"n", b"one") == b"101"
            assert await db.setdefault(b"n", b"two") == b"one"
            assert await db.update_with(b"n", lambda value: value + b"!") == b"one!"
            assert await db.pop(b"n") == b"one!" and await db.pop(b"n", None) is None
            await db.put(b"session", b"alice", ttl=1000)
            assert 900 < await db.ttl(b"session") <= 1000 and await db.persist(b"session") is True
            await db.put(b"session", b"alice", ttl=0)
            assert await db.get(b"session") is None and await db.ttl(b"session") is None
            await db.put_many({b"a": b"1", b"b": b"2"})
            assert await db.get_many([b"b", b"a"]) == [b"2", b"1"]
            assert sorted(await db.items()) == [(b"a", b"1"), (b"b", b"2")]
            assert await db.keys(b"a") == [b"a"]
            await db.delete_many([b"a"])
            assert await db.get_many([b"b", b"a"]) == [b"2", None]

    asyncio.run(main())


def test_tasks_wait_for_objects(pool):
    async def main():
        async with swarm.AsyncStore(swarm.open(pool, clients=1)) as db:
            inside, tokens = [], []
            lock = db.lock(b"lock", timeout=60)

            async def work():
                async with lock as guard:
                    assert not inside
                    inside.append(guard)
                    await db.put(b"n", b"%d" % guard.token)
                    await asyncio.sleep(0)
                    tokens.append(guard.token)
                    inside.pop()

            # More than a queue has places for, with one client.
            await asyncio.gather(*(work() for _ in range(100)))
            assert tokens == list(range(1, 101))

            held = await db.lock(b"lock").acquire()
            assert await db.lock(b"lock").try_acquire() is None
            with pytest.raises(swarm.TimedOut):
                await db.lock(b"lock").acquire(timeout=0.02)
            waits = asyncio.create_task(db.lock(b"lock").acquire())
            for _ in range(10_000):
                if (await lock.view()).waiters:
                    break
                await asyncio.sleep(0.001)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert (await lock.view()).waiters == [], "a task that is cancelled leaves its place"
            assert await held.is_held() and await lock.evict(held.token)
            with pytest.raises(swarm.TakenAway):
                await held.release()

            shared = db.rw_lock("shared")
            async with shared.read(), shared.read():
                assert await shared.write().try_acquire() is None
            async with db.semaphore("permits", 3).many(3):
                assert await db.semaphore("permits", 3).try_acquire() is None
            async with await db.once("once").begin() as doing:
                assert doing.token == 1
                with pytest.raises(swarm.TimedOut):
                    await db.once("once").begin(timeout=0.02)
            assert await db.once("once").begin() is None

    asyncio.run(main())


def test_tasks_meet_and_watch(pool):
    async def main():
        async with swarm.AsyncStore(swarm.open(pool)) as db:
            opened = asyncio.create_task(db.latch("latch", 2).wait(timeout=60))
            assert await db.latch("latch", 2).count_down() == 1
            assert await db.latch("latch", 2).count_down() == 0
            await opened
            async with await db.barrier("b", 2).join() as one, await db.barrier("b", 2).join() as two:
                one_met, two_met = await asyncio.gather(one.wait(60), two.wait(60))
                assert one_met == two_met and set(one_met.members) == {one.seat, two.seat}

            watch = db.watch(b"key")
            assert await watch.changed() is None
            with pytest.raises(swarm.TimedOut):
                await watch.changed(timeout=0.05)
            waits = asyncio.create_task(watch.changed())
            await asyncio.sleep(0.05)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            # Its place is free at once, and nothing is missed.
            waits = asyncio.create_task(watch.changed(timeout=60))
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await db.put(b"key", b"value")
            assert await waits == b"value"
            assert time.monotonic() - began < 60
            seen = []
            async for value in db.watch(b"key", timeout=0.05):
                seen.append(value)
            assert seen == [b"value"]

    asyncio.run(main())

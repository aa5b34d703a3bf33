"""asyncio's twins."""

import asyncio

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

    asyncio.run(main())

"""Of several processes one leads: the one that holds a lock. When it is killed the next one leads, in order of arrival, and a program
that wants to know watches a key.

    pip install ./swarm-kv/bindings/python
    python examples/python/leader_election.py

A leader that is only slow, or was evicted, may believe that it still leads. So each fences what it does with its token.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time

import swarm


def as_leader(token, change):
    """What `update_with` is to make of the state: a leader with a smaller token than the last one changes nothing any more."""

    def fenced(state):
        state = json.loads(state or b'{"token": 0, "done": 0}')
        if state["token"] > token:
            raise SystemExit(f"process {os.getpid()} leads no more")
        return json.dumps({"token": token, **change(state)}).encode()

    return fenced


def candidate(pool):
    with swarm.open(pool, clients=1) as db, db.lock("leadership") as guard:
        db[b"leader"] = b"%d %d" % (os.getpid(), guard.token)
        while guard.is_held():
            # The work: it goes on where the leader before left it.
            step = as_leader(guard.token, lambda state: {"done": state["done"] + 1})
            db.update_with(b"state", step)
            time.sleep(0.001)


def main():
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        pool = os.path.join(directory, "pool")
        swarm.create(pool, capacity=16 << 20)
        processes = [multiprocessing.Process(target=candidate, args=(pool,)) for _ in range(4)]
        for process in processes:
            process.start()
        candidates = {process.pid: process for process in processes}
        tokens = []
        try:
            with swarm.open(pool, clients=1) as db:
                for news in db.watch(b"leader", timeout=60):
                    if news is None:
                        continue
                    leader, token = map(int, news.split())
                    tokens.append(token)
                    done = json.loads(db.get(b"state", b'{"done": 0}'))["done"]
                    print(f"one of {len(candidates)} leads, with token {token}; {done} steps were done before")
                    if len(candidates) == 1:
                        break
                    time.sleep(0.1)
                    killed = candidates.pop(leader)
                    killed.kill()
                    killed.join()
        finally:
            for process in processes:
                process.kill()
                process.join()
    if tokens != [1, 2, 3, 4]:
        sys.exit(f"leaders with tokens 1 to 4 were expected, not {tokens}")


if __name__ == "__main__":
    main()

"""A feature store: one process writes the features of users, others score batches of users by the newest ones.

    pip install './swarm-kv/bindings/python[numpy]'
    python examples/python/feature_store.py

A batch is one call. Each row in it is whole and the newest of its user; rows of different users may be of different runs.
"""

import multiprocessing
import os
import tempfile

import numpy as np

import swarm

# 64 bytes for each user: which run wrote them, and the features.
ROW = np.dtype([("run", "<u4"), ("features", "<f4", 15)])
USERS, BATCH, RUNS = 2000, 256, 20
WEIGHTS = np.linspace(0, 1, 15, dtype=np.float32)


def key(user):
    return b"user:%d" % user


def write_features(path):
    keys = [key(user) for user in range(USERS)]
    rows = np.zeros(USERS, ROW)
    with swarm.open(path, clients=1) as db:
        for run in range(1, RUNS + 1):
            rows["run"] = run
            rows["features"] = run
            db.put_array(keys, rows)
        db[b"runs"] = b"%d" % RUNS


def score(path, seed):
    random = np.random.default_rng(seed)
    newest = np.zeros(USERS + 100, np.uint32)
    batches = 0
    with swarm.open(path, clients=1) as db:
        is_over = False
        while not is_over:
            # After the last run, one more batch.
            is_over = b"runs" in db
            # Some of these users are not known.
            users = random.choice(USERS + 100, BATCH, replace=False)
            rows, is_known = db.get_array([key(user) for user in users], ROW)
            features = np.where(is_known[:, None], rows["features"], np.float32(0.5))
            scores = features @ WEIGHTS
            batches += 1

            # What the store promises:
            assert not is_known[users >= USERS].any() and len(scores) == BATCH
            assert (rows["features"] == rows["run"][:, None]).all(), "a row is torn"
            assert (rows["run"] >= newest[users]).all(), "a row is older than one that was read before"
            assert not is_over or (rows["run"][is_known] == RUNS).all(), "the last run is missing"
            newest[users] = rows["run"]
    print(f"scored {batches} batches of {BATCH} users")


def main():
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        path = os.path.join(directory, "pool")
        swarm.create(path, capacity=16 << 20)
        scorers = [multiprocessing.Process(target=score, args=(path, seed)) for seed in range(2)]
        writer = multiprocessing.Process(target=write_features, args=(path,))
        for process in [*scorers, writer]:
            process.start()
        for process in [*scorers, writer]:
            process.join()
        if any(process.exitcode for process in [*scorers, writer]):
            raise SystemExit("a process failed")


if __name__ == "__main__":
    main()

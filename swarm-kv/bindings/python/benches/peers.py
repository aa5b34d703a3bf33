"""Gets and puts of one process beside what Python programs share data with, in one interleaved run.

    pip install ./swarm-kv/bindings/python lmdb redis
    python swarm-kv/bindings/python/benches/peers.py [--keys 100000] [--rounds 9] [--clock wall|processor]

Each round measures all of them in turn, and each round begins with another one. The tables have the medians of the rounds,
with the smallest and the largest; ratios are of two rates of the same round. One peer is measured twice a round: the ratio of
it to itself is what the machine's noise makes of 1. Rates are by the clock on the wall, so what other processes take of the
processors lowers them: the last line says how much that was. On a machine that has other work, `--clock processor` counts
what the program and its peer's server take of the processors together. redis takes part if
`redis-server` and redis-py are installed, LMDB if py-lmdb is. A peer that asks a server each time does a twentieth of the
operations of a round.
"""

import argparse
import datetime
import glob
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import swarm

VALUE = 64
MAPPED, SERVED = 1, 20


class Swarm:
    server, share = None, MAPPED

    def __init__(self, directory, nodes, keys):
        path = os.path.join(directory, f"swarm-{nodes}")
        # A fifth of it remains free.
        swarm.create(path, nodes=nodes, capacity=(8 << 20) + keys * (640 if nodes == 1 else 448))
        self.db = swarm.open(path, clients=1)
        self.get, self.put = self.db.__getitem__, self.db.__setitem__

    def close(self):
        self.db.close()


class Lmdb:
    """A transaction for each operation, never synced."""

    server, share = None, MAPPED

    def __init__(self, directory, keys):
        import lmdb

        path = os.path.join(directory, "lmdb")
        self.env = lmdb.open(path, map_size=max(64 << 20, keys * 1024), sync=False, writemap=True)

    def get(self, key):
        with self.env.begin() as transaction:
            return transaction.get(key)

    def put(self, key, value):
        with self.env.begin(write=True) as transaction:
            transaction.put(key, value)

    def close(self):
        self.env.close()


class Manager:
    share = SERVED

    def __init__(self):
        self.manager = multiprocessing.Manager()
        self.server = self.manager._process.pid
        shared = self.manager.dict()
        self.get, self.put = shared.__getitem__, shared.__setitem__

    def close(self):
        self.manager.shutdown()


class Redis:
    """Over a unix socket, without persistence."""

    share = SERVED

    def __init__(self, directory):
        import redis

        socket = os.path.join(directory, "redis")
        options = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        self.server = self.process.pid
        while not os.path.exists(socket):
            if self.process.poll() is not None:
                sys.exit("redis-server ended before it made its socket")
            time.sleep(0.01)
        client = redis.Redis(unix_socket_path=socket)
        self.get, self.put = client.get, client.set

    def close(self):
        self.process.terminate()
        self.process.wait()


def opened(directory, keys):
    peers = {
        "swarm, 1 node": Swarm(directory, 1, keys),
        "swarm, 3 nodes": Swarm(directory, 3, keys),
        "`multiprocessing.Manager().dict()`": Manager(),
    }
    try:
        peers["py-lmdb"] = Lmdb(directory, keys)
    except ImportError:
        print("py-lmdb is not installed", file=sys.stderr)
    if not shutil.which("redis-server"):
        print("redis-server is not installed", file=sys.stderr)
    else:
        try:
            peers["redis-py, unix socket"] = Redis(directory)
        except ImportError:
            print("redis-py is not installed", file=sys.stderr)
    return peers


def processor_time(peer):
    """Seconds that this process has had a processor, and the peer's server, if it has one."""
    nanoseconds = 0
    if peer.server is not None:
        for path in glob.glob(f"/proc/{peer.server}/task/*/schedstat"):
            with open(path) as stat:
                nanoseconds += int(stat.read().split()[0])
    return time.process_time() + nanoseconds / 1e9


CLOCKS = {"wall": lambda _: time.perf_counter(), "processor": processor_time}


def measure(peer, clock, keys, value):
    """Gets and puts a second."""
    get, put = peer.get, peer.put
    began = clock(peer)
    for key in keys:
        put(key, value)
    between = clock(peer)
    for key in keys:
        get(key)
    ended = clock(peer)
    if any(get(key) != value for key in keys[:: len(keys) // 10 or 1]):
        sys.exit("a value is not what was put")
    return len(keys) / (ended - between), len(keys) / (between - began)


AGAIN = "swarm, 3 nodes, once more"


def run(peers, clock, keys, rounds):
    """The rates of each peer, in the order of the rounds."""
    for peer in peers.values():
        for key in keys:
            peer.put(key, bytes(VALUE))
    entries = [*peers.items(), (AGAIN, peers["swarm, 3 nodes"])]
    rates = {name: [] for name, _ in entries}
    for number in range(rounds):
        value = bytes([number % 255 + 1]) * VALUE
        for at in range(len(entries)):
            name, peer = entries[(number + at) % len(entries)]
            some = keys[: max(1, len(keys) // peer.share)]
            rates[name].append(measure(peer, clock, some, value))
    return rates


def spread(numbers, digits):
    low, high = min(numbers), max(numbers)
    return f"{statistics.median(numbers):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def processors():
    """Seconds of processor time that all processes took, and that this one took with its children that have ended."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq + steal) / tick, sum(os.times()[:4])


def machine():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    today = datetime.date.today()
    name = names[0] if names else platform.machine()
    return f"{name}, {cores} processors, Linux {platform.release()}, Python {platform.python_version()}, {today}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--directory", default=shared, help="where all of them keep their files")
    args = parser.parse_args()
    if args.keys < 1 or args.rounds < 1:
        parser.error("there is one key and one round at least")
    # Neighbours in this list are not neighbours in order.
    keys = [b"user%020d" % (n * 2654435761 % (1 << 32)) for n in range(args.keys)]
    began, (all_before, own_before) = time.perf_counter(), processors()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        peers = opened(directory, args.keys)
        try:
            rates = run(peers, CLOCKS[args.clock], keys, args.rounds)
        finally:
            for peer in peers.values():
                peer.close()
    took, (all_after, own_after) = time.perf_counter() - began, processors()

    second = "second" if args.clock == "wall" else "second of processor time"
    print(f"| thousand operations a {second} | gets | puts |")
    print("| --- | --- | --- |")
    for name, measured in rates.items():
        gets, puts = ([rate / 1e3 for rate in kind] for kind in zip(*measured))
        print(f"| {name} | {spread(gets, 0)} | {spread(puts, 0)} |")
    print()
    print("| times the rate of | swarm, 1 node: gets | puts | swarm, 3 nodes: gets | puts |")
    print("| --- | --- | --- | --- | --- |")
    for name, measured in rates.items():
        columns = [
            spread([ours[kind] / theirs[kind] for ours, theirs in zip(rates[one], measured)], 2)
            for one in ("swarm, 1 node", "swarm, 3 nodes")
            for kind in (0, 1)
        ]
        if not name.startswith("swarm") or name == AGAIN:
            print(f"| {name} | {' | '.join(columns)} |")
    print()
    others = (all_after - all_before - own_after + own_before) / took / os.cpu_count()
    print(f"{machine()}; {args.keys:,} keys of 24 bytes, values of {VALUE}; medians of {args.rounds} rounds, with minimum and")
    print(f"maximum; other processes took {others:.0%} of the processors meanwhile.")


if __name__ == "__main__":
    main()

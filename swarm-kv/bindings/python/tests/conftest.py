import subprocess
import sys

import pytest

import swarm


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool"
    swarm.create(path, nodes=3, capacity=16 << 20, max_clients=16)
    return path


@pytest.fixture
def db(pool):
    with swarm.open(pool) as db:
        yield db


@pytest.fixture
def run(tmp_path):
    """Runs a program with a pool as its argument, in a process that is killed at the end."""
    running = []

    def run(program, pool):
        command = [sys.executable, "-c", program, str(pool)]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return running[-1]

    yield run
    for child in running:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()

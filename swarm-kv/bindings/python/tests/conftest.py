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

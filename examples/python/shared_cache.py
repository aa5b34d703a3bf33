"""A cache that the worker processes of a web server share: a page that one worker has rendered, no worker renders again.

    pip install ./swarm-kv/bindings/python
    python examples/python/shared_cache.py

runs it in four forked workers, kills one of them, and ends. With gunicorn:

    cargo run --release -- create /dev/shm/pool
    cd examples/python; SWARM_POOL=/dev/shm/pool gunicorn --workers 4 shared_cache:application
"""

import contextlib
import functools
import hashlib
import os
import signal
import tempfile
import time
import urllib.request
from wsgiref.simple_server import WSGIRequestHandler, make_server

import swarm


@functools.cache
def cache():
    """One handle for a process. With gunicorn's --preload too: a forked worker's opens itself again."""
    return swarm.open(os.environ["SWARM_POOL"])


def cached(render):
    @functools.wraps(render)
    def lookup(path):
        # A key has at most 255 bytes.
        key = b"page:" + hashlib.sha256(path.encode()).digest()
        # Without the cache, because it is full for instance, pages are rendered as before.
        with contextlib.suppress(swarm.Error):
            page = cache().get(key)
            if page is not None:
                return page, "hit"
        page = render(path)
        with contextlib.suppress(swarm.Error):
            cache()[key] = page
        return page, "miss"

    return lookup


@cached
def render(path):
    time.sleep(0.05)
    return f"the page {path}, rendered by process {os.getpid()}\n".encode()


def application(environ, start_response):
    page, found = render(environ["PATH_INFO"])
    headers = [("Content-Type", "text/plain"), ("X-Cache", found), ("X-Worker", str(os.getpid()))]
    start_response("200 OK", headers)
    return [page]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def fork_worker(server):
    worker = os.fork()
    if worker == 0:
        try:
            server.serve_forever()
        finally:
            os._exit(1)
    return worker


def request_pages(server, pages):
    """How many of the pages were in the cache, and which worker answered last."""
    hits = 0
    for page in pages:
        url = f"http://127.0.0.1:{server.server_port}/{page}"
        with urllib.request.urlopen(url, timeout=60) as response:
            hits += response.headers["X-Cache"] == "hit"
            worker = int(response.headers["X-Worker"])
    return hits, worker


def main():
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        os.environ["SWARM_POOL"] = os.path.join(directory, "pool")
        swarm.create(os.environ["SWARM_POOL"], capacity=16 << 20)
        server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
        workers = {fork_worker(server) for _ in range(4)}
        try:
            hits, worker = request_pages(server, [n % 10 for n in range(100)])
            print(f"of 100 requests for 10 pages, {hits} were in the cache")
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            workers.remove(worker)
            workers.add(fork_worker(server))
            again, _ = request_pages(server, [n % 10 for n in range(100)])
            print(f"a worker was killed; of 100 more requests, {again} were in the cache")
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGTERM)
                os.waitpid(worker, 0)
            server.server_close()
    if (hits, again) != (90, 100):
        raise SystemExit("90 and 100 were expected")


if __name__ == "__main__":
    main()

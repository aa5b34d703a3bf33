"""Sessions that the worker processes of a web server share: a user who signed in with one worker is known to all, until the session
expires or the user signs out.

    pip install ./swarm-kv/bindings/python
    python examples/python/session_store.py

runs it in four forked workers, kills one of them, and ends. With gunicorn:

    cargo run --release -- create /dev/shm/pool
    cd examples/python; SWARM_POOL=/dev/shm/pool gunicorn --workers 4 session_store:application
"""

import functools
import json
import os
import secrets
import signal
import tempfile
import time
import urllib.error
import urllib.request
from http import cookies
from wsgiref.simple_server import WSGIRequestHandler, make_server

import swarm

# In seconds. A session lasts so long, however often it is used.
LIFE = float(os.environ.get("SESSION_LIFE", 30 * 60))


@functools.cache
def sessions():
    """One handle for a process. With gunicorn's --preload too: a forked worker's opens itself again."""
    return swarm.open(os.environ["SWARM_POOL"])


def sign_in(user):
    token = secrets.token_urlsafe(32)
    sessions().put(b"session:" + token.encode(), json.dumps({"user": user, "pages": 0}).encode(), ttl=LIFE)
    return token


def seen(token):
    """The session, in which one more page is counted, or None if there is none. The count is kept whichever workers count at a time,
    and it keeps the session's life: nothing that is done with a session makes one that has expired, or was signed out, come back."""

    def count(session):
        if session is None:
            return None
        session = json.loads(session)
        return json.dumps({**session, "pages": session["pages"] + 1}).encode()

    session = sessions().update_with(b"session:" + token.encode(), count)
    return None if session is None else json.loads(session)


def application(environ, start_response):
    token = cookies.SimpleCookie(environ.get("HTTP_COOKIE", "")).get("session")
    token = token.value if token else ""
    headers = [("Content-Type", "text/plain"), ("X-Worker", str(os.getpid()))]
    path = environ["PATH_INFO"]
    if path.startswith("/in/"):
        headers.append(("Set-Cookie", f"session={sign_in(path[4:])}; HttpOnly"))
        start_response("200 OK", headers)
        return [b"welcome\n"]
    if path == "/out":
        sessions().delete(b"session:" + token.encode())
        start_response("200 OK", headers)
        return [b"bye\n"]
    session = seen(token)
    if session is None:
        start_response("401 Unauthorized", headers)
        return [b"sign in first\n"]
    start_response("200 OK", headers)
    return [f"{session['user']}, page {session['pages']}\n".encode()]


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


def request(server, path, cookie=""):
    """The status, the text, the cookie that was set, and which worker answered."""
    url = f"http://127.0.0.1:{server.server_port}{path}"
    asked = urllib.request.Request(url, headers={"Cookie": cookie})
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            cookie = (response.headers["Set-Cookie"] or "").split(";")[0]
            return response.status, response.read().decode().strip(), cookie, int(response.headers["X-Worker"])
    except urllib.error.HTTPError as error:
        return error.code, "", "", int(error.headers["X-Worker"])


def main():
    global LIFE
    LIFE = 3600.0
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        os.environ["SWARM_POOL"] = os.path.join(directory, "pool")
        swarm.create(os.environ["SWARM_POOL"], capacity=16 << 20)
        server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
        workers = {fork_worker(server) for _ in range(4)}
        try:
            alice = request(server, "/in/alice")[2]
            for _ in range(20):
                status, text, _, worker = request(server, "/", alice)
            print(f"behind 20 pages: {status} {text}")
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            workers.remove(worker)
            status, after, _, _ = request(server, "/", alice)
            print(f"a worker was killed: {status} {after}")
            bob = request(server, "/in/bob")[2]
            request(server, "/out", bob)
            out = request(server, "/", bob)[0]
            # Another process gives a session a tenth of a second.
            sessions().put(b"session:short", json.dumps({"user": "carol", "pages": 0}).encode(), ttl=0.1)
            time.sleep(0.11)
            expired = request(server, "/", "session=short")[0]
            print(f"signed out: {out}; expired: {expired}; alice has {sessions().ttl(b'session:' + alice[8:].encode()):.0f} s left")
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGTERM)
                os.waitpid(worker, 0)
            server.server_close()
    if (text, after, out, expired) != ("alice, page 20", "alice, page 21", 401, 401):
        raise SystemExit("20 and 21 pages, and twice 401 were expected")


if __name__ == "__main__":
    main()

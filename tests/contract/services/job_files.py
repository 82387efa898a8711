"""Jobs with services: a job file, a script, and a server in place of a real one."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

from tests.contract.launched import Job, Launcher

SERVER = """
    import http.server, json, os, signal, subprocess, sys, threading

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/exit/"):
                self.answer(200, "exits")
                os._exit(int(self.path.removeprefix("/exit/")))
            if self.path.startswith("/signal/"):
                self.answer(200, "is signalled")
                os.kill(os.getpid(), int(self.path.removeprefix("/signal/")))
            elif self.path == "/environment":
                self.answer(200, json.dumps(dict(os.environ)))
            elif self.path == "/health":
                self.answer(200, "")
            else:
                self.answer(404, "")

        def answer(self, code, text):
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    if "engine" in sys.argv:
        ENGINE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        ENGINE += "print('engine runs', flush=True); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", ENGINE], start_new_session=True)
    if "ignores-term" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "raises" in sys.argv:
        def cancelled(*_):
            raise RuntimeError("cancelled")
        signal.signal(signal.SIGTERM, cancelled)
    if "prints" in sys.argv:
        def prints():
            print("tokens/s: 1", flush=True)
            threading.Timer(0.2, prints).start()
        prints()
    server = http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Server)
    print("listens", os.getpid(), flush=True)
    server.serve_forever()
"""
"""A server that is ready at /health, and exits or signals itself on request. Its arguments:

``engine``: it starts a child in a new session that ignores SIGTERM, as inference servers do.
``ignores-term``: it ignores SIGTERM. ``raises``: SIGTERM raises an exception. ``prints``: it prints
five lines per second.
"""

CLIENT = """
    import json, os, sys, time, urllib.request

    def get(path, url=os.environ["CLUSTERRUN_SERVER_URL"]):
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            return answer.read().decode()

    def get_environment(url=os.environ["CLUSTERRUN_SERVER_URL"]):
        # The server may be restarting.
        deadline = time.monotonic() + 60
        while True:
            try:
                return json.loads(get("/environment", url))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.05)
"""
"""The beginning of a script that sends requests to servers."""

ONE_SERVER = """
    script: train.py
    services:
      server: {command: [python, server.py], ready: /health}
"""

WAITS = """
    import time
    print("trains", flush=True)
    time.sleep(1000)
"""


def start_job(
    clusterrun: Launcher,
    job_file: str,
    script: str = "print('trained')",
    *options: str,
    files: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Job:
    """Start a job by its file; ``script`` is train.py, ``files`` are others by name."""
    write_job(clusterrun.folder, job_file, script, files or {})
    return clusterrun.command("--config", "job.yaml", *options, environ=environ)


def write_job(
    folder: Path, job_file: str, script: str, files: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write the files of a job."""
    written = {"job.yaml": job_file, "train.py": script, "server.py": SERVER, **files}
    for name, text in written.items():
        (folder / name).write_text(dedent(text))


def client(text: str) -> str:
    """Return a script that sends requests to servers."""
    return dedent(CLIENT) + dedent(text)

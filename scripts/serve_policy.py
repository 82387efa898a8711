"""Serve a policy over HTTP: a service of configs/train_and_serve.yaml, beside scripts/train_policy.py.

GET  /health    200 once it serves
POST /actions   {"states": [[...], ...]} is answered with {"actions": [...], "version": N}
PUT  /weights   what torch.save wrote: the next actions are drawn with these weights
"""

import io
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import torch

STATES, ACTIONS = 4, 3


class Policy:
    """The newest weights that the trainer has pushed, and their number."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(STATES, ACTIONS)
        self.version = 0
        self.lock = Lock()

    def actions(self, states: list[list[float]]) -> dict[str, object]:
        """Draw an action for each state; return them with the number of the weights."""
        with self.lock, torch.no_grad():
            chances = torch.softmax(self.model(torch.tensor(states)), dim=1)
            return {
                "actions": torch.multinomial(chances, 1).flatten().tolist(),
                "version": self.version,
            }

    def load(self, weights: bytes) -> dict[str, object]:
        with self.lock:
            self.model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
            self.version += 1
            return {"version": self.version}


class Handler(BaseHTTPRequestHandler):
    """Answers the requests above."""

    policy = Policy()

    def do_GET(self) -> None:
        self.answer({"version": self.policy.version})

    def do_POST(self) -> None:
        self.answer(self.policy.actions(json.loads(self.body())["states"]))

    def do_PUT(self) -> None:
        self.answer(self.policy.load(self.body()))

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, value: dict[str, object]) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing for each request."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler)  # noqa: S104
    print("serving", flush=True)
    server.serve_forever()

"""A small API server of Kubernetes': it answers what a client needs to make, read and delete jobs.

Each object that it is sent is checked by the schemas, strictly. Kubernetes' "API Concepts"
(kubernetes.io/docs/reference/using-api/api-concepts) has the paths, ``dryRun`` and ``Status``.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
from kubeflow_trainer_api.models import JobsetV1alpha2JobSetSpec

TOKEN = "of-the-test"  # noqa: S105 - of this server

RESOURCES = {
    "v1": [("secrets", "Secret"), ("services", "Service"), ("pods", "Pod")],
    "batch/v1": [("jobs", "Job")],
    "jobset.x-k8s.io/v1alpha2": [("jobsets", "JobSet")],
}
"""What this cluster has."""

PODS = 2
"""Of the job."""

Object = dict[str, Any]
Act = Callable[[str, Object, dict[str, str]], object]


class ApiServer(ThreadingHTTPServer):
    """Keeps objects, and what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        """By path, such as ``/api/v1/namespaces/ml/secrets/train``."""
        self.asked: list[str] = []
        """Method and path, with ``?dryRun=All``."""
        self.statuses: list[Object] = []
        """Of the job: the first until the output of both pods has been read, then the last."""

    @property
    def kubeconfig(self) -> str:
        """The text of a file that leads here, with the namespace ``ml``."""
        here = f"http://127.0.0.1:{self.server_port}"
        context = {"cluster": "here", "user": "me", "namespace": "ml"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": here}}],
                "users": [{"name": "me", "user": {"token": TOKEN}}],
                "contexts": [{"name": "here", "context": context}],
            }
        )


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """Return a server that listens; it ends with the block."""
    with ApiServer() as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Refused(Exception):
    """The arguments are code, reason and message of a ``Status``."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    @property
    def _api(self) -> ApiServer:
        return cast("ApiServer", self.server)

    def _answer(self, act: Act) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        dry = "?dryRun=All" if query.get("dryRun") == "All" else ""
        code = 200
        try:
            self._expect_token()
            if "/namespaces/" in url.path:
                self._api.asked.append(f"{self.command} {url.path}{dry}")
            answer = act(url.path, body, query)
        except _Refused as refused:
            code, reason, message = refused.args
            answer = {"kind": "Status", "reason": reason, "message": message, "code": code}
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _expect_token(self) -> None:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            raise _Refused(401, "Unauthorized", "Unauthorized")

    def _get(self, path: str, _body: Object, query: dict[str, str]) -> object:
        if path == "/version":
            return {"major": "1", "minor": "36"}
        if path == "/apis":
            groups = (version.split("/") for version in RESOURCES if "/" in version)
            return {"kind": "APIGroupList", "groups": [_group(*each) for each in groups]}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version in RESOURCES:
            listed = [_resource(*each) for each in RESOURCES[version]]
            return {"kind": "APIResourceList", "groupVersion": version, "resources": listed}
        if path.endswith("/pods"):
            return _pods(query["labelSelector"])
        if path.endswith("/log"):
            return f"hello from {path.split('/')[-2]}\n".encode()
        found = dict(self._find(path))
        if statuses := self._api.statuses:
            seen = sum(each.endswith("/log") for each in self._api.asked)
            found["status"] = statuses[-1 if seen == PODS else 0]
        return found

    def _post(self, path: str, body: Object, query: dict[str, str]) -> object:
        _check(body)
        name = body["metadata"]["name"]
        if f"{path}/{name}" in self._api.objects:
            kind = path.rpartition("/")[2]
            raise _Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if query.get("dryRun") != "All":
            self._api.objects[f"{path}/{name}"] = body
        return body

    def _delete(self, path: str, body: Object, _query: dict[str, str]) -> object:
        self._find(path)
        if body.get("propagationPolicy") != "Background":
            raise _Refused(422, "Invalid", "the pods of a Job would stay")
        del self._api.objects[path]
        return {"kind": "Status", "status": "Success"}

    def _find(self, path: str) -> Object:
        if path not in self._api.objects:
            kind, name = path.split("/")[-2:]
            raise _Refused(404, "NotFound", f'{kind} "{name}" not found')
        return self._api.objects[path]


def _check(body: Object) -> None:
    """Refuse what the schemas do not have."""
    if body["kind"] == "JobSet":
        read = JobsetV1alpha2JobSetSpec.from_dict(body["spec"])
        if read is None or read.to_dict() != body["spec"]:
            raise _Refused(422, "Invalid", "no JobSet")
        return
    try:
        kubernetes_validate.validate(body, "1.36", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise _Refused(422, "Invalid", str(error)) from None


def _group(name: str, version: str) -> Object:
    this = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [this], "preferredVersion": this}


def _resource(plural: str, kind: str) -> Object:
    verbs = ["create", "delete", "get", "list"]
    return {"name": plural, "kind": kind, "namespaced": True, "singularName": "", "verbs": verbs}


def _pods(selector: str) -> Object:
    _, _, job = selector.partition("clusterrun/job=")
    items = [{"metadata": {"name": f"{job}-{index}-x"}} for index in range(PODS)]
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

"""A program: what the pods of a job print, each line after its pod's name, as kubectl logs has it.

``python -m clusterrun.submitting.pod_output NAMESPACE SELECTOR KUBECONFIG``
"""

import sys
from threading import Lock, Thread
from typing import Any

from clusterrun.submitting.kubernetes_client import connect, default_namespace


def main(namespace: str, selector: str, kubeconfig: str) -> None:
    """Print what the pods print until all of them have ended.

    Args:
        namespace: of the pods; "" for that of the kubeconfig's context.
        selector: the label of the job.
        kubeconfig: a path; "" for the usual one.

    """
    from kubernetes.client import CoreV1Api

    where = namespace or default_namespace({"KUBECONFIG": kubeconfig})
    api = CoreV1Api(connect(kubeconfig).client)
    names = [
        pod.metadata.name for pod in api.list_namespaced_pod(where, label_selector=selector).items
    ]
    printing = Lock()
    threads = [Thread(target=_follow, args=(api, where, name, printing)) for name in sorted(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _follow(api: Any, namespace: str, name: str, printing: Lock) -> None:
    """Print the lines of one pod; the thread may wait for the server as long as the pod runs."""
    answer = api.read_namespaced_pod_log(name, namespace, follow=True, _preload_content=False)
    rest = b""
    for data in answer.stream():
        *lines, rest = (rest + data).split(b"\n")
        _print(name, lines, printing)
    _print(name, [rest] if rest else [], printing)


def _print(name: str, lines: list[bytes], printing: Lock) -> None:
    with printing:
        for line in lines:
            sys.stdout.buffer.write(b"[pod/" + name.encode() + b"] " + line + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Read words of a choice: yes or no, modes, modules, clusters."""

from enum import Enum
from typing import TypeVar

from clusterrun.domain.job import (
    ElasticJoin,
    NodeLauncher,
    NumaBinding,
    NumaMemory,
    OnHang,
    StartMethod,
)
from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import did_you_mean

NameT = TypeVar("NameT", bound=Enum)


def switch(text: str) -> bool:
    """Read 1 or 0, true or false, yes or no."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise UsageError(f"{text!r} is neither yes nor no", "give 1 or 0, true or false")
    return words[text.lower()]


def numa_binding(text: str) -> NumaBinding:
    return _one_of(NumaBinding, text, "NUMA binding")


def numa_memory(text: str) -> NumaMemory:
    return _one_of(NumaMemory, text, "memory policy")


def elastic_join(text: str) -> ElasticJoin:
    return _one_of(ElasticJoin, text, "time to let nodes in")


def on_hang(text: str) -> OnHang:
    return _one_of(OnHang, text, "way to act on a hang")


def start_method(text: str) -> StartMethod:
    if text == "forkserver":
        # torchrun's name for what auto does where it is safe.
        return StartMethod.AUTO
    return _one_of(StartMethod, text, "start method")


def node_launcher(text: str) -> NodeLauncher:
    return _one_of(NodeLauncher, text, "launcher of nodes")


def _one_of(names: type[NameT], text: str, kind: str) -> NameT:
    known = [name.value for name in names]
    if text not in known:
        hint = f"give one of {', '.join(known)}"
        raise UsageError(f"{text!r} is not a {kind}", did_you_mean(text, known) or hint)
    return names(text)


def preload(text: str) -> str | tuple[str, ...]:
    """Read ``auto``, ``all``, ``none`` or the names of modules."""
    if text in {"auto", "all", "none"}:
        return text
    modules = tuple(module.strip() for module in text.split(","))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(
                f"{module!r} is not the name of a module",
                "give auto, all, none, or modules such as torch,numpy",
            )
    return modules

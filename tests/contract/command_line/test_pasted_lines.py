"""clusterrun reads torchrun's command lines as torch's own parser does."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contract.command_line.pasted_lines import LINES, Pasted
from tests.contract.launched import plain_environment
from tests.typed import typed

TORCHRUN_RECORDER = """
import json, sys
from torch.distributed import launch, run

found = []

class Recorded:
    def __init__(self, config, entrypoint):
        self.config, self.entrypoint = config, entrypoint

    def __call__(self, *arguments):
        config = self.config
        found.append({
            "nodes": [config.min_nodes, config.max_nodes],
            "workers": config.nproc_per_node,
            "run_id": config.run_id,
            "backend": config.rdzv_backend,
            "endpoint": config.rdzv_endpoint,
            "rank": config.rdzv_configs.get("rank"),
            "max_restarts": config.max_restarts,
            "role": config.role,
            "command": [self.entrypoint, *arguments],
        })

run.elastic_launch = Recorded
for name, words in json.load(sys.stdin):
    if name == "torchrun":
        run.run(run.parse_args(words))
    else:
        launch.launch(launch.parse_args(words))
json.dump(found, sys.stdout)
"""
"""Torch's own code except the launch itself, for all lines at once, as its import is slow."""


class Words(NamedTuple):
    """The words of a command line."""

    name: str
    """``torchrun``, or ``launch`` for torch.distributed.launch."""
    words: list[str]

    @property
    def for_clusterrun(self) -> list[str]:
        """The words after the command's name, as docs/torchrun.md says to type them."""
        if self.name == "launch" and "--use_env" not in self.words:
            return ["--pass-local-rank", *self.words]
        return self.words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the only program that a line needs on PATH."""
    folder = tmp_path_factory.mktemp("pasted")
    (folder / "bin").mkdir()
    fairseq = folder / "bin" / "fairseq-train"
    fairseq.write_text(f"#!{sys.executable}\n")
    fairseq.chmod(0o755)
    return folder


def split(pasted: Pasted, folder: Path) -> Words:
    """Return the words of a line, split by bash."""
    words = _by_bash(pasted, folder)
    if words[0] == "srun":
        del words[0]
    if words[:3] == ["python", "-m", "torch.distributed.launch"]:
        return Words("launch", words[3:])
    assert words[0] == "torchrun"
    return Words("torchrun", words[1:])


def _by_bash(pasted: Pasted, folder: Path) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", f"{pasted.setup}\nprintf '%s\\0' {pasted.line}"],
        env={"PATH": f"{folder}/bin:{plain_environment()['PATH']}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def torchrun_configs(folder: Path) -> Mapping[str, dict[str, Any]]:
    """Return torch's reading of each line, by its page."""
    lines = [split(pasted, folder) for pasted in LINES]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TORCHRUN_RECORDER],
        input=json.dumps(lines),
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {pasted.page: value for pasted, value in zip(LINES, found, strict=True)}


@pytest.mark.parametrize("pasted", LINES, ids=[pasted.page for pasted in LINES])
def test_torchrun_and_clusterrun_agree(
    torchrun_configs: Mapping[str, dict[str, Any]], folder: Path, tmp_path: Path, pasted: Pasted
) -> None:
    """Nodes, workers, endpoint, run id, restarts, role, script and arguments."""
    theirs = torchrun_configs[pasted.page]
    words = split(pasted, folder)
    _make_script(tmp_path, theirs["command"])

    done = typed(
        ["--dry-run", "--json", *words.for_clusterrun],
        plain_environment(),
        tmp_path,
        called="torchrun",
    )

    assert done.code == 0, done.err
    ours = json.loads(done.out)
    job = {name: value["value"] for name, value in ours["job"].items()}
    assert [job["fewest_nodes"], job["nnodes"]] == theirs["nodes"]
    assert len(ours["workers"]) == theirs["workers"]
    assert (job["max_restarts"], job["role"]) == (theirs["max_restarts"], theirs["role"])
    assert _run_id(ours["job"]["run_id"]) == _torch_run_id(theirs)
    assert _endpoint(job) == _torch_endpoint(theirs)
    assert theirs["backend"] == "c10d" or job["node_rank"] in {theirs["rank"], None}
    command = [word.replace("${local_rank}", "0") for word in theirs["command"]]
    assert ours["workers"][0]["command"] == command


def _make_script(folder: Path, command: Sequence[str]) -> None:
    """Create the script of torch's command ``PYTHON -u SCRIPT ...``, unless it is a module."""
    if command[2] != "-m":
        script = folder / command[2]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch()


def _run_id(value: Mapping[str, Any]) -> str:
    return "chosen" if value["origin"] == "default" else str(value["value"])


def _torch_run_id(theirs: Mapping[str, Any]) -> str:
    # Torchrun has a UUID where it chooses one, and "none" where the run has no name.
    chosen = theirs["endpoint"] == "localhost:0" or theirs["run_id"] == "none"
    return "chosen" if chosen else str(theirs["run_id"])


def _endpoint(job: Mapping[str, Any]) -> str:
    if job["rdzv_endpoint"] is not None:
        return str(job["rdzv_endpoint"])
    if job["nnodes"] == 1 and job["master_port"] is None:
        return "localhost:0"
    return f"{job['master_addr']}:{job['master_port']}"


def _torch_endpoint(theirs: Mapping[str, Any]) -> str:
    return str(theirs["endpoint"])

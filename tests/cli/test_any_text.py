"""Text from outside, whatever it is: a value or a mistake in words, and nothing that a terminal obeys."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from clusterrun.errors import UsageError, printable, shell_line
from clusterrun.job.declarations import option_words
from clusterrun.job.options import OPTIONS

from tests.captured import captured
from tests.rounds import in_all_rounds, numbers
from tests.typed import Typed, typed

FORGED = "clusterrun: error: forged"
HUSHED = "hush, hush"
HUSHED_NAME = "API_TOKEN_SECRET_KEY"
"""One change does not make it a name of nothing."""

SHELLS = ("bash", "zsh")

OBEYED = (
    *("\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\b", "\r", "\n", "\t", "\x0b", "\x7f", "\x85"),
    *("\u061c", "\u200e", "\u200f", "\u202a", "\u202e", "\u2028", "\u2029", "\u2066", "\u2069"),
    f"\n{FORGED}",
)
"""What a terminal obeys, or takes for the end of a line."""

ODD = (
    *OBEYED,
    "\udc80",
    "\udcff",
    "\xa0",
    "\ufeff",
    "\U0001f600",
    "'",
    '"',
    "\\",
    "$(",
    " ",
    "=",
    ",",
)
"""What argv, a variable and the name of a file may have."""

ODD_IN_YAML = (*ODD, "\0", "\ud800", "\udfff", "\ud83d\ude00")
"""An escape can write any character there, and halves of a pair."""

TEXTS = {
    "check": ("true",),
    "cluster": ("none", "exports"),
    "devices": ("0", "0,1"),
    "duplicate_stderr_filters": ("error,,warning",),
    "duplicate_stdout_filters": ("error",),
    "env": ("NCCL_DEBUG=INFO", "API_KEY=typed"),
    "events": ("events.jsonl",),
    "gpus_per_worker": ("0",),
    "hang_timeout": ("60",),
    "hostfile": ("hosts",),
    "hosts": ("127.0.0.1", "127.0.0.1,node[7-8],other"),
    "local_addr": ("127.0.0.1", "node7"),
    "local_ranks_filter": ("0,2-3",),
    "log_dir": ("logs",),
    "log_line_prefix_template": ("[${role_name}${rank}] ",),
    "machine_root": ("capture.json", "package"),
    "master_addr": ("node7", "fd77::1"),
    "master_port": ("29500", "0"),
    "no_restart_exit_codes": ("3,5-7",),
    "node_rank": ("0",),
    "nproc_per_node": ("1", "2", "cpu"),
    "numa_map": ("0=node 0", "map"),
    "pass_local_rank": ("local_rank",),
    "preload": ("none", "json,csv"),
    "python": ("/bin/sh",),
    "ranks": ("0,8-15",),
    "rdzv_backend": ("static", "c10d"),
    "rdzv_conf": ("join_timeout=9,timeout=8", "rank=0"),
    "rdzv_endpoint": ("node7:29500", "localhost"),
    "redirects": ("3", "0:3"),
    "run_id": ("mine",),
    "ssh_options": ("-p 2222",),
    "suspend_before": ("300",),
    "suspend_hook": ("true",),
    "suspend_signal": ("USR1",),
    "tee": ("3", "0:3,1:1"),
    "token_file": ("token",),
}
"""Valid texts of options whose default can't be given on the command line."""

UNUSUAL = ("config", "module", "no_python", "logs_specs", "requeue", "on_hang", "spares")
"""Options with which most jobs here would be impossible."""

MEETINGS = (
    *((), (), ()),
    ("--standalone",),
    ("--nnodes", "2", "--node-rank", "1", "--master-addr", "node7"),
    ("--nnodes=1:4", "--rdzv-endpoint=node7:29500", "--rdzv-backend", "c10d"),
    ("--hosts", "127.0.0.1,node[7-8]", "--launcher=ssh", "--ssh-options", "-p 2222 -J gate"),
    ("--hostfile", "hosts", "--token-file", "token"),
)

SCRIPTS = ("trian.py", "package", "data.json", "job.sh", "-", "missing/train.py", "tok\nen")

CLUSTERS: tuple[Mapping[str, str], ...] = (
    {},
    captured("node.0"),
    {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"},
    {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node7 4 node8 4"},
    {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": "hosts"},
    {"MASTER_ADDR": "node7", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "2"},
)

FILES = {
    "train.py": "import argparse\nparser.add_argument('--lr')\n",
    "data.json": "{}",
    "job.sh": "#!/bin/sh\n#SBATCH -N1\n",
    "hosts": "127.0.0.1 slots=2\nnode8:4  # spare\n10.0.0.[1-2]\n",
    "map": "0=node 0\n1=0-3\n",
    "token": "a secret of forty characters or so\n",
}


def some_text(random: Random, option: str) -> str:
    """Return a text that the option takes, or mostly takes."""
    row = OPTIONS[option]
    words = row.metavar.split("|") if "|" in row.metavar else ["1"]
    good = TEXTS.get(option) or ([row.default_text] if row.default_text else words)
    return random.choice(good if random.random() < 0.9 else words)


class Input:
    """One call, drawn: words, variables and files, each with few or no odd characters."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self._odds = random.choice((0.0, 0.02, 0.1, 0.3))
        self._odd: tuple[str, ...] = ODD
        names = [name for name in OPTIONS if name not in UNUSUAL]
        self.words = [
            self.changed(word)
            for words in (
                random.choice(MEETINGS),
                *(
                    option_words(OPTIONS[name], some_text(random, name), OPTIONS[name].flag)
                    for name in random.sample(names, random.choice((0, 0, 1, 2, 4)))
                ),
            )
            for word in words
        ]
        command = random.choices(("", "topo", "submit"), (20, 1, 4))[0]
        variables = random.sample([*OPTIONS], random.choice((0, 0, 1, 2)))
        self.environ = {
            "PATH": os.defpath,
            **self._changed_mapping(random.choice((*CLUSTERS[:1] * 5, *CLUSTERS))),
            **self._changed_mapping(
                {
                    random.choice(("CLUSTERRUN_", "PET_")) + name.upper(): some_text(random, name)
                    for name in variables
                }
            ),
            **({"CLUSTERRUN_ENV": f"A=1\n{HUSHED_NAME}={HUSHED}"} if random.random() < 0.2 else {}),
            "CLUSTERRUN_DRY_RUN": "1",
        }
        if random.random() < 0.5:
            self.words += ["--config", "job.yaml"]
        if random.random() < 0.7:
            script = "train.py" if random.random() < 0.8 else random.choice(SCRIPTS)
            self.words += map(self.changed, [script, "--lr", "1"])
        if command == "submit":
            self.words.insert(0, "--print")
        self.words[:0] = [command] if command else []
        self.files = {
            self.changed(name) if name != "job.yaml" else name: self.changed(text)
            for name, text in FILES.items()
        }
        self._odd = ODD_IN_YAML
        self.files["job.yaml"] = json.dumps(self._job(names))

    def _job(self, names: list[str]) -> dict[str, object]:
        random = self._random
        keys = random.sample(names, random.choice((0, 0, 1, 3)))
        entries: dict[str, object] = {name: some_text(random, name) for name in keys}
        entries["script"] = "train.py" if random.random() < 0.8 else random.choice(SCRIPTS)
        entries["args"] = ["--lr", "1"]
        entries["env"] = {"NCCL_DEBUG": "INFO", HUSHED_NAME: HUSHED}
        if random.random() < 0.3:
            server = {"command": "sleep 9", "ready": "/health", "env": {"A": "$PORT"}}
            entries["services"] = {
                "server": server,
                "other": {"script": "train.py", "after": "server"},
            }
        return {self.changed(key): self._changed_value(value) for key, value in entries.items()}

    def _changed_value(self, value: object) -> object:
        match value:
            case dict():
                return {self.changed(key): self._changed_value(each) for key, each in value.items()}
            case list():
                return [self._changed_value(each) for each in value]
            case _:
                return self.changed(str(value))

    def _changed_mapping(self, texts: Mapping[str, str]) -> dict[str, str]:
        return {
            self.changed(name).replace("=", ""): self.changed(text) for name, text in texts.items()
        }

    def changed(self, text: str) -> str:
        random = self._random
        if random.random() >= self._odds:
            return text
        at = random.randint(0, len(text))
        kinds: tuple[Callable[[], str], ...] = (
            lambda: text[:at] + random.choice(self._odd) + text[at:],
            lambda: text[:at] + random.choice(self._odd) + text[at + 1 :],
            lambda: text[:at] + text[at + 1 :],
            lambda: text[at:] + text[:at],
        )
        return random.choices(kinds, (6, 3, 2, 1))[0]()

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            plain = name.replace("/", "").replace("\0", "")
            if plain.strip("."):
                path = folder / plain
                path.write_bytes(text.encode(errors="surrogateescape"))
                path.chmod(0o600)
        (folder / "package").mkdir(exist_ok=True)
        (folder / "package/__init__.py").touch()

    def run(self, folder: Path) -> Typed:
        self.write(folder)
        try:
            return typed(self.words, self.environ, folder)
        finally:
            for path in folder.iterdir():
                if path.name != "package":
                    path.unlink()


def is_plain(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def what_is_wrong(drawn: Input, done: Typed) -> Iterator[str]:
    """Yield what a call must not do. A batch script has what the job needs, raw and secret."""
    if done.code not in {0, 2, 3} or "Traceback" in done.err:
        yield f"exit code {done.code}"
    printed = done.err if "submit" in drawn.words else done.out + done.err
    if not is_plain(printed):
        yield "raw text"
    if HUSHED in printed:
        yield "a secret"
    if re.search(rf"(?m)^\s*{FORGED}", done.err):
        yield "a forged line"


@pytest.mark.parametrize(
    "of_a_round",
    [
        pytest.param(200, marks=pytest.mark.timeout(in_all_rounds(120))),
        pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(in_all_rounds(1800))]),
    ],
)
def test_any_text_is_a_value_or_a_usage_error(of_a_round: int, tmp_path: Path) -> None:
    """No traceback, no line that a value has made, nothing that a terminal obeys, and no secret."""
    found: list[str] = []

    for seed in numbers(of_a_round):
        drawn = Input(seed)
        done = drawn.run(tmp_path)
        if wrong := ", ".join(what_is_wrong(drawn, done)):
            found.append(f"{seed}: {wrong}: {drawn.words!a}\n{done.err!a}")

    assert found == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("caf\u00e9 \u4f60", "caf\u00e9 \u4f60"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m\x9b\x7f", r"\x1b[31m\x9b\x7f"),
        ("\u202e\u2028\udcff\ud800", r"\u202e\u2028\udcff\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """As Python writes it; letters of any language stay."""
    assert printable(text) == shown


@pytest.mark.parametrize("shell", [pytest.param(it, marks=pytest.mark.needs(it)) for it in SHELLS])
def test_shell_line_round_trip(shell: str) -> None:
    """A shell makes the same words of the line, which is printable."""
    words = [f"a{odd}1'b" for odd in ODD]
    line = shell_line(words)

    done = subprocess.run(
        [shell, "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, timeout=20
    )

    assert line.isprintable()
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def test_errors_begin_no_foreign_lines() -> None:
    """A value begins no line: the message is one, and what the hint quotes is indented."""
    error = UsageError(
        "there is no a\n\x1b[1mclusterrun: b", "did you mean c?\n  clusterrun \u202ed"
    )

    assert error.explain() == (
        "clusterrun: error: there is no a\\n\\x1b[1mclusterrun: b\n"
        "  did you mean c?\n    clusterrun \\u202ed"
    )
    assert (
        str(error)
        == "there is no a\\n\\x1b[1mclusterrun: b\ndid you mean c?\n  clusterrun \\u202ed"
    )

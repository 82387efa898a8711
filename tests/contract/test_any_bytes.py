"""Bytes that are not UTF-8, in names of files and in what options say: jobs run with them."""

import os
from pathlib import Path

from tests.contract.launched import Launcher

ODD = "caf\udce9"
"""A name in Latin-1."""


def test_arguments_may_have_any_bytes(clusterrun: Launcher) -> None:
    """This applies to the script, its arguments and variables, log folder, events and patterns."""
    script = clusterrun.folder / f"{ODD}.py"
    text = "import os, sys; sys.stdout.buffer.write(os.environb[b'A'] + os.fsencode(sys.argv[1]))"
    script.write_text(f"{text}\nprint()\nprint('another line')\n")

    job = clusterrun.command(
        *("--env", f"A={ODD}", "--log-dir", ODD, "--events", f"{ODD}/events", "--tee", "1"),
        *("--log-line-prefix-template", f"{ODD}> ", "--duplicate-stdout-filters", ODD),
        *(script.name, ODD),
        workers=1,
    )
    ended = job.ended()

    logs = list((clusterrun.folder / ODD).glob("latest/**/filtered*"))
    odd = os.fsencode(ODD)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{ODD}> {ODD}{ODD}\n{ODD}> another line\n".replace("\udce9", "\ufffd")
    assert [path.read_bytes() for path in logs] == [odd + b"> " + odd + odd + b"\n"]
    assert Path(clusterrun.folder, ODD, "events").is_file()


def test_usage_error_may_have_any_bytes(clusterrun: Launcher) -> None:
    """They are escaped, and a terminal obeys none."""
    ended = clusterrun.command(f"{ODD}\x1b[31m.py").ended()

    assert ended.code == 2
    assert ended.err == "clusterrun: error: caf\\udce9\\x1b[31m.py does not exist\n"


def test_report_prints_any_log_path(clusterrun: Launcher) -> None:
    """The script's output is unchanged; clusterrun's messages are on separate lines."""
    folder = "a\nclusterrun: \x1b[31m"

    ended = clusterrun.script(
        """
        print("\\x1b[1mbold", flush=True)
        raise SystemExit(3)
        """,
        *("--log-dir", folder),
        workers=1,
    ).ended()

    assert ended.code == 3
    assert ended.out == "\x1b[1mbold\n"
    assert r"/a\nclusterrun: \x1b[31m/" in ended.err
    assert ended.err.replace("\n", "").isprintable()

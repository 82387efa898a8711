"""Bytes that are not UTF-8 in names of files and in values of options."""

import os
from pathlib import Path

from tests.contract.launched import Launcher

NOT_UTF_8 = "caf\udce9"
"""A name in Latin-1."""


def test_names_and_values_that_are_not_utf_8(clusterrun: Launcher) -> None:
    """In the script, its arguments and variables, the log folder, the events and the filters."""
    script = clusterrun.folder / f"{NOT_UTF_8}.py"
    text = "import os, sys; sys.stdout.buffer.write(os.environb[b'A'] + os.fsencode(sys.argv[1]))"
    script.write_text(f"{text}\nprint()\nprint('another line')\n")

    job = clusterrun.command(
        *(
            "--env",
            f"A={NOT_UTF_8}",
            "--log-dir",
            NOT_UTF_8,
            "--events",
            f"{NOT_UTF_8}/events",
            "--tee",
            "1",
        ),
        *("--log-line-prefix-template", f"{NOT_UTF_8}> ", "--duplicate-stdout-filters", NOT_UTF_8),
        *(script.name, NOT_UTF_8),
        workers=1,
    )
    ended = job.ended()

    logs = list((clusterrun.folder / NOT_UTF_8).glob("latest/**/filtered*"))
    encoded = os.fsencode(NOT_UTF_8)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{NOT_UTF_8}> {NOT_UTF_8}{NOT_UTF_8}\n{NOT_UTF_8}> another line\n".replace(
        "\udce9", "\ufffd"
    )
    assert [path.read_bytes() for path in logs] == [encoded + b"> " + encoded + encoded + b"\n"]
    assert Path(clusterrun.folder, NOT_UTF_8, "events").is_file()


def test_error_message_escapes_bytes_and_control_characters(clusterrun: Launcher) -> None:
    ended = clusterrun.command(f"{NOT_UTF_8}\x1b[31m.py").ended()

    assert ended.code == 2
    assert ended.err == "clusterrun: error: caf\\udce9\\x1b[31m.py does not exist\n"


def test_report_escapes_control_characters_of_log_folder(clusterrun: Launcher) -> None:
    """The output of the script is not changed."""
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

"""``clusterrun topo``: draws a machine, or captures it to a file."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.printing import can_print, is_on_terminal, print_json, print_text, warn
from clusterrun.errors import UsageError, shell_line
from clusterrun.job import values
from clusterrun.job.declarations import Option
from clusterrun.job.output import shows_colours
from clusterrun.job.resolve import Resolved, resolve
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process
from clusterrun.report.machine import Style, machine_view, topo_text
from clusterrun.run.preview import capture, preview


class Topo(Struct, frozen=True):
    """Options of ``clusterrun topo``."""

    capture: Annotated[
        values.NewCapture,
        Option(
            "Write what clusterrun reads about this machine to this .json file", default="no file"
        ),
    ] = None


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the drawing or its JSON, or write the capture.

    Raises:
        UsageError: the machine can't be read, the job can't be planned, or the file can't be written.

    """
    resolved = resolve(line, environ, this_process(called), for_topo=True, local_only=True)
    warn(resolved.warnings)
    path = line.read(Topo).capture
    if path is not None:
        return print_text(_capture(resolved, path, environ))
    machine, plan = preview(resolved, environ)
    if resolved.as_json:
        return print_json(machine_view(machine, plan))
    root = resolved.machine_root.value
    is_terminal = is_on_terminal()
    style = Style(
        width=shutil.get_terminal_size().columns if is_terminal else None,
        colour=is_terminal and shows_colours(environ),
        unicode=can_print("├─"),
    )
    name = machine.host if root is None else str(root)
    return print_text(topo_text(name, machine, plan, style))


def _capture(resolved: Resolved, path: Path, environ: Mapping[str, str]) -> str:
    content = capture(resolved, environ)
    try:
        _write(path, content)
    except OSError as error:
        raise UsageError(
            f"--capture: {path} can't be written: {error.strerror}",
            "give a path in a folder that you may write to",
        ) from None
    return (
        f"{path}, {len(content):,} bytes, holds what clusterrun reads about a machine: no host name,"
        " user name or serial number, but GPU UUIDs and the cgroup path\n"
        f"to show it:\n  clusterrun topo --machine-root {shell_line([str(path)])}"
    )


def _write(path: Path, content: bytes) -> None:
    """Write the whole file, or leave the old one as it is."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise

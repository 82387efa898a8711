"""``clusterrun topo``: draws a machine, or writes what is read of it to an archive."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from clusterrun.cli.options import Answer, parse
from clusterrun.errors import UsageError
from clusterrun.run.preview import capture, preview
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.programs.file_kinds import FileKind, kind_of
from clusterrun.sources.resolve import Resolved
from clusterrun.sources.settings import Flags


def options_of_topo(line: CommandLine) -> Flags | Answer:
    """Return the flags before and behind the word ``topo``, or the answer that they ask for.

    Raises:
        UsageError: what stands behind it is no option of ours.

    """
    words = line.words[1:]
    if {"-h", "--help"} & set(words):
        from clusterrun.cli.help import topo_help_text

        return Answer(topo_help_text())
    try:
        behind = parse(words)
    except UsageError as error:
        raise UsageError(error.message, _or_script(error.hint, words)) from None
    if isinstance(behind, Answer):
        return behind
    if behind.words:
        raise UsageError(
            f"clusterrun topo takes options alone, and {behind.words[0]} is none",
            _or_script("type clusterrun topo --help", words),
        )
    return {**line.flags, **behind.flags}


def _or_script(hint: str, words: Sequence[str]) -> str:
    if kind_of("topo") is FileKind.NOTHING:
        return hint
    line = shlex.join(["clusterrun", "./topo", *words])
    return f"{hint}\nto run the file topo instead:\n  {line}"


def topo(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Return what to print: the drawing, its JSON, or that the archive is written.

    Raises:
        UsageError: the machine can't be read, the job can't be planned, the archive not be written.

    """
    if resolved.capture.value is not None:
        return _capture(resolved, resolved.capture.value, environ)
    # Nothing else draws.
    from clusterrun.report.drawing import Style
    from clusterrun.report.topo import as_json, as_text

    machine, plan = preview(resolved, environ)
    if resolved.as_json:
        return as_json(machine, plan)
    root = resolved.machine_root.value
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    style = Style(
        width=shutil.get_terminal_size().columns if is_terminal else None,
        colour=is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
        unicode=_can_encode("├─"),
    )
    return as_text(machine.host if root is None else str(root), machine, plan, style)


def _capture(resolved: Resolved, path: Path, environ: Mapping[str, str]) -> str:
    from clusterrun.machine.captures.packing import compress

    content = capture(resolved, environ)
    try:
        packed = compress(content, path.name)
    except ValueError as error:
        hint = "give a name that ends in .tar.gz"
        raise UsageError(f"{resolved.capture.origin}: {error}", hint) from None
    try:
        _write(path, packed)
    except OSError as error:
        raise UsageError(
            f"{resolved.capture.origin}: {path} cannot be written: {error.strerror}",
            "give a path in a folder that you may write to",
        ) from None
    return (
        f"{path}, {len(packed):,} bytes, has in it what clusterrun reads of a machine: no name of host"
        " or user and no serial number, but the UUIDs of GPUs and the path of the control group\n"
        f"to draw what is in it:\n  clusterrun topo --machine-root {shlex.quote(str(path))}"
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that is there as a whole or, as before, not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def _can_encode(text: str) -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True

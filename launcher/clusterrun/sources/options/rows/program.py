"""Options: what the workers run."""

from collections.abc import Mapping

from clusterrun.sources.options.option import Kind, Option, switch_option
from clusterrun.sources.options.values import names, paths, torchrun

MODULE = switch_option(
    "module",
    help="SCRIPT is the name of a Python module, run as by python -m",
    short="m",
    common_in_scripts=True,
)
NO_PYTHON = switch_option(
    "no_python",
    help="SCRIPT is a program of any kind, found on PATH and run without Python",
)
RUN_PATH = switch_option(
    "run_path",
    help="SCRIPT is a file, folder or archive, run by runpy.run_path in the current folder",
)
PASS_LOCAL_RANK = Option(
    "pass_local_rank",
    parse=torchrun.local_rank_argument,
    default="",
    metavar="[=local-rank|local_rank]",
    help="Pass --local-rank=N to the script, or --local_rank=N as torch 1 did",
    kind=Kind.OPTIONAL,
    default_words="no",
)
ROLE = Option(
    "role",
    parse=names.role,
    default="default",
    metavar="NAME",
    help="The role of the workers, their ROLE_NAME",
    common_in_scripts=True,
)
PYTHON = Option(
    "python",
    parse=paths.path,
    default="",
    metavar="PATH",
    help="The interpreter that runs the workers",
    default_words="PYTHON_EXEC if set, else the one that runs clusterrun",
    common_in_scripts=True,
)
ENV: Option[Mapping[str, str]] = Option(
    "env",
    parse=names.setting,
    default={},
    metavar="NAME=VALUE",
    help="Set a variable for the workers; may be repeated",
    kind=Kind.REPEATED,
    default_words="none",
    common_in_scripts=True,
)

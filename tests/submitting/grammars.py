"""Fake bsub, qsub and flux: they check each directive of a script by the manual's grammar.

Run as a program, ``grammars.py lsf FOLDER`` reads a script from standard input, keeps it as
FOLDER/script, and answers as the scheduler's command does. Sources: IBM Spectrum LSF Command
Reference, bsub; PBS Professional Reference Guide, qsub; flux-batch(1).
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

NAME = r"[\w.@+=/-]+"
NUMBER = r"[1-9]\d*"
FILE = r"[\w%./{}+-]+"

LSF = {
    "-J": NAME,
    "-n": rf"{NUMBER}(?:,{NUMBER})?",
    "-R": rf"span\[ptile={NUMBER}\]|rusage\[mem={NUMBER}[MG]/host\]",
    "-gpu": rf"num={NUMBER}(?:/(?:task|host))?(?::gmodel={NAME})?",
    "-W": r"\d+:[0-5]\d",
    "-q": NAME,
    "-P": NAME,
    "-w": r"(?:done|ended|exit|started)\(\w+\)(?: && (?:done|ended|exit|started)\(\w+\))*",
    "-wa": r"[A-Z0-9]+",
    "-wt": NUMBER,
    "-o": FILE,
    "-e": FILE,
    "-x": "",
    "-r": "",
    "-sla": NAME,
}

CHUNK = rf"ncpus={NUMBER}|ngpus={NUMBER}|mem={NUMBER}mb|mpiprocs={NUMBER}|\w+=\w+"
PBS = {
    "-N": r"[A-Za-z0-9_][\w.+-]{0,235}",
    "-l": (
        rf"select={NUMBER}(?::(?:{CHUNK}))+|place=scatter(?::excl)?|walltime=\d\d+:[0-5]\d:[0-5]\d"
        rf"|qos={NAME}"
    ),
    "-q": NAME,
    "-A": NAME,
    "-J": rf"\d+-\d+(?::\d+)?(?:%{NUMBER})?",
    "-W": r"depend=(?:after|afterok|afternotok|afterany)(?::[\w.\[\]]+)+(?:,\w+(?::[\w.\[\]]+)+)*",
    "-r": "y|n",
    "-o": FILE,
    "-e": FILE,
    "-j": "oe|eo|n",
    "-m": "[abe]+|n",
}

FLUX = {
    "--job-name": NAME,
    "--nodes": NUMBER,
    "--nslots": NUMBER,
    "--cores-per-slot": NUMBER,
    "--gpus-per-slot": NUMBER,
    "--exclusive": "",
    # Flux Standard Duration, RFC 23.
    "--time-limit": r"\d+(?:\.\d+)?(?:ms|s|m|h|d)?",
    "--queue": NAME,
    "--bank": NAME,
    "--requires": r"[^\s]+",
    "--dependency": r"(?:after|afterok|afternotok|afterany):\w+",
    "--signal": r"SIG[A-Z0-9]+@\d+(?:ms|s|m|h|d)?",
    "--output": FILE,
    "--error": FILE,
    "--setattr": r"[^\s]+",
}

MARKS = {"lsf": "#BSUB ", "pbs": "#PBS ", "flux": "# flux: "}
GRAMMARS = {"lsf": LSF, "pbs": PBS, "flux": FLUX}

ANSWERS = {
    "lsf": "Job <7> is submitted to queue <normal>.",
    "pbs": "7.server",
    "flux": "\u01922Wq5Rdf",
}


def directives(scheduler: str, script: str) -> list[tuple[str, str]]:
    """Return the options of a script with their values.

    Raises:
        ValueError: a directive has no place in the scheduler's manual.

    """
    head = re.split(r"(?m)^(?!#|$)", script, maxsplit=1)[0]
    mark = MARKS[scheduler]
    found = [line.removeprefix(mark) for line in head.splitlines() if line.startswith(mark)]
    if script.count(f"\n{mark}") != len(found):
        raise ValueError("a directive after the first command is not read")
    options = [option for line in found for option in _options(line)]
    for flag, value in options:
        _check(flag, value, GRAMMARS[scheduler])
    return options


def _options(line: str) -> Iterator[tuple[str, str]]:
    words = shlex.split(line)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield flag, value


def _check(flag: str, value: str, grammar: Mapping[str, str]) -> None:
    if flag not in grammar:
        raise ValueError(f"there is no option {flag}")
    if not re.fullmatch(grammar[flag], value):
        raise ValueError(f"{flag} {value!r} is not as the manual has it")


def main(scheduler: str, folder: str) -> None:
    script = sys.stdin.read()
    try:
        directives(scheduler, script)
    except ValueError as error:
        sys.exit(str(error))
    (Path(folder) / "script").write_text(script)
    sys.stdout.write(f"{ANSWERS[scheduler]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])

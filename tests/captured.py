"""Environments that schedulers really make, kept beside the tests of each."""

from pathlib import Path

CLUSTERS = Path(__file__).parent / "job" / "clusters"


def captured(name: str, file: str = "slurm_22_05.txt") -> dict[str, str]:
    """Return the variables under the heading ``# name: ...`` of the file."""
    _, _, rest = (CLUSTERS / file).read_text().partition(f"\n# {name}: ")
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    assert lines, f"{name} is not in {file}"
    # A value of several lines is written as one.
    return dict(line.replace(r"\n", "\n").split("=", 1) for line in lines)

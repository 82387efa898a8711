"""Time the launch of an empty script side by side: clusterrun, torchrun, and the ratio."""

import tempfile
from functools import partial
from pathlib import Path

from side_by_side import OURS, THEIRS, launch_time, medians, parser, row


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Time the launch of an empty script.", nproc=8).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "empty.py")
        script.touch()
        measures = {
            name: partial(launch_time, name, options.nproc, script) for name in (OURS, THEIRS)
        }
        taken = medians(options.runs, measures)
    what = f"launch of an empty script, {options.nproc} ranks"
    print(row(what, *taken[OURS], *taken[THEIRS]))


if __name__ == "__main__":
    main()

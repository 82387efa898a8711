"""Much output, compared with torchrun."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "scripts" / "bench_output.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_much_output_is_whole_and_no_slower_than_torchrun() -> None:
    """Two ranks that print 300,000 lines each; the benchmark fails if one is torn or lost."""
    command = [sys.executable, str(BENCHMARK), "--runs", "3"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    assert done.returncode == 0, done.stderr
    [ratio] = re.findall(r"([\d.]+) times", done.stdout)
    assert float(ratio) >= 1, done.stdout

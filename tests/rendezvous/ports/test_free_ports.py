"""The ports that tests and benchmarks draw: no two processes draw the same one."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from free_ports import free_port

SCRIPTS = Path(__file__).parents[3] / "scripts"

DRAWS = """
from free_ports import free_port
print(*(free_port(range(10000, 10100)) for _ in range(20)), flush=True)
input()
"""
"""Of a hundred ports, which two processes would share without an agreement."""


def test_no_port_is_drawn_twice_by_living_processes() -> None:
    """By no process twice, and by no other process while it lives."""
    with ExitStack() as stack:
        drawing = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", DRAWS],
                    cwd=SCRIPTS,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        drawn = [port for each in drawing if each.stdout for port in each.stdout.readline().split()]
        for each in drawing:
            each.communicate("\n")

    assert len(drawn) == len(set(drawn)) == 60


def test_a_port_of_an_ended_process_is_drawn_again() -> None:
    """The kernel closes what held it."""
    script = "from free_ports import free_port; print(free_port())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=SCRIPTS, capture_output=True, check=True
    )
    port = int(done.stdout)

    assert free_port(range(port, port + 1)) == port

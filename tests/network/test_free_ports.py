"""Ports for tests: several processes of tests draw them at the same time."""

import subprocess
import sys
from pathlib import Path

from free_ports import BLOCK

SCRIPTS = Path(__file__).parents[2] / "scripts"

DRAWS = """
import sys
from free_ports import free_port
print(*(free_port() for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def test_two_processes_draw_different_ports() -> None:
    """While both are alive; each process draws different ports in a row."""
    command = [sys.executable, "-c", DRAWS, str(BLOCK)]
    processes = [
        subprocess.Popen(
            command, cwd=SCRIPTS, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(12)
    ]

    drawn = [process.stdout.readline().split() for process in processes if process.stdout]
    for process in processes:
        process.communicate(timeout=30)

    ports = [port for each in drawn for port in each]
    assert all(len(set(each)) > 1 for each in drawn)
    assert len(set(ports)) == sum(len(set(each)) for each in drawn)

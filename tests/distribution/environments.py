"""The wheel and the source distribution, and virtual environments that contain nothing else."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "launcher")

SECONDS_TO_INSTALL = 600.0
SECONDS_TO_RUN = 60.0


def build(folder: Path) -> Path:
    """Build both distributions of this checkout in ``folder``; return the folder with the files."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, checkout)
    run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(checkout)])
    return folder / "dist"


def environment(folder: Path, requirements: Sequence[str]) -> Path:
    """Make an empty virtual environment and install ``requirements``; return its ``bin``."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    run_pip(folder / "bin", "install", "--quiet", *requirements)
    return folder / "bin"


def run_pip(binaries: Path, *words: str) -> str:
    """Run the tests' pip on another environment, where installing pip would take seconds."""
    return run([sys.executable, "-m", "pip", "--python", str(binaries / "python"), *words])


def run(
    command: Sequence[str],
    folder: Path | None = None,
    within: float = SECONDS_TO_INSTALL,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run a command that must succeed; return its standard output.

    Raises:
        AssertionError: its exit code is not 0; the text is its output.

    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout

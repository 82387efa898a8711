"""Code that Python runs before any script is searched for words by which it could read a variable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.interpreters import FORK_SERVER, environment_without_pth

CHECK = f"""{FORK_SERVER}
from fork_server.preloading.hazards import unsafe_site_code
print(unsafe_site_code() or '')
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean") / "environment"
    environment_without_pth(sys.executable, folder)
    return folder


def checked(environment: Path, files: dict[str, str], trusted: str = "") -> str:
    """Return the result with these files in site-packages, and remove them again.

    A sitecustomize is put first on the path, because Debian's Python has one.
    """
    first = environment / "first"
    first.mkdir(exist_ok=True)
    site_packages = next((environment / "lib").glob("python3*")) / "site-packages"
    places = {name: first if name == "sitecustomize.py" else site_packages for name in files}
    for name, text in files.items():
        (places[name] / name).write_text(text)
    try:
        done = subprocess.run(
            [environment / "bin/python", "-c", CHECK],
            env={
                **os.environ,
                "PYTHONPATH": str(first),
                "CLUSTERRUN_TRUSTED_SITE_FILES": trusted,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        for name in files:
            (places[name] / name).unlink()
    return done.stdout.strip()


NAMESPACE = (
    "import sys, types, os;has_mfs = sys.version_info > (3, 5);"
    "p = os.path.join(sys._getframe(1).f_locals['sitedir'], *('google',));"
    "importlib = has_mfs and __import__('importlib.util');"
    "has_mfs and __import__('importlib.machinery');"
    "m = has_mfs and sys.modules.setdefault('google', importlib.util.module_from_spec("
    "importlib.machinery.PathFinder.find_spec('google', [os.path.dirname(p)])));"
    "m = m or sys.modules.setdefault('google', types.ModuleType('google'));"
    "mp = (m or []) and m.__dict__.setdefault('__path__',[]);(p not in mp) and mp.append(p)\n"
)
"""As setuptools writes it (setuptools/namespaces.py): Sphinx and google-api-core bring one."""

HARMLESS = {
    "nothing": {},
    "a path": {"paths.pth": "/somewhere/else\n"},
    "an import": {"imports.pth": "import sys; sys.path.append('/x')\n"},
    "setuptools": {"distutils-precedence.pth": "import os; os.environ.get('SETUPTOOLS')\n"},
    "coverage": {"a1_coverage.pth": "import os; os.getenv('COVERAGE_PROCESS_START')\n"},
    "virtualenv": {
        "_virtualenv.pth": "import _virtualenv",
        "_virtualenv.py": "import os; os.environ",
    },
    "a package in several folders": {"google_api_core-nspkg.pth": NAMESPACE},
    "a hook": {"hook.pth": "import a_finder", "a_finder.py": "import sys\nMAPPING = {}\n"},
}

SUSPICIOUS = {
    "more than a package in several folders": {"x-nspkg.pth": NAMESPACE[:-1] + ";os.environ\n"},
    "what it executes": {"sitecustomize.py": "exec(bytes([112, 97, 115, 115]))\n"},
    "what a line imports": {"helps.pth": "import helps\n", "helps.py": "import os; os.environb\n"},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_site_code(clean: Path, name: str) -> None:
    assert checked(clean, HARMLESS[name]) == ""


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_suspicious_site_code(clean: Path, name: str) -> None:
    why = checked(clean, SUSPICIOUS[name])

    file, _, advice = why.partition(
        " may read a variable that differs between workers; if it does not, use "
    )
    assert advice == f"--preload torch, or CLUSTERRUN_TRUSTED_SITE_FILES={file}"
    assert checked(clean, SUSPICIOUS[name], trusted=f"/another.pth:{file}") == ""
    assert checked(clean, SUSPICIOUS[name], trusted="/another.pth") == why

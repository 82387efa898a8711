"""GPUs that no machine of ours has."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def pynvml(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let the test file's own ``FAKE_NVML`` answer in place of NVML."""
    (tmp_path / "pynvml.py").write_text(request.module.FAKE_NVML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    yield
    sys.modules.pop("pynvml", None)

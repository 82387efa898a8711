"""How the launcher's debugger, of any version, is added to a worker's command."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from clusterrun.run.debugger import NotAttached, attached

COMMAND = ("/usr/bin/python", "-u", "train.py", "--lr", "1")


def patched_by(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., object]) -> None:
    """Have a pydevd with these functions."""
    monkey = ModuleType("pydev_monkey")
    vars(monkey).update(functions)
    monkeypatch.setitem(sys.modules, "_pydev_bundle.pydev_monkey", monkey)


def test_command_is_edited_by_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    patched_by(monkeypatch, patch_args=lambda words: [*words[:2], "pydevd.py", *words[2:]])

    assert attached(COMMAND) == ("/usr/bin/python", "-u", "pydevd.py", "train.py", "--lr", "1")


def test_option_of_frozen_modules_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debugpy runs this process with it. The options stay one word, as the fork server expects."""
    patched_by(monkeypatch, patch_args=lambda words: [*words[:2], "pydevd.py", *words[2:]])
    monkeypatch.setitem(sys._xoptions, "frozen_modules", "off")  # noqa: SLF001 - documented

    assert attached(COMMAND)[:3] == ("/usr/bin/python", "-uXfrozen_modules=off", "pydevd.py")


@pytest.mark.parametrize(
    ("patch_args", "why"),
    [
        (lambda _: None, "patch_args of pydevd returns None"),
        (lambda _: "python", "patch_args of pydevd returns 'python'"),
        (lambda words: [*words, 1], "patch_args of pydevd returns ['/usr/bin/python', "),
        (lambda _: [], "patch_args of pydevd returns "),
        (lambda words: ["sh", *words], "patch_args of pydevd returns sh /usr/bin/python -u"),
        (lambda words: words[:3], "patch_args of pydevd returns /usr/bin/python -u train.py"),
        (lambda words: words, "pydevd does not follow into /usr/bin/python -u train.py --lr 1"),
        (lambda *, words: words, "patch_args of pydevd: TypeError: "),
        (lambda words: words.remove("-m"), "patch_args of pydevd: ValueError: "),
    ],
)
def test_changed_function_does_not_attach(
    monkeypatch: pytest.MonkeyPatch, patch_args: Callable[..., object], why: str
) -> None:
    patched_by(monkeypatch, patch_args=patch_args)

    with pytest.raises(NotAttached) as raised:
        attached(COMMAND)

    assert str(raised.value).startswith(why)


@pytest.mark.parametrize("has_module", [True, False])
def test_missing_function_does_not_attach(
    monkeypatch: pytest.MonkeyPatch, *, has_module: bool
) -> None:
    patched_by(monkeypatch)
    if not has_module:
        monkeypatch.delitem(sys.modules, "_pydev_bundle.pydev_monkey")

    with pytest.raises(NotAttached, match=r"^this version of pydevd has no patch_args$"):
        attached(COMMAND)

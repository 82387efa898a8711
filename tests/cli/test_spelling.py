"""Flags may be spelled with - or _, and abbreviated as far as argparse allows it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cli.door import (
    FLAG_NAMES,
    TORCHRUN_FLAGS,
    foreign_option,
    full_name,
    is_flag,
    meanings,
)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("nnodes", "nnodes"),
        ("nproc", "nproc-per-node"),
        ("nproc_per_node", "nproc-per-node"),
        ("rdzv_e", "rdzv-endpoint"),
        ("rdzv", "rdzv"),
        ("master", "master"),
        ("gpus", "gpus"),
        ("gpus_p", "gpus-per-worker"),
        ("m", "m"),
        ("no_such", "no-such"),
    ],
)
def test_full_names(typed: str, name: str) -> None:
    """One meaning is taken; several or none leave the word for a complaint; a letter is short."""
    assert full_name(typed) == name


def test_an_exact_name_needs_no_choice() -> None:
    """``--master-addr`` is itself, whatever else may begin so one day."""
    assert meanings("master-addr") == ("master-addr",)
    assert meanings("master") == ("master-addr", "master-port")


@given(name=st.sampled_from(FLAG_NAMES), data=st.data())
def test_a_clear_abbreviation_means_its_flag(name: str, data: st.DataObject) -> None:
    """Cut a flag anywhere: what is left means it, if only one flag begins so and none is theirs."""
    cut = name[: data.draw(st.integers(2, len(name)))]
    assume(cut in FLAG_NAMES or foreign_option(cut) is None)
    others = [known for known in FLAG_NAMES if known.startswith(cut) and known != name]

    meant = full_name(cut)

    assert meant == (name if cut == name or not others else cut)


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("--nnodes", True),
        ("--nnodes=1", True),
        ("--dry_run", True),
        ("--dry", True),
        ("--lr", False),
        ("nnodes", False),
        ("-v", False),
        ("--", False),
    ],
)
def test_words_that_are_flags(word: str, is_one: bool) -> None:
    """Long flags of ours, with or without a value behind them."""
    assert is_flag(word) is is_one


@pytest.mark.parametrize(
    ("typed", "as_clusterrun", "as_torchrun"),
    [("ev", "ev", "event-log-handler"), ("st", "st", "st"), ("dry", "dry-run", "dry-run")],
)
def test_as_torchrun_its_own_flags_come_first(
    typed: str, as_clusterrun: str, as_torchrun: str
) -> None:
    """What is clear among torchrun's flags is not made unclear by ours."""
    assert full_name(typed) == as_clusterrun
    assert full_name(typed, TORCHRUN_FLAGS) == as_torchrun


def test_every_flag_of_torchruns_is_known() -> None:
    """None is left to be taken for a mistake."""
    assert set(TORCHRUN_FLAGS) <= set(FLAG_NAMES)

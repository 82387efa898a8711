"""Variables for AMD's GPUs as ROCR-Runtime's and HIP's own sources read them."""

from pathlib import Path

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree

from tests.machine_trees import KfdNode, MachineFacts, write_tree

FOUR = [
    KfdNode(f"0000:{at + 16:02x}:00.0", unique_id=number)
    for at, number in enumerate((0x00AA000000000001, 0x00AA000000000002, 0x00BB000000000003, 0))
]


def seen(root: Path, **environ: str) -> list[int]:
    """Return the numbers of the GPUs that these variables leave of four."""
    tree = Tree(write_tree(root, MachineFacts(kfd=(KfdNode(), KfdNode(), *FOUR))))
    return [gpu.index for gpu in inspect(tree, environ, None, "").visible]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2", [0, 2]),
        ("3,0", [3, 0]),
        (" 2 , 1", [2, 1]),
        ("0x2,01", [2, 1]),
        ("1,1,2", [1]),
        ("1,9,2", [1]),
        ("1,-1,2", [1]),
        ("1,x", [1]),
        ("1,,2", [1]),
        ("1gpu", []),
        ("", []),
        ("GPU-00bb", [2]),
        ("gpu-00BB000000000003,0", [2, 0]),
        ("GPU-00aa", []),
        ("GPU-", []),
        ("GPU-00cc,0", []),
    ],
)
def test_rocr_visible_devices(tmp_path: Path, text: str, expected: list[int]) -> None:
    """A wrong or repeated entry ends the list."""
    assert seen(tmp_path, ROCR_VISIBLE_DEVICES=text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2", [0, 2]),
        ("3,0", [3, 0]),
        ("1,1,2", [1, 2]),
        ("1,9,2", [1]),
        ("0, 1", [0]),
        ("01", []),
        ("-1", []),
        ("", []),
        ("GPU-00bb000000000003,0", [2, 0]),
        ("GPU-00aa", [0]),
        ("GPU-00BB", []),
    ],
)
@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_hip_visible_devices(tmp_path: Path, variable: str, text: str, expected: list[int]) -> None:
    """A wrong entry ends the list, a repeated one counts once; CUDA's variable is an alias."""
    assert seen(tmp_path, **{variable: text}) == expected

"""CUDA_VISIBLE_DEVICES is read as torch 2.13 reads it."""

from pathlib import Path

import pytest
from clusterrun.machine.gpus.nvidia import parse
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.machine.tree import Tree

from tests.machine.nvml_answers import answered, part, whole
from tests.machine_trees import MachineFacts, PciDevice, write_tree

# Recorded from torch.cuda._parse_visible_devices().
TORCH: list[tuple[str, list[int] | list[str]]] = [
    ("", []),
    ("0", [0]),
    ("0,1", [0, 1]),
    ("1,0", [1, 0]),
    (" 2 , 3 ", [2, 3]),
    ("0,1,-1,2", [0, 1]),
    ("-1", []),
    ("0,0", []),
    ("0,1,0", []),
    ("NoDevFiles", []),
    ("0,x,2", [0]),
    ("1gpu2,2ampere", [1, 2]),
    ("+1,2", [1, 2]),
    ("-0,1", [0, 1]),
    ("0,", [0]),
    ("0,,2", [0]),
    ("03,3", []),
    ("99", [99]),
    ("GPU-aaaa,GPU-bbbb", ["GPU-aaaa", "GPU-bbbb"]),
    ("GPU-a,GPU-a", []),
    ("GPU-aaaa,0", ["GPU-aaaa"]),
    ("0,GPU-aaaa", [0]),
    ("MIG-x/1/0", ["MIG-x/1/0"]),
    ("MIG-x,MIG-y,GPU-z", ["MIG-x", "MIG-y"]),
    ("GPU-", ["GPU-"]),
    ("gpu-aaaa", []),
    ("all", []),
    ("none", []),
    ("void", []),
]
UUIDS = ["GPU-aaaa1", "GPU-aaaa2", "GPU-bbbb3"]
# Recorded from torch.cuda._transform_uuid_to_ordinals().
TORCH_UUIDS: list[tuple[list[str], list[int]]] = [
    (["GPU-bbbb"], [2]),
    (["GPU-aaaa"], []),
    (["GPU-aaaa1", "GPU-bbbb"], [0, 2]),
    (["GPU-cccc"], []),
    (["GPU-bbbb", "GPU-cccc", "GPU-aaaa1"], [2]),
    (["GPU-bbbb", "GPU-bbbb3"], []),
]


def gpus(*uuids: str) -> list[Gpu]:
    """Return whole GPUs with these UUIDs."""
    return [whole(index, uuid) for index, uuid in enumerate(uuids)]


def split(wholes: list[Gpu], **slices: int) -> list[Gpu]:
    """Return the GPUs with ``slices``: the number of the GPU by the end of a slice's UUID."""
    parts = [
        part(wholes[number], f"MIG-{name}", at) for at, (name, number) in enumerate(slices.items())
    ]
    return wholes + parts


def machine(root: Path, listed: list[Gpu], text: str | None = None) -> Machine:
    """Return a machine whose NVML lists these GPUs, for a job with a CUDA_VISIBLE_DEVICES."""
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    return inspect(answered(root, listed), environ, None, "")


def seen(root: Path, listed: list[Gpu], text: str) -> list[str]:
    """Return the UUIDs of what CUDA_VISIBLE_DEVICES leaves."""
    return [gpu.uuid for gpu in machine(root, listed, text).visible]


@pytest.mark.parametrize(("text", "expected"), TORCH)
def test_entries_are_parsed_as_by_torch(text: str, expected: list[int] | list[str]) -> None:
    """Every string gives torch's list."""
    assert list(parse(text).ids) == expected


@pytest.mark.parametrize(("ids", "expected"), TORCH_UUIDS)
def test_uuids_are_parsed_as_by_torch(tmp_path: Path, ids: list[str], expected: list[int]) -> None:
    """The beginning of a UUID is enough if only one GPU has it."""
    assert seen(tmp_path, gpus(*UUIDS), ",".join(ids)) == [UUIDS[number] for number in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIG-b,MIG-a1", ["MIG-b", "MIG-a1"]),
        ("MIG-a", []),
        ("MIG-a1,MIG-x,MIG-b", ["MIG-a1"]),
        ("MIG-a1,MIG-a1", []),
        ("MIG-GPU-1/2/0,MIG-GPU-0/0/0", ["MIG-b", "MIG-a1"]),
        ("MIG-GPU-1/2/0,MIG-b", []),
        ("MIG-GPU-1/9/0", []),
        ("GPU-0,MIG-b", ["GPU-0"]),
        ("1", ["GPU-1"]),
        ("2", []),
    ],
)
def test_slices_are_found_by_both_uuid_forms(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    """A slice is named by its UUID, its beginning, or GPU and instances; a number is a whole GPU."""
    listing = split(gpus("GPU-0", "GPU-1"), a1=0, a2=0, b=1)

    assert seen(tmp_path, listing, text) == expected


def test_a_slice_has_the_address_of_its_gpu(tmp_path: Path) -> None:
    """Its parent distinguishes it."""
    (found,) = machine(tmp_path, split(gpus("GPU-0", "GPU-1"), b=1), "MIG-b").visible

    assert (found.bdf, found.index, found.parent) == ("0000:11:00.0", 1, "GPU-1")


@pytest.mark.parametrize(
    ("count", "text", "expected"),
    [
        (1, "MIG-x,MIG-y", ["0000:10:00.0", "0000:10:00.0"]),
        (2, "MIG-GPU-1/2/0", ["0000:11:00.0"]),
        (2, "MIG-x", []),
    ],
    ids=["one-gpu", "gpu-in-the-name", "any-of-two"],
)
def test_slice_without_nvml_has_its_gpu(
    tmp_path: Path, count: int, text: str, expected: list[str]
) -> None:
    """CUDA reads their names even if NVML does not answer."""
    devices = [
        PciDevice(f"0000:{at + 16:02x}:00.0", uuid=f"GPU-{at}", minor=at) for at in range(count)
    ]
    write_tree(tmp_path, MachineFacts(devices=devices))

    found = inspect(Tree(tmp_path), {"CUDA_VISIBLE_DEVICES": text}, None, "")

    assert [gpu.bdf for gpu in found.visible] == expected


@pytest.mark.parametrize("uuid", ["", "GPU-????????-????"])
def test_slices_of_a_gpu_without_a_uuid(tmp_path: Path, uuid: str) -> None:
    """Each is known to be a slice: a process sees one of them only."""
    write_tree(tmp_path, MachineFacts(devices=[PciDevice("0000:10:00.0", uuid=uuid, minor=0)]))

    found = inspect(Tree(tmp_path), {"CUDA_VISIBLE_DEVICES": "MIG-x,MIG-y"}, None, "")

    assert [(gpu.uuid, gpu.parent) for gpu in found.visible] == [
        ("MIG-x", "0000:10:00.0"),
        ("MIG-y", "0000:10:00.0"),
    ]


def test_nvml_lists_all_slices(tmp_path: Path) -> None:
    """If NVML answers, a UUID that it does not list is invalid."""
    assert seen(tmp_path, gpus("GPU-0"), "MIG-x") == []


def test_unselected_slices_give_a_warning(tmp_path: Path) -> None:
    """A process sees only one of them."""
    listing = split(gpus("GPU-0", "GPU-1"), a=1, b=1)

    warning = machine(tmp_path, listing).visible_warning

    assert warning == (
        "GPU 1 is split into 2 MIG slices, of which CUDA shows each process only one; for a worker"
        " on each: --devices MIG-a,MIG-b --virtual-local-rank"
    )
    assert machine(tmp_path, listing, "1").visible_warning == warning
    assert machine(tmp_path, listing, "0").visible_warning == ""
    assert machine(tmp_path, listing, "MIG-b,MIG-a").visible_warning == ""


@pytest.mark.parametrize(
    ("uuids", "named"),
    [
        (["MIG-01234567-89ab", "MIG-01239999-89ab"], "MIG-01234,MIG-01239"),
        (["MIG-ABCD0000", "MIG-abce0000"], "MIG-ABCD,MIG-abce"),
        (["MIG-abcdef", "MIG-ABCDEF00"], "MIG-abcdef,MIG-ABCDEF0"),
        (
            [f"MIG-{at}abc0123-4567-89ab" for at in range(7)],
            ",".join(f"MIG-{at}abc" for at in range(7)),
        ),
    ],
    ids=["as-far-as-they-differ", "at-least-four-digits", "one-begins-the-other", "seven"],
)
def test_warning_names_slices_as_devices_takes_them(
    tmp_path: Path, uuids: list[str], named: str
) -> None:
    """By beginnings that no other UUID has, in any case of letters."""
    gpu = whole(0)

    warning = machine(tmp_path, [gpu, *(part(gpu, uuid) for uuid in uuids)]).visible_warning

    assert f" --devices {named} --virtual-local-rank" in warning


def test_warning_with_many_slices_is_short(tmp_path: Path) -> None:
    """The warning is short, and the command in it works."""
    wholes = gpus(*(f"GPU-{at}" for at in range(8)))
    parts = [part(gpu, f"MIG-{gpu.index}{at}345678-1234") for gpu in wholes for at in range(7)]

    assert machine(tmp_path, wholes + parts).visible_warning == (
        "GPUs 0-7 are split into 56 MIG slices, of which CUDA shows each process only one; for a"
        " worker on 11 of them: --devices"
        " MIG-0034,MIG-0134,MIG-0234,MIG-0334,MIG-0434,MIG-0534,MIG-0634,MIG-1034,MIG-1134,MIG-1234,MIG-1334"
        " --virtual-local-rank (clusterrun topo lists all)"
    )

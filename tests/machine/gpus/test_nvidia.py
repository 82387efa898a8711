"""CUDA_VISIBLE_DEVICES is read as torch 2.13 reads it."""

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.machine.door import (
    Choice,
    Device,
    Listing,
    is_order_known,
    parse,
)
from tests.machine.door import (
    choose_nvidia as choose,
)

ORACLE = Path(__file__).parents[4] / "shared/machines/torch-2.13-cuda-visible-devices.txt"

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


def gpus(*uuids: str, source: str = "NVML", models: str = "") -> Listing:
    """Return whole GPUs with these UUIDs; ``models`` has a letter for each."""
    return Listing(
        source,
        tuple(
            Device("nvidia", number, f"0000:{number + 16:02x}:00.0", uuid, models[number:][:1])
            for number, uuid in enumerate(uuids)
        ),
    )


def split(listing: Listing, **slices: int) -> Listing:
    """Return the GPUs with ``slices``: the number of the GPU by the end of a slice's UUID."""
    parts = tuple(
        replace(
            listing.devices[number],
            uuid=f"MIG-{name}",
            parent=listing.devices[number].uuid,
            legacy_name=f"MIG-{listing.devices[number].uuid}/{at}/0",
        )
        for at, (name, number) in enumerate(slices.items())
    )
    return replace(listing, devices=listing.devices + parts)


FOUR = gpus("GPU-0", "GPU-1", "GPU-2", "GPU-3")


def seen(listing: Listing, text: str) -> list[str]:
    """Return the UUIDs of what CUDA_VISIBLE_DEVICES leaves."""
    return [device.uuid for device in choose(listing, {"CUDA_VISIBLE_DEVICES": text}).devices]


@pytest.mark.parametrize(("text", "expected"), TORCH)
def test_entries_are_those_of_torch(text: str, expected: list[int] | list[str]) -> None:
    """Every string gives torch's list."""
    assert list(parse(text).ids) == expected


@pytest.mark.parametrize(("ids", "expected"), TORCH_UUIDS)
def test_uuids_are_read_as_torch_reads_them(ids: list[str], expected: list[int]) -> None:
    """The beginning of a UUID is enough if only one GPU has it."""
    assert seen(gpus(*UUIDS), ",".join(ids)) == [UUIDS[number] for number in expected]


@pytest.mark.skipif("not ORACLE.exists()", reason="not at hand")
def test_all_recorded_answers_of_torch() -> None:
    """The same as the two above, from the file that torch's answers were written to."""
    lines = [line.split("->") for line in ORACLE.read_text().splitlines()]
    strings = [(ast.literal_eval(left), ast.literal_eval(right)) for left, right in parsed(lines)]
    uuids = [
        (ast.literal_eval(left[5:]), ast.literal_eval(right))
        for left, right in lines
        if left.startswith("uuid ")
    ]

    assert len(strings) == 27
    assert [(text, list(parse(text).ids)) for text, _ in strings] == strings
    assert len(uuids) == 6
    assert [(ids, seen(gpus(*UUIDS), ",".join(ids))) for ids, _ in uuids] == [
        (ids, [UUIDS[number] for number in numbers]) for ids, numbers in uuids
    ]
    assert choose(gpus(*(f"GPU-{number}" for number in range(64))), {}).devices[63].number == 63
    assert lines[0][0].strip() == "None"


def parsed(lines: list[list[str]]) -> list[tuple[str, str]]:
    """Return the strings and their lists; the first line is the case without the variable."""
    return [
        (left.strip(), right.strip()) for left, right in lines[1:] if not left.startswith("uuid ")
    ]


def test_without_the_variable_all_are_visible() -> None:
    """The order is that of the vendor."""
    assert choose(FOUR, {}) == Choice(FOUR.devices, "", "")


def test_the_order_of_the_list_is_the_order_of_the_workers() -> None:
    """The first entry is the GPU of local rank 0."""
    found = choose(FOUR, {"CUDA_VISIBLE_DEVICES": "3,0"})

    assert [device.number for device in found.devices] == [3, 0]
    assert (found.origin, found.remark) == ("CUDA_VISIBLE_DEVICES=3,0", "")


@pytest.mark.parametrize(
    ("text", "numbers", "remark"),
    [
        ("0,9,1", [0], "CUDA_VISIBLE_DEVICES: 9 is not a GPU here; CUDA ends the list there"),
        ("GPU-7", [], "CUDA_VISIBLE_DEVICES: GPU-7 is not a GPU here; CUDA ends the list there"),
        (
            "GPU-1,GPU-1",
            [],
            "CUDA_VISIBLE_DEVICES=GPU-1,GPU-1: 'GPU-1' is listed twice; CUDA then shows none",
        ),
        (
            "1,x",
            [1],
            "CUDA_VISIBLE_DEVICES=1,x: 'x' is neither number nor UUID; CUDA ends the list there",
        ),
    ],
)
def test_a_list_cut_short_says_where(text: str, numbers: list[int], remark: str) -> None:
    """The remark names the entry."""
    found = choose(FOUR, {"CUDA_VISIBLE_DEVICES": text})

    assert [device.number for device in found.devices] == numbers
    assert found.remark == remark


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
def test_slices_are_named_by_either_form(text: str, expected: list[str]) -> None:
    """A slice is named by its UUID, its beginning, or GPU and instances; a number is a whole GPU."""
    listing = split(gpus("GPU-0", "GPU-1"), a1=0, a2=0, b=1)

    assert seen(listing, text) == expected


def test_a_slice_has_the_address_of_its_gpu() -> None:
    """Its parent distinguishes it."""
    listing = split(gpus("GPU-0", "GPU-1"), b=1)

    (found,) = choose(listing, {"CUDA_VISIBLE_DEVICES": "MIG-b"}).devices

    assert (found.bdf, found.number, found.parent) == ("0000:11:00.0", 1, "GPU-1")


@pytest.mark.parametrize(
    ("listing", "text", "expected"),
    [
        (gpus("GPU-0", source="sysfs"), "MIG-x,MIG-y", ["0000:10:00.0", "0000:10:00.0"]),
        (gpus("GPU-0", "GPU-1", source="sysfs"), "MIG-GPU-1/2/0", ["0000:11:00.0"]),
        (gpus("GPU-0", "GPU-1", source="sysfs"), "MIG-x", []),
        (gpus("GPU-0"), "MIG-x", []),
    ],
    ids=["one-gpu", "gpu-in-the-name", "any-of-two", "nvml-knows-none"],
)
def test_without_nvml_slices_are_known_by_their_gpu(
    listing: Listing, text: str, expected: list[str]
) -> None:
    """CUDA reads their names even if NVML does not answer."""
    found = choose(listing, {"CUDA_VISIBLE_DEVICES": text})

    assert [device.bdf for device in found.devices] == expected


def test_slices_that_nobody_named_are_remarked() -> None:
    """A process sees only one of them."""
    listing = split(gpus("GPU-0", "GPU-1"), a=1, b=1)

    remark = choose(listing, {}).remark

    assert remark == (
        "GPU 1 is split into 2 MIG slices, of which CUDA shows a process one;"
        " for a worker on each: --devices MIG-a,MIG-b --virtual-local-rank"
    )
    assert choose(listing, {"CUDA_VISIBLE_DEVICES": "1"}).remark == remark
    assert choose(listing, {"CUDA_VISIBLE_DEVICES": "0"}).remark == ""
    assert choose(listing, {"CUDA_VISIBLE_DEVICES": "MIG-b,MIG-a"}).remark == ""


@pytest.mark.parametrize(
    ("models", "environ", "known"),
    [
        ("AA", {}, True),
        ("AB", {}, False),
        ("AB", {"CUDA_VISIBLE_DEVICES": "1,0"}, False),
        ("AB", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, False),
        ("AB", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
        ("AB", {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}, True),
    ],
)
def test_cuda_s_order_is_the_bus_s_for_gpus_of_one_model(
    models: str, environ: dict[str, str], *, known: bool
) -> None:
    """Of several models CUDA puts the fastest first, and only CUDA knows which that is."""
    assert is_order_known(gpus("GPU-0", "GPU-1", models=models), environ) is known

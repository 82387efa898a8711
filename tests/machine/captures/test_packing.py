"""Archives of machines: written by us, by other tools, and by attackers."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.machine.door import (
    Entry,
    Tree,
    compress,
    pack,
    read_archive,
)

ENTRIES = {
    "sys/devices/gpu/numa_node": Entry(b"1\n", 0o444),
    "sys/bus/gpu": Entry(target="../devices/gpu"),
    "dev/nvidia0": Entry(mode=0),
    "proc/empty": None,
}

SQUEEZERS: Sequence[Callable[[bytes], bytes]] = (
    bytes,
    gzip.compress,
    lzma.compress,
    bz2.compress,
)


def archive_of(folder: Path, *members: tarfile.TarInfo) -> Path:
    """Return a tar of these members; each has as many zeros as its size says."""
    path = folder / "machine.tar"
    with tarfile.open(path, "w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


@pytest.mark.parametrize("name", ["m.tar.xz", "m.tar.gz", "m.tgz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    """Files, links, folders and unreadable files are kept."""
    (tmp_path / name).write_bytes(compress(pack("machine", ENTRIES), name))

    tree = Tree(read_archive(tmp_path / name))

    assert tree.integer("sys/bus/gpu/numa_node") == 1
    assert tree.exists("proc/empty")
    assert (tree.exists("dev/nvidia0"), tree.can_open("dev/nvidia0")) == (True, False)


@pytest.mark.parametrize("name", ["m.tar.xz", "m.tar.gz"])
def test_the_same_machine_is_the_same_bytes(name: str) -> None:
    """The archive has no time, host or user of the capture."""
    backwards = dict(reversed(ENTRIES.items()))

    once, again = (compress(pack("machine", it), name) for it in (ENTRIES, backwards))

    assert once == again


def test_tar_itself_can_unpack_it() -> None:
    """Users can look at an archive before they send it."""
    content = io.BytesIO(pack("machine", ENTRIES))

    with tarfile.open(fileobj=content) as archive:
        assert archive.getnames() == [
            "machine/dev/nvidia0",
            "machine/proc/empty",
            "machine/sys/bus/gpu",
            "machine/sys/devices/gpu/numa_node",
        ]


@pytest.mark.parametrize("top", ["", "./", "./some-box/", "/"])
def test_the_root_may_be_a_folder_inside(tmp_path: Path, top: str) -> None:
    """Archives of hwloc's gather-topology and of tar have such a folder."""
    path = archive_of(tmp_path, member(f"{top}sys/a", size=3), member(f"{top}proc/b"))

    tree = Tree(read_archive(path))

    assert (tree.names("sys"), tree.names("proc")) == (("a",), ("b",))


def test_one_half_of_a_machine_is_no_folder_around_it(tmp_path: Path) -> None:
    """An archive may have sys without proc."""
    path = archive_of(tmp_path, member("sys/a"))

    assert Tree(read_archive(path)).names("sys") == ("a",)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    """A hard link has the content of its target; devices and pipes are empty."""
    path = archive_of(
        tmp_path,
        member("sys/a", size=3),
        member("sys/b", tarfile.LNKTYPE, "sys/a"),
        member("sys/c", tarfile.LNKTYPE, "sys/missing"),
        member("dev/kfd", tarfile.CHRTYPE),
        member("dev/pipe", tarfile.FIFOTYPE),
    )

    files = read_archive(path)

    assert files.read("sys/b") == bytes(3)
    assert not files.can_open("sys/c")
    assert [files.read(f"dev/{name}") for name in ("kfd", "pipe")] == [b"", b""]


@pytest.mark.parametrize("name", ["../sys/a", "machine/../../sys/a", "sys/.."])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """No tool makes such an archive by accident."""
    with pytest.raises(ValueError, match="leads out of it"):
        read_archive(archive_of(tmp_path, member(name)))


@pytest.mark.parametrize("squeeze", SQUEEZERS)
def test_a_bomb_is_not_unpacked(tmp_path: Path, squeeze: Callable[[bytes], bytes]) -> None:
    """The limit is on the unpacked size."""
    path = archive_of(tmp_path, member("sys/a", size=4 << 20))
    path.write_bytes(squeeze(path.read_bytes()))

    with pytest.raises(ValueError, match="it has more than 1 MiB in it"):
        read_archive(path, max_size=1 << 20)


def test_a_file_that_announces_too_much_is_not_read(tmp_path: Path) -> None:
    """A header may announce a false size, and a sparse file takes no space."""
    huge = member("sys/a")
    huge.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,1",
        "GNU.sparse.realsize": str(1 << 50),
        "GNU.sparse.size": str(1 << 50),
        "GNU.sparse.name": "sys/a",
    }
    path = archive_of(tmp_path, huge)

    with pytest.raises(ValueError, match="more in it than any machine"):
        read_archive(path)


def test_a_file_longer_than_any_of_a_machine_is_not_read(tmp_path: Path) -> None:
    """Few bytes of an archive may be many of a file."""
    path = archive_of(tmp_path, member("sys/devices/system/cpu/online", size=17 * 2**20))
    path.write_bytes(bz2.compress(path.read_bytes()))

    assert path.stat().st_size < 1000
    with pytest.raises(ValueError, match="more in it than any machine"):
        read_archive(path)


@pytest.mark.parametrize("squeeze", SQUEEZERS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_an_incomplete_archive_is_refused(
    tmp_path: Path, squeeze: Callable[[bytes], bytes], part: float
) -> None:
    """An incomplete file is an error, unless only the end of the tar is missing."""
    path = tmp_path / "m"
    whole = squeeze(pack("machine", {"sys/a": Entry(os.urandom(20_000))}))
    path.write_bytes(whole[: int(len(whole) * part)])

    if squeeze is bytes and part == 0.99:
        # Only the zeros at the end are missing.
        assert Tree(read_archive(path)).exists("sys/a")
    else:
        with pytest.raises(ValueError, match=r"."):
            read_archive(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """After any change of bytes, reading returns files or raises ``ValueError``."""
    squeeze = data.draw(st.sampled_from(SQUEEZERS))
    content = bytearray(squeeze(pack("machine", ENTRIES)))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m"
    path.write_bytes(content)

    try:
        tree = Tree(read_archive(path))
    except ValueError:
        return
    assert tree.text("sys/bus/gpu/numa_node") is not None


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A script and an empty file are refused."""
    for text in ("print('hello')\n" * 100, ""):
        (tmp_path / "m.tar.xz").write_text(text)

        with pytest.raises(ValueError, match=r"."):
            read_archive(tmp_path / "m.tar.xz")

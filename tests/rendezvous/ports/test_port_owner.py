"""Who has a port: from captured tables, and from this very machine."""

import os
import socket
from pathlib import Path

from clusterrun.rendezvous.ports.port_owner import owner_of_port, program

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENING = (
    "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000"
    "        0 4711 1 0000000000000000 100 0 0 10 0\n"
)
CONNECTED = (
    "   1: 0100007F:733D 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0"
    "        0 4712 1 0000000000000000 20 4 30 10 -1\n"
)


def tree(root: Path, tcp: str = HEAD, tcp6: str = HEAD) -> Path:
    """Make a tree with these tables."""
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/tcp").write_text(tcp)
    (root / "proc/net/tcp6").write_text(tcp6)
    return root


def process(root: Path, pid: int, name: str, *inodes: int) -> None:
    """Add a process that has these sockets open."""
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/comm").write_text(f"{name}\n")
    for number, inode in enumerate(inodes):
        (root / f"proc/{pid}/fd/{number}").symlink_to(f"socket:[{inode}]")


def test_the_program_that_listens_is_named(tmp_path: Path) -> None:
    """By its socket."""
    root = tree(tmp_path, HEAD + CONNECTED + LISTENING)
    process(root, 11, "sshd", 1, 2)
    process(root, 12, "python", 3, 4711)

    assert owner_of_port(29500, root) == "python (pid 12)"


def test_a_socket_of_both_families_is_found(tmp_path: Path) -> None:
    """It stands in the other table."""
    root = tree(tmp_path, tcp6=HEAD + LISTENING)
    process(root, 12, "python", 4711)

    assert owner_of_port(29500, root) == "python (pid 12)"


def test_of_somebody_else_s_program_the_user_is_known(tmp_path: Path) -> None:
    """Its descriptors are not for us to see."""
    root = tree(tmp_path, HEAD + LISTENING)

    assert owner_of_port(29500, root) == "a program of user 1000"


def test_a_connection_is_no_listener(tmp_path: Path) -> None:
    """It does not keep us from listening."""
    root = tree(tmp_path, HEAD + CONNECTED)
    process(root, 12, "python", 4712)

    assert owner_of_port(29501, root) == "another program"


def test_without_proc_it_is_just_another_program(tmp_path: Path) -> None:
    """Some containers hide it."""
    assert owner_of_port(29500, tmp_path) == "another program"
    assert program(12, tmp_path) == "a program (pid 12)"


def test_a_line_that_is_cut_short_is_left_out(tmp_path: Path) -> None:
    """Nobody promises whole lines."""
    root = tree(tmp_path, HEAD + "   0: 00000000:733C\n" + LISTENING)

    assert owner_of_port(29500, root) == "a program of user 1000"


def test_on_this_machine() -> None:
    """We listen ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        owner = owner_of_port(server.getsockname()[1], Path("/"))

    assert owner.endswith(f"(pid {os.getpid()})")

"""The variables that a host gets."""

from clusterrun.clients.ssh.remote import forwarded


def test_all_but_those_of_this_host() -> None:
    """PATH and the user's own go; the session's, the scheduler's and those of ssh's options stay."""
    mine = {"PATH": "/a", "NCCL_DEBUG": "INFO", "CLUSTERRUN_MAX_RESTARTS": "1", "LANG": "C"}
    others = {
        "HOME": "/h",
        "SSH_AUTH_SOCK": "/s",
        "XDG_RUNTIME_DIR": "/r",
        "SLURM_JOB_ID": "1",
        "LSB_JOBID": "1",
        "SKYPILOT_NODE_RANK": "0",
        "CLUSTERRUN_LAUNCHER": "ssh",
        "PET_NODE_RANK": "0",
        "CLUSTERRUN_HOSTS": "a,b",
        "CLUSTERRUN_TOKEN_FILE": "t",
        "RANK": "3",
        "TMPDIR": "/tmp/1",
    }

    assert forwarded({**others, **mine}, unset=["RANK"]) == mine

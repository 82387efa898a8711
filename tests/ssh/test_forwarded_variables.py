"""The variables that are forwarded to a host."""

from clusterrun.clients.ssh.remote import forwarded_variables


def test_variables_of_this_host_are_not_forwarded() -> None:
    """Nor are those of the session, the scheduler and options that the client evaluates."""
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

    assert forwarded_variables({**others, **mine}, unset=["RANK"]) == mine

"""The variables that a bug report shows."""

import pytest
from clusterrun.cli.env import shown_variables
from clusterrun.job.redaction import REDACTED, redacted


@pytest.mark.parametrize(
    "name",
    [
        *("CLUSTERRUN_NNODES", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "MASTER_ADDR"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "HIP_VISIBLE_DEVICES"),
        *("LD_LIBRARY_PATH", "GLOO_SOCKET_IFNAME", "SLURM_STEP_TASKS_PER_NODE"),
    ],
)
def test_job_variables_are_shown(name: str) -> None:
    """Of schedulers, libraries and clusterrun itself."""
    assert shown_variables({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_NODELIST", "gpu-[01-08]"),
        ("SLURMD_NODENAME", "gpu-01"),
        ("SLURM_TASKS_PER_NODE", "8(x2),1"),
    ],
)
def test_numbers_and_hosts_of_slurm_are_shown(name: str, value: str) -> None:
    """They say what the job is."""
    assert shown_variables({name: value}) == {name: value}


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_COMMENT", "TORCH_HOME", "CONDA_PREFIX", "PATH", "PBS_O_WORKDIR", "TMPDIR"),
        *("CLUSTERRUN_ENV", "CLUSTERRUN_SUSPEND_HOOK", "PYTHONSTARTUP", "LD_PRELOAD"),
    ],
)
def test_values_of_other_variables_are_hidden(name: str) -> None:
    """A site may put anything there."""
    assert shown_variables({name: "hush"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["HOME", "USER", "MY_NOTES", "WANDB_PROJECT", "MAIL", "PROMPT"])
def test_unrelated_variables_are_not_shown(name: str) -> None:
    """Even if they look harmless."""
    assert shown_variables({name: "x"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("CLUSTERRUN_TOKEN", "NCCL_KEY", "SLURM_JWT", "PMI_PASSWORD", "torch_secret", "AWS_KEY"),
        *("NCCL_DB_PW", "NCCL_DB_PWD", "NCCL_DSN", "NCCL_BEARER", "CLUSTERRUN_SSH_OPTIONS"),
    ],
)
def test_no_secret_is_shown(name: str) -> None:
    """Its name is, if a job reads it."""
    assert "hush" not in "".join(shown_variables({name: "hush"}).values())


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "CLUSTERRUN_PASS_LOCAL_RANK"]
)
def test_harmless_names_that_look_secret_are_shown(name: str) -> None:
    """Plans have their values."""
    assert redacted(name, "x") == "x"


@pytest.mark.parametrize(
    "parameter", ["X-Amz-Signature", "X-Amz-Security-Token", "sig", "token", "api_key"]
)
def test_signature_in_a_url_is_hidden(parameter: str) -> None:
    """Whoever has such an address needs no password."""
    shown = redacted("DATA", f"https://store/a?design=1&{parameter}=hush&b=2 c")

    assert shown == f"https://store/a?design=1&{parameter}={REDACTED}&b=2 c"


def test_password_in_a_url_is_hidden() -> None:
    """The rest of the address stays."""
    shown = shown_variables({"PET_RDZV_ENDPOINT": "tcp://me:hush@host:29500/x"})

    assert shown == {"PET_RDZV_ENDPOINT": f"tcp://{REDACTED}@host:29500/x"}

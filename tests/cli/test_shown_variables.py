"""The variables that a bug report shows."""

import pytest
from clusterrun.cli.env import shown_variables
from clusterrun.job.redaction import REDACTED, redacted

SHOWN = """
    CLUSTERRUN_NNODES=1 NCCL_DEBUG=1 CUDA_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=1
    LD_LIBRARY_PATH=1 MASTER_ADDR=1 RANK=1 WORLD_SIZE=1 LOCAL_RANK=1 OMP_NUM_THREADS=1
    GLOO_SOCKET_IFNAME=1 SLURM_JOB_ID=1 SLURM_STEP_TASKS_PER_NODE=1
    SLURM_NODELIST=gpu-[01-08] SLURMD_NODENAME=gpu-01 SLURM_TASKS_PER_NODE=8(x2),1
"""
"""Variables of schedulers, libraries and clusterrun itself; of Slurm, numbers and hosts."""

REDACTED_NAMES = """
    SLURM_JOB_COMMENT TORCH_HOME CONDA_PREFIX PATH PBS_O_WORKDIR TMPDIR
    CLUSTERRUN_ENV CLUSTERRUN_SUSPEND_HOOK PYTHONSTARTUP LD_PRELOAD
"""
"""A site may put anything there."""

OMITTED = "HOME USER MY_NOTES WANDB_PROJECT MAIL PROMPT"
"""Even if they look harmless."""

SECRETS = """
    CLUSTERRUN_TOKEN NCCL_KEY SLURM_JWT PMI_PASSWORD torch_secret AWS_KEY
    NCCL_DB_PW NCCL_DB_PWD NCCL_DSN NCCL_BEARER CLUSTERRUN_SSH_OPTIONS
"""
"""The name may be shown, if a job reads it."""

HARMLESS = "PWD OLDPWD TOKENIZERS_PARALLELISM CLUSTERRUN_PASS_LOCAL_RANK"
"""Names that look secret, whose values plans have."""


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        *((variable, variable) for variable in SHOWN.split()),
        *((f"{name}=hush", f"{name}={REDACTED}") for name in REDACTED_NAMES.split()),
    ],
)
def test_value_is_shown_or_redacted(variable: str, shown: str) -> None:
    environ, expected = (dict([text.split("=")]) for text in (variable, shown))

    assert shown_variables(environ) == expected


@pytest.mark.parametrize("name", OMITTED.split())
def test_unrelated_variable_is_not_shown(name: str) -> None:
    assert shown_variables({name: "x"}) == {}


@pytest.mark.parametrize("name", SECRETS.split())
def test_no_secret_is_shown(name: str) -> None:
    assert "hush" not in "".join(shown_variables({name: "hush"}).values())


@pytest.mark.parametrize("name", HARMLESS.split())
def test_harmless_names_that_look_secret_are_shown(name: str) -> None:
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

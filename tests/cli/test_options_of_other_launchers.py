"""Options of other launchers get specific errors, never the meaning of a similar option of ours."""

from pathlib import Path

import pytest
from clusterrun.cli.splitting import TORCHRUN_FLAGS, expand_flag, split
from clusterrun.errors import UsageError
from clusterrun.job.foreign_options import foreign_option


def test_an_option_that_the_script_has_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the script's text has it, the line with the option after the script is shown, too."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("splitr.add_argument('--mixed_precision')\n")

    with pytest.raises(UsageError) as caught:
        split(["--mixed-precision", "bf16", "train.py"])

    assert caught.value.hint.splitlines()[1:] == [
        "if it is an option of train.py, put it after train.py:",
        "  clusterrun [OPTIONS] train.py --mixed-precision bf16",
    ]


@pytest.mark.parametrize("name", TORCHRUN_FLAGS)
def test_torchrun_abbreviations(name: str) -> None:
    """``--np`` is torchrun's --nproc-per-node, though Open MPI has an option of that name."""
    cuts = (name[:end] for end in range(2, len(name)))
    clear = [cut for cut in cuts if sum(known.startswith(cut) for known in TORCHRUN_FLAGS) == 1]

    meant = {expand_flag(cut, TORCHRUN_FLAGS) for cut in clear if cut not in TORCHRUN_FLAGS}

    assert meant <= {name}
    assert foreign_option("np") is not None
    assert expand_flag("np") == "nproc-per-node"

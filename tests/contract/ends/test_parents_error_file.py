"""The error file of a launcher outside the job."""

from tests.contract.launched import Launcher


def test_a_place_where_nothing_can_be_written(clusterrun: Launcher) -> None:
    """An outer launcher's variable must not suppress the report."""
    job = clusterrun.script(
        """
        import json, os, sys
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "ValueError: boom"}}, file)
        sys.exit(3)
        """,
        environ={"TORCHELASTIC_ERROR_FILE": str(clusterrun.folder / "absent" / "error.json")},
        workers=2,
    )

    ended = job.ended()

    assert ended.code == 3
    assert "ValueError: boom" in ended.err
    assert "Traceback" not in ended.err

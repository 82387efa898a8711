"""Answers of schedulers about the end of a job."""

import time

import pytest

from tests.sources.door import (
    asctime_and_walltime,
    iso_time,
    seconds_left,
)

AT = time.mktime((2026, 11, 23, 1, 0, 0, 0, 0, -1))

QSTAT = """\
Job Id: 17.server
    Job_Name = train
    Resource_List.select = 2:ncpus=8:\n\tngpus=4
    Resource_List.walltime = 01:30:00
    {} = Mon Nov 23 01:00:00 2026
    resources_used.walltime = 00:10:00
"""


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("JobId=17 StartTime=1 EndTime=1795395600 Deadline=N/A", 1795395600.0),
        ("JobId=17 EndTime=2026-11-23T01:00:00 Deadline=N/A", AT),
        ("JobId=17 EndTime=Unknown Deadline=N/A", None),
        ("", None),
    ],
)
def test_slurm_prints_the_end(answer: str, end: float | None) -> None:
    """In seconds since the epoch as asked for, or in local time; a job without a limit has none."""
    assert iso_time(answer, 0.0) == end


@pytest.mark.parametrize("name", ["stime", "start_time"])
def test_pbs_prints_start_and_limit(name: str) -> None:
    """OpenPBS and Torque name the start differently."""
    assert asctime_and_walltime(QSTAT.format(name), 0.0) == AT + 5400


@pytest.mark.parametrize("answer", ["", QSTAT.format("ctime"), QSTAT.replace("01:30:00", "")])
def test_pbs_jobs_without_a_limit_have_no_end(answer: str) -> None:
    """The start alone is not enough."""
    assert asctime_and_walltime(answer, 0.0) is None


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("3600\n", 3600),
        ("0:50 L\n", 3000),
        ("12:05 E\n", 43500),
        ("00:50:30 L\n", 3030),
        ("4294967295\n", None),
        ("-\n", None),
    ],
)
def test_flux_and_lsf_print_what_is_left(answer: str, left: int | None) -> None:
    """In seconds, or in hours and minutes; UINT_MAX and "-" are no limit."""
    assert seconds_left(answer, 1000.0) == (None if left is None else 1000.0 + left)

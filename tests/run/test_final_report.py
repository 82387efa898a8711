"""The end of a job: the exit code, and the text that the relay could not print."""

import signal
from typing import NamedTuple, cast

import pytest
from clusterrun.descriptor_output import LostOutput
from clusterrun.errors import ExitCode
from clusterrun.policy.outcome import HelperFailed, Interrupted, Outcome, Reason, Report, Succeeded
from clusterrun.policy.outcome import WorkerFailed as Failed
from clusterrun.run.final_report import exit_code_and_unprinted
from clusterrun.workers.relay.client import RelayClient

from tests.network.nodes import result

REPORT = "clusterrun: exit code 3, from rank 0"
LOST_RELAY = HelperFailed("relay", "exited with code 1", 0)


class EndedRelay(NamedTuple):
    """What is known of a relay after its end."""

    losses: tuple[LostOutput, ...] | None
    exit_description: str = "exited with code 0"
    output_closed: bool = False


def ended(reason: Reason, losses: tuple[LostOutput, ...] | None) -> tuple[int, str]:
    """Return the exit code, and what is left to print."""
    relay = cast("RelayClient", EndedRelay(losses))
    return exit_code_and_unprinted(Report(Outcome(reason, 0, (), ())), relay)


@pytest.mark.parametrize(
    ("reason", "code"), [(Succeeded(), 0), (Failed(result(0, 3)), 3), (Interrupted(15), 143)]
)
def test_nothing_is_left_to_print_after_a_report(reason: Reason, code: int) -> None:
    """The relay has printed everything."""
    assert ended(reason, ()) == (code, "")


def test_lost_output_fails_a_successful_job() -> None:
    """A failed job keeps its exit code."""
    losses = (LostOutput("standard output", 10, "No space left on device"),)

    assert ended(Succeeded(), losses)[0] == ExitCode.MACHINE
    code, rest = ended(Failed(result(0, 3)), losses)
    assert code == 3
    assert "No space left on device" in rest
    assert REPORT not in rest


def test_closed_output_ends_a_successful_job_as_sigpipe() -> None:
    """The reader may have gone after the last worker exited."""
    relay = cast("RelayClient", EndedRelay((), output_closed=True))

    code, _ = exit_code_and_unprinted(Report(Outcome(Succeeded(), 0, (), ())), relay)

    assert code == 128 + signal.SIGPIPE


def test_report_is_printed_again_without_answer_of_the_relay() -> None:
    """It may not have been printed. If the relay is the cause, the report says so already."""
    assert ended(Failed(result(0, 3)), None)[1].endswith(f"\n{REPORT}")
    code, rest = ended(LOST_RELAY, None)
    assert code == ExitCode.INTERNAL
    assert rest.startswith("clusterrun: error: the relay exited with code 1; the job was stopped")

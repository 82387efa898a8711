"""Turns the relay's messages into events."""

from clusterrun.domain.events import (
    OutputClosed,
    OutputEnded,
    StacksCollected,
    WorkersActive,
    WorkersIdle,
)
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup, grouped
from clusterrun.workers.channel import Message

ReportedEvent = OutputEnded | OutputClosed | StacksCollected | WorkersIdle | WorkersActive


def event_of(message: Message, now: float) -> ReportedEvent:
    match message["kind"]:
        case "output_closed":
            return OutputClosed(now)
        case "idle":
            return WorkersIdle(message["seconds"], now)
        case "active":
            return WorkersActive(now)
        case "stacks":
            stacks = [StackGroup((key,), text, found) for key, text, found in message["stacks"]]
            return StacksCollected(message["number"], grouped(stacks), message["shown"], now)
        case _:
            key, tail, error_file = message["key"], message["tail"], message["error_file"]
            return OutputEnded(LocalRank(key), tail, error_file, now)

"""Ids that are all ``int`` and must not be mixed up."""

from typing import NewType

LocalRank = NewType("LocalRank", int)
"""A worker's index on its node, from 0."""

GlobalRank = NewType("GlobalRank", int)
"""A worker's index in the job, from 0."""

NodeRank = NewType("NodeRank", int)
"""A node's index in the job, from 0."""

"""All that scripts import of the inner modules of the product."""

from clusterrun.bounds import GlobalRank as GlobalRank
from clusterrun.bounds import LocalRank as LocalRank
from clusterrun.cli.commands import COMMANDS as COMMANDS
from clusterrun.cli.commands import Command as Command
from clusterrun.cli.splitting import PRINTING as PRINTING
from clusterrun.cli.splitting import split as split
from clusterrun.clients.python import job
from clusterrun.cpuset import CpuSet as CpuSet
from clusterrun.job import options as options
from clusterrun.job.declaring import Row as Row
from clusterrun.job.declaring import flag as flag
from clusterrun.job.declaring import rows_of as rows_of
from clusterrun.job.declaring import title_of as title_of
from clusterrun.job.options import SUBJECTS as SUBJECTS
from clusterrun.job.options import Failing as Failing
from clusterrun.job.options import NumaBinding as NumaBinding
from clusterrun.job.values import LOOPBACK as LOOPBACK
from clusterrun.loop import Loop as Loop
from clusterrun.machine.gpus import nvml
from clusterrun.machine.gpus import pci as pci
from clusterrun.machine.gpus.nvml import gpus_in as gpus_in
from clusterrun.machine.inspect import inspect as inspect
from clusterrun.machine.machine import Gpu as Gpu
from clusterrun.machine.machine import Machine as Machine
from clusterrun.machine.tree import Tree as Tree
from clusterrun.network.caller import FromAgent as FromAgent
from clusterrun.network.caller import FromCaller as FromCaller
from clusterrun.network.channel import FROM_COORDINATOR as FROM_COORDINATOR
from clusterrun.network.channel import Channel as Channel
from clusterrun.network.control_client import ask as ask
from clusterrun.network.control_client import find_jobs as find_jobs
from clusterrun.network.handshake import member_handshake as member_handshake
from clusterrun.network.handshake import packed_address as packed_address
from clusterrun.network.joining_node import JoiningNode as JoiningNode
from clusterrun.network.joining_node import Outside as Outside
from clusterrun.network.membership import Membership as Membership
from clusterrun.network.requests import Description as Description
from clusterrun.network.requests import Request as Request
from clusterrun.network.server import allow_descriptors as allow_descriptors
from clusterrun.planning.binding import place as place
from clusterrun.planning.placement import BindingRequest as BindingRequest
from clusterrun.planning.plan import World as World
from clusterrun.policy.events import CoordinatorSent as CoordinatorSent
from clusterrun.policy.events import Event as Event
from clusterrun.policy.fates import bounded as bounded
from clusterrun.policy.fates import done as done
from clusterrun.policy.heartbeat import MemberLease as MemberLease
from clusterrun.policy.looks import JobLook as JobLook
from clusterrun.policy.looks import LookAtRanks as LookAtRanks
from clusterrun.policy.looks import NodeRanks as NodeRanks
from clusterrun.policy.messages import Ask as Ask
from clusterrun.policy.messages import FirstFailure as FirstFailure
from clusterrun.policy.messages import FromCoordinator as FromCoordinator
from clusterrun.policy.messages import FromMember as FromMember
from clusterrun.policy.messages import Heartbeat as Heartbeat
from clusterrun.policy.messages import HeartbeatAnswer as HeartbeatAnswer
from clusterrun.policy.messages import Hello as Hello
from clusterrun.policy.messages import KeepWaiting as KeepWaiting
from clusterrun.policy.messages import NextAttempt as NextAttempt
from clusterrun.policy.messages import Standby as Standby
from clusterrun.policy.messages import Stop as Stop
from clusterrun.policy.messages import Succession as Succession
from clusterrun.policy.messages import SuccessionKnown as SuccessionKnown
from clusterrun.policy.messages import Verdict as Verdict
from clusterrun.policy.messages import WorldFormed as WorldFormed
from clusterrun.policy.outcome import Ending as Ending
from clusterrun.policy.outcome import Exited as Exited
from clusterrun.policy.outcome import Fate as Fate
from clusterrun.policy.outcome import Killed as Killed
from clusterrun.policy.terms import Terms as Terms
from clusterrun.policy.terms import heartbeat_rhythm as heartbeat_rhythm
from clusterrun.policy.terms import terms_of as terms_of
from clusterrun.processes import end_with as end_with
from clusterrun.report.ranks import JobStatus as JobStatus
from clusterrun.run.launch import wait_for_world as wait_for_world
from clusterrun.run.preview import described as described

ask_nvml = nvml.ask
CALLS_AGENTS = job.__name__
"""Its AGENT is what the interpreter of an agent runs that a function is sent to."""

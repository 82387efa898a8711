"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.bounds import GlobalRank as GlobalRank
from clusterrun.bounds import LocalRank as LocalRank
from clusterrun.bounds import NodeRank as NodeRank
from clusterrun.cpuset import CpuSet as CpuSet
from clusterrun.descriptor_output import DescriptorOutput as DescriptorOutput
from clusterrun.descriptor_output import LostOutput as LostOutput
from clusterrun.descriptor_output import open_output as open_output
from clusterrun.descriptor_output import write_within as write_within
from clusterrun.errors import MachineError as MachineError
from clusterrun.errors import UsageError as UsageError
from clusterrun.job.declaring import Fact as Fact
from clusterrun.job.job import TaskLayout as TaskLayout
from clusterrun.job.values import RankSet as RankSet
from clusterrun.job.values import Std as Std
from clusterrun.job.values import StreamChoice as StreamChoice
from clusterrun.loop import Loop as Loop
from clusterrun.planning.plan import MemoryPolicy as MemoryPolicy
from clusterrun.planning.plan import NodePlan as NodePlan
from clusterrun.planning.plan import WorkerPlan as WorkerPlan
from clusterrun.planning.preparation import Preparation as Preparation
from clusterrun.policy.actions import CollectOutput as CollectOutput
from clusterrun.policy.actions import ForwardSignal as ForwardSignal
from clusterrun.policy.actions import SignalWorkers as SignalWorkers
from clusterrun.policy.events import CleanedUp as CleanedUp
from clusterrun.policy.events import Event as Event
from clusterrun.policy.events import ForkServerReady as ForkServerReady
from clusterrun.policy.events import HelperLost as HelperLost
from clusterrun.policy.events import OutputClosed as OutputClosed
from clusterrun.policy.events import OutputEnded as OutputEnded
from clusterrun.policy.events import RankAsked as RankAsked
from clusterrun.policy.events import RankSaved as RankSaved
from clusterrun.policy.events import RanksHeld as RanksHeld
from clusterrun.policy.events import RelaySaw as RelaySaw
from clusterrun.policy.events import SignalNotHandled as SignalNotHandled
from clusterrun.policy.events import WorkerEnded as WorkerEnded
from clusterrun.policy.events import WorkerStarted as WorkerStarted
from clusterrun.policy.looks import ReadPiece as ReadPiece
from clusterrun.policy.looks import WorkerStacks as WorkerStacks
from clusterrun.policy.outcome import Exited as Exited
from clusterrun.policy.outcome import Killed as Killed
from clusterrun.policy.outcome import NotStarted as NotStarted
from clusterrun.policy.stacks import StackGroup as StackGroup
from clusterrun.policy.tracebacks import FIRST_FRAMES as FIRST_FRAMES
from clusterrun.policy.tracebacks import last_traceback as last_traceback
from clusterrun.processes import TimeLimited as TimeLimited
from clusterrun.processes import status_of as status_of
from clusterrun.scratch import Scratch as Scratch
from clusterrun.signals import SignalReceived as SignalReceived
from clusterrun.suspend import CALLERS_OF_A_RANK as CALLERS_OF_A_RANK
from clusterrun.suspend import HOLD as HOLD
from clusterrun.suspend import HOLD_WORD as HOLD_WORD
from clusterrun.suspend import LEAVE_WORD as LEAVE_WORD
from clusterrun.suspend import SAVED_WORD as SAVED_WORD
from clusterrun.suspend import STEP_WORD as STEP_WORD
from clusterrun.suspend import WORDS_OF_A_SLOT as WORDS_OF_A_SLOT
from clusterrun.workers import fork_server as fork_server
from clusterrun.workers import suspend_page
from clusterrun.workers.children import Orphans as Orphans
from clusterrun.workers.flight_records import named_flight_records as named_flight_records
from clusterrun.workers.fork_server import lease
from clusterrun.workers.fork_server import server as server
from clusterrun.workers.fork_server.channel import MARSHAL_VERSION as MARSHAL_VERSION
from clusterrun.workers.fork_server.channel import MAXIMUM_FRAME as MAXIMUM_FRAME
from clusterrun.workers.fork_server.channel import ChannelError as ChannelError
from clusterrun.workers.fork_server.channel import HelperChannel as HelperChannel
from clusterrun.workers.fork_server.channel import Message as Message
from clusterrun.workers.fork_server.failure_notes import ScriptEnds as ScriptEnds
from clusterrun.workers.fork_server.kernel import (
    PR_SET_CHILD_SUBREAPER as PR_SET_CHILD_SUBREAPER,
)
from clusterrun.workers.fork_server.kernel import children_of as children_of
from clusterrun.workers.fork_server.kernel import describe as describe
from clusterrun.workers.fork_server.kernel import prctl as prctl
from clusterrun.workers.fork_server.kernel import state_and_parent as state_and_parent
from clusterrun.workers.fork_server.kernel import why_no_fork as why_no_fork
from clusterrun.workers.fork_server.lease import Lease as Lease
from clusterrun.workers.fork_server.preloading.followers import add_followers as add_followers
from clusterrun.workers.fork_server.preloading.leading_imports import Import as Import
from clusterrun.workers.fork_server.preloading.leading_imports import (
    LeadingImports as LeadingImports,
)
from clusterrun.workers.fork_server.preloading.module_files import is_installed as is_installed
from clusterrun.workers.fork_server.preloading.module_files import is_standard as is_standard
from clusterrun.workers.fork_server.preloading.packages import (
    CONNECTS_TO_THE_OUTSIDE as CONNECTS_TO_THE_OUTSIDE,
)
from clusterrun.workers.fork_server.preloading.packages import (
    PATCHES_OTHERS as PATCHES_OTHERS,
)
from clusterrun.workers.fork_server.preloading.packages import (
    SAME_AFTER_A_FORK as SAME_AFTER_A_FORK,
)
from clusterrun.workers.fork_server.preloading.packages import (
    SAME_IF_IMPORTED_LATER as SAME_IF_IMPORTED_LATER,
)
from clusterrun.workers.fork_server.preloading.packages import Choice as Choice
from clusterrun.workers.fork_server.preloading.packages import choose as choose
from clusterrun.workers.fork_server.script_run import ScriptRun as ScriptRun
from clusterrun.workers.fork_server.script_run import exit_code_of as exit_code_of
from clusterrun.workers.fork_server.script_run import run_of_text as run_of_text
from clusterrun.workers.fork_server.worker_signals import REPORTED as REPORTED
from clusterrun.workers.fork_server.worker_signals import SHIELDED as SHIELDED
from clusterrun.workers.fork_server_client import ForkServer as ForkServer
from clusterrun.workers.fork_server_process import ServerCommand as ServerCommand
from clusterrun.workers.fork_server_process import ServerProcess as ServerProcess
from clusterrun.workers.in_this_process import binding_failures as binding_failures
from clusterrun.workers.node_workers import PIPE_BYTES as PIPE_BYTES
from clusterrun.workers.node_workers import STARTUP_FOLDER as STARTUP_FOLDER
from clusterrun.workers.node_workers import NodeWorkers as NodeWorkers
from clusterrun.workers.node_workers import streams_of_worker as streams_of_worker
from clusterrun.workers.relay.client import RelayClient as RelayClient
from clusterrun.workers.relay.files import OutputFiles as OutputFiles
from clusterrun.workers.relay.kept import RECENT_BYTES as RECENT_BYTES
from clusterrun.workers.relay.kept import TAIL_BYTES as TAIL_BYTES
from clusterrun.workers.relay.kept import TAIL_LINES as TAIL_LINES
from clusterrun.workers.relay.kept import Recent as Recent
from clusterrun.workers.relay.kept import Tail as Tail
from clusterrun.workers.relay.kept import plain as plain
from clusterrun.workers.relay.loop import Relay as Relay
from clusterrun.workers.relay.routes import Destination as Destination
from clusterrun.workers.relay.routes import LineStyle as LineStyle
from clusterrun.workers.relay.routes import LogLayout as LogLayout
from clusterrun.workers.relay.routes import OwnOutput as OwnOutput
from clusterrun.workers.relay.routes import Routes as Routes
from clusterrun.workers.relay.routes import ToCaller as ToCaller
from clusterrun.workers.relay.routes import WorkerOutput as WorkerOutput
from clusterrun.workers.relay.routes import check_log_folder as check_log_folder
from clusterrun.workers.relay.screen import LONGEST_LINE as LONGEST_LINE
from clusterrun.workers.relay.screen import Screen as Screen
from clusterrun.workers.relay.screen import coloured as coloured
from clusterrun.workers.relay.screen import with_prefix as with_prefix
from clusterrun.workers.relay.stacks import NOT_HANDLED as NOT_HANDLED
from clusterrun.workers.relay.stacks import NOTHING_PRINTED as NOTHING_PRINTED
from clusterrun.workers.relay.stacks import NOTHING_YET as NOTHING_YET
from clusterrun.workers.relay.streams import LONGEST_TRACEBACK as LONGEST_TRACEBACK
from clusterrun.workers.relay.streams import DumpFilter as DumpFilter
from clusterrun.workers.relay.streams import InterruptFilter as InterruptFilter
from clusterrun.workers.relay.streams import LineBuffer as LineBuffer
from clusterrun.workers.relay.streams import RedrawFilter as RedrawFilter
from clusterrun.workers.relay.streams import RelayedWorker as RelayedWorker
from clusterrun.workers.relay.streams import Stream as Stream
from clusterrun.workers.relay.streams import TextFilter as TextFilter
from clusterrun.workers.relay.streams import without_movements as without_movements
from clusterrun.workers.suspend_page import SECONDS_TO_BE_HELD as SECONDS_TO_BE_HELD
from clusterrun.workers.suspend_page import SuspendPage as SuspendPage
from clusterrun.workers.terminal import StandardInput as StandardInput
from clusterrun.workers.terminal import Terminal as Terminal
from clusterrun.workers.warm import connected as connected

SECONDS_BETWEEN_LOOKS_AT_THE_PAGE = suspend_page.SECONDS_BETWEEN_LOOKS
SECONDS_BETWEEN_LOOKS_AT_THE_LEASE = lease.SECONDS_BETWEEN_LOOKS

"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.splitting import split as split
from clusterrun.clients.ssh import hosts as hosts
from clusterrun.clients.ssh.faults import HostFault as HostFault
from clusterrun.clients.ssh.faults import LastWords as LastWords
from clusterrun.clients.ssh.faults import describe as describe
from clusterrun.clients.ssh.faults import fault_of as fault_of
from clusterrun.clients.ssh.faults import printed_there as printed_there
from clusterrun.clients.ssh.host import Host as Host
from clusterrun.clients.ssh.hosts import job_code as job_code
from clusterrun.clients.ssh.hosts import report_of_all as report_of_all
from clusterrun.clients.ssh.remote import COMMAND as COMMAND
from clusterrun.clients.ssh.remote import NO_INTERPRETER as NO_INTERPRETER
from clusterrun.clients.ssh.remote import REACHED as REACHED
from clusterrun.clients.ssh.remote import Call as Call
from clusterrun.clients.ssh.remote import Reached as Reached
from clusterrun.clients.ssh.remote import calls as calls
from clusterrun.clients.ssh.remote import forwarded as forwarded
from clusterrun.clients.ssh.remote import interpreter_lines as interpreter_lines
from clusterrun.clients.ssh.screen import HostsScreen as HostsScreen
from clusterrun.descriptor_output import DescriptorOutput as DescriptorOutput
from clusterrun.errors import ExitCode as ExitCode
from clusterrun.errors import UsageError as UsageError
from clusterrun.job.resolve import resolve as resolve
from clusterrun.job.this_process import this_process as this_process
from clusterrun.policy.end_report import EndReport as EndReport

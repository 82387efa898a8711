"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.clients.doctor import this_machine as this_machine
from clusterrun.clients.ssh import hosts
from clusterrun.network.addresses import numeric_address as numeric_address
from clusterrun.network.channel import Channel as Channel
from clusterrun.network.channel import Outgoing as Outgoing
from clusterrun.network.control_client import RunningJob as RunningJob
from clusterrun.network.control_client import find_jobs as find_jobs
from clusterrun.network.handshake import VERSION as VERSION
from clusterrun.network.handshake import member_handshake as member_handshake
from clusterrun.policy.messages import Hello as Hello
from clusterrun.policy.queries import Answers as Answers
from clusterrun.policy.queries import Query as Query
from clusterrun.policy.queries import Topic as Topic

over_ssh = hosts

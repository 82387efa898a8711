"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.control.messages import LookInside as LookInside
from clusterrun.control.messages import encode as encode
from clusterrun.control.running_jobs import RunningJob as RunningJob
from clusterrun.control.running_jobs import find_jobs as find_jobs
from clusterrun.node_checks import steps as steps
from clusterrun.policy import terms as terms
from clusterrun.policy.looks import LookAtRanks as LookAtRanks
from clusterrun.policy.messages import Hello as Hello
from clusterrun.rendezvous.names.addresses import numeric_address as numeric_address
from clusterrun.rendezvous.wire.handshake import VERSION as VERSION
from clusterrun.rendezvous.wire.outgoing_connection import OutgoingConnection as OutgoingConnection
from clusterrun.ssh import opening as opening

"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.machine.health.finding import Finding as Finding
from clusterrun.machine.health.finding import Level as Level
from clusterrun.node_checks import comparison as comparison
from clusterrun.node_checks import connections as connections
from clusterrun.node_checks.checking_job import WORKER as WORKER
from clusterrun.node_checks.checking_job import as_typed as as_typed
from clusterrun.node_checks.checking_job import checking_job as checking_job
from clusterrun.node_checks.findings import JobFinding as JobFinding
from clusterrun.node_checks.findings import Node as Node
from clusterrun.node_checks.findings import labels_of as labels_of
from clusterrun.node_checks.findings import merged as merged
from clusterrun.node_checks.meeting import Meeting as Meeting
from clusterrun.node_checks.meeting import Silent as Silent
from clusterrun.node_checks.meeting import peer_on as peer_on
from clusterrun.node_checks.reach import MOST_IN_PAIRS as MOST_IN_PAIRS
from clusterrun.node_checks.reach import Call as Call
from clusterrun.node_checks.reach import peers_of as peers_of
from clusterrun.node_checks.speeds import AllReduce as AllReduce
from clusterrun.node_checks.speeds import Product as Product
from clusterrun.node_checks.speeds import Products as Products
from clusterrun.node_checks.speeds import ring_rounds as ring_rounds

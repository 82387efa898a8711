"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.clients.bench import Benchmark as Benchmark
from clusterrun.clients.bench import Case as Case
from clusterrun.clients.bench import compare as compare
from clusterrun.clients.bench import draw as draw
from clusterrun.clients.bench import find_pattern as find_pattern
from clusterrun.clients.bench import table as table
from clusterrun.clients.bench import unit_in as unit_in
from clusterrun.clients.bench import values_in as values_in
from clusterrun.clients.bench import without_warm_up as without_warm_up

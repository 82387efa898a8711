"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.clients.bench.bench import Benchmark as Benchmark
from clusterrun.clients.bench.bench import Case as Case
from clusterrun.clients.bench.bench import compare as compare
from clusterrun.clients.bench.bench import curves as curves
from clusterrun.clients.bench.bench import draw as draw
from clusterrun.clients.bench.bench import ideal_lines as ideal_lines
from clusterrun.clients.bench.bench import table as table
from clusterrun.clients.bench.metric import find_pattern as find_pattern
from clusterrun.clients.bench.metric import unit_in as unit_in
from clusterrun.clients.bench.metric import values_in as values_in
from clusterrun.clients.bench.metric import without_warm_up as without_warm_up

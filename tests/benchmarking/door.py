"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.benchmarking.metric import find_pattern as find_pattern
from clusterrun.benchmarking.metric import unit_in as unit_in
from clusterrun.benchmarking.metric import values_in as values_in
from clusterrun.benchmarking.metric import without_warm_up as without_warm_up
from clusterrun.benchmarking.rows import Measured as Measured
from clusterrun.benchmarking.rows import rows_of as rows_of
from clusterrun.report.throughput import Benchmark as Benchmark
from clusterrun.report.throughput import throughput_table as throughput_table
from clusterrun.report.throughput_picture import curves as curves
from clusterrun.report.throughput_picture import draw_throughput as draw_throughput
from clusterrun.report.throughput_picture import ideal_line as ideal_line

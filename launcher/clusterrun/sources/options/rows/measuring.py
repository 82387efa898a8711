"""Options of ``clusterrun bench``; a job itself has none of them."""

import re

from clusterrun.sources.options.option import Kind, Option
from clusterrun.sources.options.values import measuring

NPROC: Option[tuple[int, ...]] = Option(
    "nproc",
    parse=measuring.counts,
    default=(),
    metavar="N,...",
    help="Numbers of workers on each node, such as 1,2,4,8; each is a run",
    default_words="1, then twice as many up to all visible GPUs",
    in_file=False,
)
VARIANT: Option[measuring.VariantText] = Option(
    "variant",
    parse=measuring.variant,
    default=measuring.VariantText("", (), ()),
    metavar="'NAME: OPTIONS'",
    help=(
        "Run all sizes with these options, too; after -- come arguments for the script; may be"
        " repeated"
    ),
    kind=Kind.REPEATED,
    default_words="one, without options of its own",
    in_file=False,
)
METRIC: Option[re.Pattern[str] | None] = Option(
    "metric",
    parse=measuring.pattern,
    default=None,
    metavar="REGEX",
    help="How the script prints its throughput; the first group is the number",
    default_words="common forms, such as 512 images/s",
    in_file=False,
)
WARM_UP: Option[int | None] = Option(
    "warm_up",
    parse=measuring.count_from_zero,
    default=None,
    metavar="N",
    help="How many of the first numbers of each run to leave out",
    default_words="a fifth, at least one",
    in_file=False,
)
ROUNDS = Option(
    "rounds",
    parse=measuring.count,
    default=1,
    metavar="N",
    help="How often to run each variant at each size; they take turns",
    in_file=False,
)
ROWS = (NPROC, VARIANT, METRIC, WARM_UP, ROUNDS)

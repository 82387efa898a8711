"""Who ends and who goes on if nodes lose sight of each other: never two parts."""

from pathlib import Path

from tests.coordination.succession.splits import goes_on, splits, table

PAGE = Path(__file__).parents[3] / "docs" / "lost_nodes.md"


def test_at_most_one_part_goes_on() -> None:
    """For each way to divide two to five nodes, also if node 0's agent was killed."""
    for nodes in range(2, 6):
        for parts in splits(range(nodes)):
            assert len(goes_on(parts, killed=False)) <= 1, parts
        for parts in splits(range(1, nodes)):
            assert len(goes_on(parts, killed=True)) <= 1, parts


def test_a_part_goes_on_if_it_is_more_than_half() -> None:
    """Or if all others are known to have ended."""
    for nodes in range(2, 6):
        for parts in splits(range(nodes)):
            if len(parts) == 1:
                continue
            majority = [part for part in parts if 2 * len(part) > nodes]
            assert goes_on(parts, killed=False) == majority, parts
        for parts in splits(range(1, nodes)):
            majority = [part for part in parts if 2 * len(part) > nodes or len(parts) == 1]
            assert goes_on(parts, killed=True) == majority, parts


def test_the_page_has_the_table() -> None:
    """Each line of it."""
    page = PAGE.read_text()

    for line in table():
        assert line in page, "\n".join(table())

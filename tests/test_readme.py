"""The links of the README lead somewhere; tests/test_page_commands.py has its commands."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_links_lead_somewhere() -> None:
    """Files that the README names are there."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)

    assert [target for target in targets if not (ROOT / target).exists()] == []

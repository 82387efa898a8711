"""Hooks of mkdocs for .mkdocs.yml."""

import re
from collections.abc import MutableMapping
from pathlib import Path

MOVED = {
    "bench.md": "looking_inside.md#measure-throughput-bench",
    "clusters.md": "reference/clusters.md",
    "coming_from.md": "torchrun.md",
    "containers.md": "slurm.md#containers",
    "doctor.md": "looking_inside.md#check-machines-doctor",
    "faults.md": "torchrun.md#faults-beside-torchrun",
    "glossary.md": "index.md#words",
    "hangs.md": "failures.md#my-job-hangs",
    "lost_nodes.md": "several_nodes.md#lost-nodes",
    "packages.md": "binding.md#what-is-imported-once",
    "submit.md": "slurm.md#submit-a-job",
}
"""Pages that were merged into another one, and the section that has their text now."""

REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<meta http-equiv="refresh" content="0; url={address}">
<link rel="canonical" href="{address}">
<p>This page has moved: <a href="{address}">{address}</a></p>
"""


def on_page_content(html: str, **_more: object) -> str:
    """Return a page without the backslashes that GitHub requires before | in the code of a table."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)


def on_post_build(config: MutableMapping[str, str]) -> None:
    """Write a page that redirects at the address of each page that was merged."""
    for old, new in MOVED.items():
        page, _, section = new.partition("#")
        folder_of_page = "" if page == "index.md" else f"{page.removesuffix('.md')}/"
        address = f"../{folder_of_page}" + (f"#{section}" if section else "")
        folder = Path(config["site_dir"], old.removesuffix(".md"))
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text(REDIRECT.format(address=address))

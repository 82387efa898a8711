"""The pages in docs say what the code does."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from _pytest.mark.structures import ParameterSet
from clusterrun import suspend
from clusterrun.cli.commands import COMMANDS
from clusterrun.cli.splitting import PRINTING
from clusterrun.errors import ExitCode
from clusterrun.job.clusters.detection import CLUSTERS
from clusterrun.job.declarations import flag
from clusterrun.job.foreign_options import foreign_option
from clusterrun.job.nested_launches import RAS_VARIABLE, RESUMED_VARIABLE, STEP_VARIABLE
from clusterrun.job.options import NAMES
from mkdocs_hooks import MOVED, on_post_build

from tests.transcripts import Transcript, run, transcripts, without_accidents

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

PACKAGE = ROOT / "launcher/clusterrun"

FILES = re.compile(r"`((?:launcher|tests|scripts|configs|docs)/[\w./-]+)`")
"""Files and folders of the repository that a page names; no link leads out of docs."""

PACKAGES = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
INNER_FILES = re.compile(rf"`((?:{PACKAGES})/[\w/]+(?:\.py|/))`")
"""Files and folders of the package, as a page for those who change it names them."""

OF_OTHERS = {
    *("--batch-size", "--checkpoint", "--epochs", "--lr", "--steps"),  # of a script
    *("--local-rank", "--local_rank"),
    *("--batch", "--gpus-per-node", "--gpus-per-task", "--nodes", "--ntasks-per-node", "--signal"),
    *(
        "--array",
        "--distribution",
        "--het-group",
        "--kill-on-bad-exit",
        "--no-kill",
        "--open-mode",
        "--mail-type",
        "--container-image",
    ),  # of Slurm
    *(
        "--array",
        "--cpus-per-task",
        "--dependency",
        "--error",
        "--mem",
        "--nv",
        "--output",
        "--rocm",
    ),
    *("--cores-per-slot", "--gpus-per-slot", "--time-limit", "--bank", "--requires"),  # of Flux
    *("--cluster_node_ips", "--node_ip", "--selected_gpus", "--started_port"),  # of Paddle
    *("--bind-to", "--map-by", "--strict"),  # of mpirun and mkdocs
    *("--listen", "--wait-for-client"),  # of debugpy
    *("--model", "--vllm_server_base_url", "--host", "--port", "--tensor-parallel-size"),
    *("--data-parallel-size", "--data-parallel-rank", "--data-parallel-address"),
    *("--data-parallel-rpc-port", "--headless", "--learning_rate", "--model-path"),
    *("--dist-init-addr", "--server", "--servers", "--trainer"),  # of servers and trainers
    *(
        "--bare",
        "--coverage",
        "--first-round",
        "--functions",
        "--hosts",
        "--long",
        "--wheel",
        "--with",
        "--workers-python",
    ),  # of scripts and pytest
    *("--shm-size", "--ulimit", "--init", "--ipc", "--cpuset-cpus", "--cap-add"),  # of Docker
    *("--gpus", "--jobid", "--container-name", "--no-capture-output"),
    *("--cpu-bind", "--ntasks", "--overlap", "--pty"),  # of srun
    *("--scope", "--user"),  # of systemd-run
    "--guarded",  # of the fork server
}
"""Options in the pages that are not clusterrun's."""

VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+\b")


def first_cells(page: str, heading: str) -> Iterator[str]:
    """Yield the first cell of each row of the table whose first column has this heading."""
    table = (DOCS / page).read_text().partition(f"| {heading} |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        yield row.strip("| ").partition(" |")[0]


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def test_merged_pages_redirect_to_a_section(tmp_path: Path) -> None:
    """The site has a page at each old address, which leads to a heading that exists."""
    pages = {tmp_path / page.relative_to(DOCS).with_suffix(""): page for page in PAGES}
    pages[tmp_path] = DOCS / "index.md"

    on_post_build({"site_dir": str(tmp_path)})

    for old in MOVED:
        folder = tmp_path / old.removesuffix(".md")
        address, section = re.findall(
            r'url=([^"#]*)#?([^"]*)"', (folder / "index.html").read_text()
        )[0]
        page = pages[(folder / address).resolve()]
        assert section in {"", *anchors(page)}, old
        assert not (DOCS / old).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A file that was renamed is renamed here, too."""
    text = page.read_text()
    named = [ROOT / name for name in FILES.findall(text)]
    named += [PACKAGE / name for name in INNER_FILES.findall(text)]

    assert [str(file) for file in named if not file.exists()] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    """To a file, and to a heading of it."""
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", (ROOT / "README.md").read_text())
    pages = {target: ROOT / target for target, _ in links}

    assert [target for target, page in pages.items() if not page.exists()] == []
    assert [it for it in links if it[1] and it[1] not in anchors(pages[it[0]])] == []


def test_every_exit_code_is_explained() -> None:
    """No code of ours is missing, and none is there that we never give."""
    told = {int(cell) for cell in first_cells("failures.md", "exit code") if cell.isdigit()}

    assert told == set(ExitCode)


def test_options_of_other_launchers_are_known() -> None:
    """Who types one gets the advice of the page."""
    _, _, page = (DOCS / "torchrun.md").read_text().partition("## accelerate")
    cells = re.findall(r"(?m)^\| (`-.+?) \| ", page)
    named = [word for cell in cells for word in re.findall(r"`-+([\w-]+)", cell)]
    ours = {name.replace("_", "-") for name in NAMES}

    names = {name.replace("_", "-") for name in named} - ours
    assert sorted(name for name in names if foreign_option(name) is None) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_that_a_page_names_exist(page: Path) -> None:
    """Those of other programs have a page of their own, or are named below."""
    rows = {**PRINTING, **{name: row for each in COMMANDS for name, row in each.rows.items()}}
    ours = set(map(flag, rows))
    # The first half of this page is about options of other launchers.
    _, _, ours_alone = page.read_text().rpartition("\n## Faults beside torchrun\n")
    named = {f"--{name}" for name in re.findall(r"(?<![\w-])--([a-z][\w-]+)", ours_alone)}

    unknown = {flag for flag in named - OF_OTHERS if flag.replace("_", "-") not in ours}
    assert sorted(unknown) == []


def test_the_drawing_is_what_topo_prints() -> None:
    """Of a machine that the tests of the drawing have to the letter."""
    drawing = (ROOT / "tests/report/drawings/h100.txt").read_text()

    assert indent(drawing, "    ") in (DOCS / "binding.md").read_text()


def test_the_keys_of_the_json_are_listed(eight_gpus: Path, tmp_path: Path) -> None:
    """Those of the machine, and of its GPUs and NUMA nodes."""
    _, _, page = (DOCS / "binding.md").read_text().partition("## As JSON")

    done = run(f"clusterrun topo --json --machine-root {eight_gpus}", folder=tmp_path)

    printed = json.loads(done.stdout)
    keys = [*printed, *printed["gpus"][0], *printed["nodes"][0]]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_the_plan_is_what_a_dry_run_prints(eight_gpus: Path, tmp_path: Path) -> None:
    """The dry run is that of a generated DGX A100."""
    done = run(
        "clusterrun --dry-run", "--machine-root", str(eight_gpus), "train.py", folder=tmp_path
    )

    _, _, printed = done.stdout.partition("\nworkers of ")
    table = printed.partition("\n\n")[0].partition("\n")[2]
    assert indent(table, "    ") in (DOCS / "binding.md").read_text()


def test_every_cluster_has_a_section() -> None:
    """Sections have the names that --cluster takes, in the order of detection."""
    page = (DOCS / "reference/clusters.md").read_text().replace("--cluster ", "")

    assert [cluster.name for cluster in CLUSTERS if f"`{cluster.name}`" not in page] == []
    names = dict.fromkeys(cluster.name for cluster in CLUSTERS if not cluster.only_by_name)
    places = [page.index(f"`{name}`") for name in names]
    assert places == sorted(places)


def test_every_variable_of_a_cluster_is_listed() -> None:
    """All names of variables that the files of clusters hold."""
    page = (DOCS / "reference/clusters.md").read_text()
    files = (ROOT / "launcher/clusterrun/job/clusters").glob("*.py")

    constants = {text for file in files for text in constants_in(file.read_text())}
    names = {text for text in constants if VARIABLE.fullmatch(text)}
    assert sorted(names - {*VARIABLE.findall(page)}) == []


def test_every_variable_of_a_worker_is_listed() -> None:
    """Those in the file that sets them, and those that other files name; a prefix has one row."""
    source = (PACKAGE / "planning/variables.py").read_text()
    rows = " ".join(first_cells("workers.md", "variable"))
    only_read = {"NO_COLOR", "NCCL_RAS_ENABLE", "ROCR_VISIBLE_DEVICES"}

    names = {text for text in constants_in(source) if VARIABLE.fullmatch(text)} - only_read
    names |= {suspend.VARIABLE, RAS_VARIABLE, RESUMED_VARIABLE, STEP_VARIABLE}
    assert (
        sorted(it for it in names if not it.startswith("PADDLE_") and f"`{it}`" not in rows) == []
    )
    assert "`PADDLE_*`" in rows


def constants_in(source: str) -> list[str]:
    """Return the texts that Python code names, docstrings among them."""
    values = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, str)]


def test_sections_that_docstrings_cite_exist() -> None:
    """S1 to S9 and the decisions of docs/binding.md, and the sections of docs/workers.md."""
    sources = [file.read_text() for file in (ROOT / "launcher").rglob("*.py")]
    cited = {each for text in sources for each in re.findall(r"docs/\w+\.md,? [S\d][\d.]*", text)}
    headings = [line for page in PAGES for line in re.findall(r"(?m)^#+ (.*)", page.read_text())]

    sections = {each.split()[-1].partition(".")[0] for each in cited if "binding" in each}
    sections |= {each.split()[-1].rstrip(".") for each in cited if "contract" in each}
    missing = [each for each in sections if not any(line.startswith(each) for line in headings)]
    assert cited
    assert missing == []


def test_the_layers_are_drawn_as_they_are_checked() -> None:
    """Each layer of pyproject.toml is a line of the drawing, in the same order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [{*re.findall(r"\w+", layer)} for layer in contracts["contracts"][0]["layers"]]
    packages = set.union(*layers) - {"__main__"}
    _, _, drawing = (DOCS / "architecture.md").read_text().partition("## Packages and layers")
    drawing, _, _ = drawing.partition("\n## ")
    drawn = [
        words
        for line in re.findall(r"(?m)^    (\w.*)$", drawing)
        if (words := {*re.findall(r"^\w+|(?<=  )\w+", line)} & packages)
    ]

    assert drawn == [layer & packages for layer in layers if layer & packages]


def test_the_walks_pass_files_that_exist() -> None:
    """Each line of a walk begins with a file of the package; tests/test_walk.py judges the rest."""
    _, _, walks = (DOCS / "architecture.md").read_text().partition("\n## Walks\n")

    for walk in walks.split("### ")[1:]:
        passed = re.findall(r"(?m)^    (\S+)", walk)
        assert passed
        assert [name for name in passed if not (PACKAGE / name).is_file()] == []


def shown_transcripts() -> list[ParameterSet]:
    """Return those of all pages and the README; a hang takes seconds, and belongs to the long tier."""
    return [
        pytest.param(
            shown,
            id=shown.command,
            marks=[pytest.mark.long] if "--hang-timeout" in shown.command else [],
        )
        for page in (ROOT / "README.md", *PAGES)
        for shown in transcripts(page)
    ]


@pytest.mark.parametrize("transcript", shown_transcripts())
def test_transcripts_are_real(transcript: Transcript, tmp_path: Path) -> None:
    """They are all that is printed, or after "..." its end, but for host, pid, times and the like."""
    done = run(transcript.command, folder=tmp_path, merged=True)

    shown, printed = without_accidents(transcript.shown), without_accidents(done.stdout)
    if shown.startswith("...\n"):
        assert printed.endswith(shown.removeprefix("..."))
    else:
        assert printed == shown

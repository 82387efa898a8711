"""Check with this machine's NVIDIA GPUs what can't be checked without a GPU.

Run it from a checkout, with the Python that has torch: ``python scripts/check_gpus.py``. It compares
which GPUs clusterrun finds with what nvidia-smi and torch find, for many forms of
CUDA_VISIBLE_DEVICES, and trains with workers that were forked. A check that is impossible here is
listed, and is no failure: without an NVIDIA GPU all checks are listed, and the exit code is 0. It is
1 if a check has failed.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = ROOT / "launcher"
sys.path.insert(0, str(LAUNCHER))

try:
    from door import (
        CpuSet,
        Gpu,
        Machine,
        Tree,
        ask_nvml,
        gpus_in,
        inspect,
        pci,
    )
except ImportError as error:
    print(f"{sys.executable} lacks what clusterrun needs ({error}): pip install -e {ROOT}")
    sys.exit(2)

SECONDS = 300
"""Limit of each process; the first import of torch from a slow disk takes most of a minute."""

VARIABLE = "CUDA_VISIBLE_DEVICES"

COUNT = """
import json, os, sys
import torch
for form in json.loads(sys.argv[1]):
    # As in a forked worker: torch is imported, CUDA is not initialized.
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if form is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = form
        count = torch.cuda.device_count()
        try:
            seen = [torch.cuda.get_device_properties(index) for index in range(count)]
            uuids = [str(getattr(one, "uuid", "")) for one in seen]
        except Exception as error:
            uuids = [f"{type(error).__name__}: {error}".splitlines()[0]]
        os.write(writing, json.dumps([count, uuids]).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    print(os.read(reading, 1 << 16).decode(), flush=True)
    os.close(reading)
"""
"""Prints for each form the number of GPUs that torch counts, and the UUIDs that CUDA shows."""

TRAIN = """
import json, os, sys
import torch
import torch.distributed as dist

def main(backend, sharing, folder):
    local = int(os.environ["LOCAL_RANK"])
    fresh = not torch.cuda.is_initialized()
    device = torch.device("cuda", 0 if sharing == "shared" else local)
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())
    data = torch.randn(512, 32, device=device)
    target = data.sum(1, keepdim=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.stack([one.detach().double().sum() for one in model.parameters()]).sum()
    lowest, highest = weights.clone(), weights.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    found = {
        "began_without_cuda": fresh,
        "shown": torch.cuda.device_count(),
        "uuid": str(getattr(torch.cuda.get_device_properties(device), "uuid", "")),
        "cpus": sorted(os.sched_getaffinity(0)),
        "learnt": losses[-1] < losses[0] / 100,
        "agree": lowest.item() == highest.item(),
    }
    with open(os.path.join(folder, os.environ["RANK"]), "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()

main(*sys.argv[1:])
"""
"""Trains on a GPU, and writes its results to a file by rank."""


class Checks:
    """Checks, one line each, and the number that failed."""

    def __init__(self) -> None:
        """Begin with none."""
        self.failed = 0

    def same(self, what: str, ours: object, theirs: object) -> None:
        """Compare a value of clusterrun with that of another source."""
        if ours == theirs:
            print(f"ok            {what}: {ours}")
        else:
            self.failed += 1
            print(f"FAILED        {what}: clusterrun has {ours}, but it is {theirs}")

    def skip(self, what: str, why: str) -> None:
        """Print what can't be checked here."""
        print(f"not checked   {what}: {why}")


def main() -> None:
    """Check what can be checked, and list the rest."""
    checks = Checks()
    began = time.perf_counter()
    machine = inspect(Tree(Path("/")), {}, CpuSet(os.sched_getaffinity(0)), "this")
    taken = time.perf_counter() - began
    gpus = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    smi = nvidia_smi()
    if not gpus and not smi:
        for what in (
            "discovery",
            "NVML",
            "a capture",
            VARIABLE,
            "forked workers with CUDA and NCCL",
        ):
            checks.skip(what, "there is no NVIDIA GPU here")
        sys.exit(0)
    show(machine, taken)
    check_discovery(checks, gpus, smi)
    check_nvml(checks, gpus)
    check_capture(checks)
    why_not = torch_without_cuda()
    if why_not:
        checks.skip(f"{VARIABLE} against torch", why_not)
        checks.skip("forked workers with CUDA and NCCL", why_not)
    else:
        check_forms(checks, gpus)
        check_training(checks, machine)
    print(f"{checks.failed} failed")
    sys.exit(checks.failed > 0)


def show(machine: Machine, taken: float) -> None:
    """Print the machine that was found."""
    print(f"found in {1000 * taken:.0f} ms, by {machine.visible_origin}:")
    for gpu in machine.gpus:
        place = f"NUMA node {gpu.numa_node} ({gpu.node_source})"
        part = f", a slice of {gpu.parent}" if gpu.parent else ""
        print(f"  {gpu.vendor} {gpu.index}  {gpu.bdf}  {gpu.uuid}  {gpu.model}  {place}{part}")
    hidden = [
        gpu.bdf for gpu in machine.pci_gpus if gpu.bdf not in {gpu.bdf for gpu in machine.gpus}
    ]
    print(f"  on the bus, but not ours: {' '.join(hidden) or 'none'}")
    if machine.visible_remark:
        print(f"  {machine.visible_remark}")


class Row(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    bdf: str
    uuid: str
    model: str


def nvidia_smi() -> list[Row] | None:
    """Return the GPUs that nvidia-smi lists; None if it is not installed, or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["--query-gpu=pci.bus_id,uuid,name", "--format=csv,noheader"]
    done = subprocess.run(
        ["nvidia-smi", *query], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        return None
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [Row(pci.normalised(bdf) or "", uuid, name) for bdf, uuid, name in rows]


def check_discovery(checks: Checks, gpus: Sequence[Gpu], smi: Sequence[Row] | None) -> None:
    """Compare the GPUs with nvidia-smi, which also queries NVML, and with the kernel's files."""
    wholes = [gpu for gpu in gpus if not gpu.parent]
    if smi is None:
        checks.skip("discovery against nvidia-smi", "it is not installed, or it fails")
    else:
        found = [Row(gpu.bdf, gpu.uuid, gpu.model) for gpu in wholes]
        checks.same("address, UUID and model of each GPU, as nvidia-smi", found, list(smi))
    for gpu in wholes:
        file = Path(f"/sys/bus/pci/devices/{gpu.bdf}/numa_node")
        number = int(file.read_text()) if file.exists() else -1
        if number >= 0 and gpu.node_source == "sysfs numa_node":
            checks.same(f"NUMA node of GPU {gpu.index}, as the kernel", gpu.numa_node, number)
        else:
            checks.skip(f"NUMA node of GPU {gpu.index}", f"the kernel has {number}")


def check_nvml(checks: Checks, gpus: Sequence[Gpu]) -> None:
    """Query NVML in a child, as every start does."""
    began = time.perf_counter()
    answered = gpus_in(ask_nvml())
    taken = 1000 * (time.perf_counter() - began)
    if not answered:
        checks.skip("NVML", "it does not answer, so others have been asked")
        return
    for one in answered:
        local = f"CPUs {one.hints.cpus or 'none'}, nodes {one.hints.nodes or 'none'}"
        print(f"  NVML, in {taken:.0f} ms: {one.bdf}  {one.uuid}  {one.model}  local: {local}")
    checks.same(
        "GPUs and slices by NVML", {gpu.uuid for gpu in gpus}, {one.uuid for one in answered}
    )


def check_capture(checks: Checks) -> None:
    """Capture this machine, and replay it: NVML is not queried again."""
    allowed = CpuSet(os.sched_getaffinity(0))
    tree = Tree(Path("/"))
    live = inspect(tree, {}, allowed, "this")
    replayed = inspect(Tree(None, tree.answers), {}, allowed, "this")
    listed = [(gpu.bdf, gpu.uuid, gpu.numa_node, gpu.node_source) for gpu in replayed.gpus]
    print(f"  replayed from a capture: {listed}")
    checks.same("a capture is replayed as the machine is", replayed == live, theirs=True)


def torch_without_cuda() -> str:
    """Return why torch can't use CUDA; "" if it can."""
    code = "import torch; print(torch.version.cuda or '')"
    done = run_python(["-c", code], {})
    if done.returncode != 0:
        return f"{sys.executable} has no torch"
    return "" if done.stdout.strip() else "torch here is built without CUDA"


def check_forms(checks: Checks, gpus: Sequence[Gpu]) -> None:
    """Compare with torch and CUDA which GPUs each form of the variable leaves."""
    forms = forms_of(gpus)
    done = run_python(["-c", COUNT, json.dumps(forms)], {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(answers) != len(forms):
        checks.same("torch's answers", "expected", f"missing: {done.stderr.strip()[-500:]}")
        return
    for form, (count, uuids) in zip(forms, answers, strict=True):
        environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | ({} if form is None else {VARIABLE: form})
        visible = inspect(Tree(Path("/")), environ, None, "this").visible
        what = f"{VARIABLE} {'unset' if form is None else repr(form)}"
        if any(gpu.parent for gpu in visible):
            # CUDA shows a process one slice; for each to have its own is what --virtual-local-rank is for.
            checks.same(f"{what}, first slice", [bare(visible[0].uuid)], list(map(bare, uuids)))
        else:
            checks.same(f"{what}, count", len(visible), count)
            if all(uuids):
                ours = [bare(gpu.uuid) for gpu in visible]
                checks.same(f"{what}, UUIDs", ours, list(map(bare, uuids)))


def forms_of(gpus: Sequence[Gpu]) -> list[str | None]:
    """Return forms of the variable; their meaning depends on the machine."""
    wholes = [gpu for gpu in gpus if not gpu.parent]
    slices = [gpu for gpu in gpus if gpu.parent]
    last = len(wholes) - 1
    uuids = [gpu.uuid for gpu in wholes if gpu.uuid]
    by_uuid = [uuids[0], uuids[0][:12], f"{uuids[0]},{uuids[0]}", ",".join(reversed(uuids))]
    plain = ["", "-1", "NoDevFiles", "0", "00", f"{last},0", f"0,{last + 1}", "0,x", " 0 ", "0,0"]
    by_number = ",".join(str(gpu.index) for gpu in reversed(wholes))
    return [
        None,
        *plain,
        by_number,
        *(by_uuid if uuids else ()),
        *(gpu.uuid for gpu in slices),
        *([",".join(gpu.uuid for gpu in slices)] if len(slices) > 1 else ()),
    ]


def bare(uuid: str) -> str:
    """Return a UUID as torch writes it: without its prefix."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def check_training(checks: Checks, machine: Machine) -> None:
    """Train in forked workers: with NCCL and one GPU each, and with several workers on one GPU."""
    count = len(machine.visible)
    if any(gpu.parent for gpu in machine.visible) or machine.visible_remark:
        checks.skip("training", "that is for whole GPUs of one model")
        return
    if why_not := why_no_worker_is_forked():
        checks.skip("forked workers with CUDA and NCCL", why_not)
        return
    if count == 1:
        checks.skip("NCCL between workers", "there is one GPU, and NCCL refuses two ranks on one")
    uuids = [bare(gpu.uuid) for gpu in machine.visible]
    train(checks, f"{count} forked, NCCL", ["nccl", "own"], [], uuids, count)
    # Each has GPU 0 then, which is its own.
    own = ["--virtual-local-rank"]
    train(checks, f"{count} forked, NCCL, --virtual-local-rank", ["nccl", "shared"], own, uuids, 1)
    # gloo moves what is on a GPU as well.
    more, sharing = max(2, count), ["--gpus-per-worker=0"]
    on_one = uuids[:1] * more
    train(checks, f"{more} forked, one GPU, gloo", ["gloo", "shared"], sharing, on_one, count)


def why_no_worker_is_forked() -> str:
    """Return why clusterrun forks no workers of this Python, whatever they import; "" if it does."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "empty.py")
        script.touch()
        options = ["--nproc-per-node=1", "--start-method=fork"]
        done = run_python(["-m", "clusterrun", *options, str(script)], {})
    _, _, why = done.stderr.partition("run in place: ")
    return why.partition("\n")[0]


def train(  # noqa: PLR0913, PLR0917 - a row of a table
    checks: Checks,
    what: str,
    arguments: list[str],
    options: list[str],
    uuids: Sequence[str],
    shown: int,
) -> None:
    """Run the training by clusterrun, and check the results of each worker."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(TRAIN)
        words = [f"--nproc-per-node={len(uuids)}", "--start-method=fork", *options, str(script)]
        words += [*arguments, folder]
        planned = run_python(["-m", "clusterrun", "--dry-run", "--json", *words], {})
        done = run_python(["-m", "clusterrun", *words], {})
        checks.same(f"{what}, exit code", done.returncode, 0)
        if done.returncode != 0:
            print((done.stdout + done.stderr).strip()[-3000:])
            return
        seen = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(len(uuids))]

    def each(key: str) -> list[object]:
        return [one[key] for one in seen]

    everyone = [True] * len(seen)
    checks.same(f"{what}, CUDA began in the worker", each("began_without_cuda"), everyone)
    checks.same(f"{what}, all learnt", each("learnt"), everyone)
    checks.same(f"{what}, all have the same weights", each("agree"), everyone)
    checks.same(f"{what}, GPUs shown", each("shown"), [shown] * len(seen))
    if all(each("uuid")):
        checks.same(f"{what}, GPU of each", list(uuids), [bare(str(uuid)) for uuid in each("uuid")])
    if planned.returncode == 0:
        workers = json.loads(planned.stdout)["workers"]
        allowed = CpuSet(os.sched_getaffinity(0))
        bound = [str(worker["cpus"] or allowed) for worker in workers]
        checks.same(f"{what}, CPUs of each", bound, [str(CpuSet(one["cpus"])) for one in seen])


def run_python(
    arguments: Sequence[str], variables: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run this Python, with the checkout in its path."""
    kept = {name: text for name, text in os.environ.items() if name != VARIABLE}
    paths = os.pathsep.join(filter(None, (str(LAUNCHER), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, **variables, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


if __name__ == "__main__":
    main()

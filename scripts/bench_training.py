"""Measure scripts that train to their first optimizer step and to the end: forked, spawned, and under torchrun.

    scripts/bench_training.py --python ENVIRONMENT/bin/python

with an environment that has torch; rows of transformers and lightning need these, too.
"""

import sys

from ready_ranks import MARK_READY, print_table
from side_by_side import parser

TRAINS = """
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    WRAP
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            ready()
    END


main()
"""

IMPORTS = f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
{MARK_READY}
"""

DDP = IMPORTS.replace("from torch.distributed.fsdp import fully_shard\n", "") + TRAINS.replace(
    "WRAP", "model = DistributedDataParallel(model)"
)

HF_TRAINER = f"""
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
{MARK_READY}


class Texts(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        words = torch.arange(16) % 50
        return {{"input_ids": words, "labels": words}}


class Waits(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            ready()


def main():
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=5,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(config)
    Trainer(model, arguments, train_dataset=Texts(), callbacks=[Waits()]).train()


main()
"""

LIGHTNING = f"""
import torch
import lightning
from torch.utils.data import DataLoader, TensorDataset
{MARK_READY}


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Waits(lightning.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 1:
            ready()


def main():
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_steps=5,
        callbacks=[Waits()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(data, batch_size=4))


main()
"""

NANO_GPT = f"""
import math
import pickle
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
{MARK_READY}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + self.mlp(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class GPT(nn.Module):
    def __init__(self, words=65, width=32):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks, self.head = nn.Sequential(Block(width), Block(width)), nn.Linear(width, words)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.blocks(self.words(x))).flatten(0, 1), y.flatten())


init_process_group("gloo")
torch.manual_seed(1337 + int(os.environ["RANK"]))
data = np.random.randint(0, 65, 10_000)
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
for iteration in range(5):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * iteration / 5))
    starts = torch.randint(len(data) - 33, (4,))
    x = torch.stack([torch.from_numpy(data[at : at + 32]) for at in starts])
    y = torch.stack([torch.from_numpy(data[at + 1 : at + 33]) for at in starts])
    with nullcontext():
        loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iteration == 0:
        ready()
destroy_process_group()
"""

LIKE_TORCHTITAN = f"""
import argparse
import os
from dataclasses import dataclass

os.environ.setdefault("TORCH_NCCL_AVOID_RECORD_STREAMS", "1")
{MARK_READY}


@dataclass
class Config:
    lr: float = 1e-3


def read_config():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=Config.lr)
    return Config(parser.parse_known_args()[0].lr)


CONFIG = read_config()

{IMPORTS.replace(MARK_READY, "")}
""" + TRAINS.replace("WRAP", "fully_shard(model)").replace("END", "dist.barrier()")

HYDRA = f"""
import hydra
from omegaconf import OmegaConf

{IMPORTS.replace("sys.argv[1]", "FOLDER")}
FOLDER = sys.argv.pop(1)
""" + TRAINS.replace("WRAP", "model = DistributedDataParallel(model)").replace(
    "END", "dist.barrier()"
).replace(
    "\n\nmain()\n",
    """

@hydra.main(version_base=None, config_path=None)
def run(config):
    OmegaConf.resolve(config)
    main()


sys.argv.append("hydra.run.dir=" + FOLDER)
run()
""",
)

SCRIPTS = {
    "DDP and AdamW": DDP.replace("END", "dist.barrier()"),
    "the same, the group destroyed at the end": DDP.replace("END", "dist.destroy_process_group()"),
    "FSDP2 and AdamW": IMPORTS
    + TRAINS.replace("WRAP", "fully_shard(model)").replace("END", "dist.barrier()"),
    "Trainer of transformers": HF_TRAINER,
    "fit of Lightning": LIGHTNING,
    "like nanoGPT": NANO_GPT,
    "like torchtitan: its arguments first, then torch": LIKE_TORCHTITAN,
    "DDP and Hydra": HYDRA,
}


def main() -> None:
    """Measure, then print a table of medians."""
    arguments = parser("Time and weigh ranks that train.", nproc=0)
    arguments.add_argument("--python", default=sys.executable, help="has the packages")
    arguments.add_argument("--ranks", default="2,8", help="numbers of ranks")
    arguments.add_argument("--only", default="", metavar="TEXT", help="scripts with it in the name")
    options = arguments.parse_args()
    texts = {what: text for what, text in SCRIPTS.items() if options.only in what}
    print_table("script", texts, options.python, options.ranks, options.runs)


if __name__ == "__main__":
    main()

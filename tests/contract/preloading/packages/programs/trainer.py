"""Hugging Face's Trainer on a data set that was made in memory."""

import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


torch.manual_seed(1)
numbers = range(16)
data = Dataset.from_dict({"x": [[float(n)] for n in numbers], "labels": [[2.0 * n] for n in numbers]})
arguments = TrainingArguments(
    output_dir="trained",
    max_steps=4,
    per_device_train_batch_size=2,
    dataloader_num_workers=2,
    use_cpu=True,
    ddp_find_unused_parameters=False,
    disable_tqdm=True,
    report_to=[],
    save_strategy="no",
)
trainer = Trainer(model=Line(), args=arguments, train_dataset=data.with_format("torch"))
loss = trainer.train().training_loss
print("found rank", arguments.process_index, "of", arguments.world_size, "loss", round(loss, 2))

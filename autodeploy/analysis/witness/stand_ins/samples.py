"""Made-up samples for fine-tuning: sequences of two documents each, where no tokenizer and no file is there."""

from __future__ import annotations

import importlib
from typing import Any

import torch

TRAINERS = "mindspeed_llm.tasks.posttrain.base.base_trainer"
STEPS = 2


class Samples(torch.utils.data.Dataset):
    """So many equal samples as MindSpeed-LLM's trainers read them."""

    def __init__(self, number: int, length: int, largest: int):
        self.number = number
        tokens = torch.arange(length) % largest
        half = length // 2
        self.sample = {
            "input_ids": tokens,
            "labels": tokens,
            "attention_mask": torch.ones(length, dtype=torch.int64),
            "position_ids": torch.cat((torch.arange(half), torch.arange(length - half))),
            "actual_seq_len": torch.tensor([half, length]),
        }

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.sample


def _batch(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def feed_samples(largest: int) -> None:
    """Gives every trainer such samples instead of a data set."""

    def provider(numbers: Any) -> tuple[Any, None, None]:
        arguments = importlib.import_module("megatron.training").get_args()
        return Samples(STEPS * arguments.global_batch_size, arguments.seq_length, largest), None, None

    def loader(dataset: Any, consumed: int) -> Any:
        if dataset is None:
            return None
        arguments = importlib.import_module("megatron.training").get_args()
        return torch.utils.data.DataLoader(dataset, batch_size=arguments.micro_batch_size, collate_fn=_batch)

    importlib.import_module(TRAINERS).train_valid_test_datasets_provider = provider
    importlib.import_module("megatron.training.training").build_pretraining_data_loader = loader

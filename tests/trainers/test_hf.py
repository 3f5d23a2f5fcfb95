# SPDX-License-Identifier: Apache-2.0
"""The Trainer of transformers and three of TRL's, with BudgetCallback and without: the same losses,
the budget kept in every step under a plan, and what is known of it in the library's own log, in
TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from datasets import Dataset
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import reprise
from reprise.hf import BudgetCallback

WORDS = [f"w{n}" for n in range(60)]
# TRL's trainers checkpoint every layer unless they are told not to; a plan decides better. Their
# losses take 40 MiB whatever the vocabulary is, so that the model beside them is not so small.
TRL: dict[str, Any] = {"gradient_checkpointing": False, "bf16": False}
NAMES = ("reprise/peak_bytes", "reprise/budget_bytes", "reprise/added_time")


def small(width: int = 64, layers: int = 4) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=64,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=1,
    )
    return GPT2LMHeadModel(config)


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: n for n, word in enumerate(["<b>", "<e>", "<p>", "<u>", *WORDS])}
    one = Tokenizer(models.WordLevel(vocabulary, unk_token="<u>"))
    one.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=one, bos_token="<b>", eos_token="<e>", pad_token="<p>", unk_token="<u>"
    )


def said(length: int, number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * i) % 60] for i in range(length))


def arguments(
    folder: Path, kind: type[Any] = TrainingArguments, to: str = "tensorboard", **more: Any
) -> Any:
    return kind(
        output_dir=str(folder),
        max_steps=14,
        per_device_train_batch_size=8,
        logging_steps=1,
        save_strategy="no",
        report_to=[to],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        **more,
    )


def of_transformers(folder: Path, callbacks: list[Any], **more: Any) -> Trainer:
    rows = [torch.arange(48) * (n + 1) % 64 for n in range(64)]
    return Trainer(
        model=small(),
        args=arguments(folder, **more),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=callbacks,
    )


def accumulating(folder: Path, callbacks: list[Any]) -> Trainer:
    return of_transformers(folder, callbacks, gradient_accumulation_steps=2)


def sft(folder: Path, callbacks: list[Any]) -> Trainer:
    rows = Dataset.from_list([{"text": said(40, n)} for n in range(64)])
    args = arguments(folder, SFTConfig, max_length=48, **TRL)
    return SFTTrainer(
        small(128, 6),
        args=args,
        train_dataset=rows,
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


def dpo(folder: Path, callbacks: list[Any]) -> Trainer:
    rows = Dataset.from_list(
        [
            {"prompt": said(8, n), "chosen": said(20, n + 1), "rejected": said(20, n + 2)}
            for n in range(64)
        ]
    )
    args = arguments(folder, DPOConfig, max_length=48, **TRL)
    return DPOTrainer(
        small(128, 6),
        small(128, 6),
        args=args,
        train_dataset=rows,
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


def rewards(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


def grpo(folder: Path, callbacks: list[Any]) -> Trainer:
    rows = Dataset.from_list([{"prompt": said(8, n)} for n in range(64)])
    args = arguments(folder, GRPOConfig, num_generations=4, max_completion_length=16, **TRL)
    return GRPOTrainer(
        small(128, 6),
        reward_funcs=rewards,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer(),
        callbacks=callbacks,
    )


Make = Callable[[Path, list[Any]], Trainer]


def losses(trainer: Trainer) -> list[str]:
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [float(loss).hex() for loss in found]


@pytest.mark.parametrize(
    ("make", "budget"),
    [
        (of_transformers, "0.7x"),
        (accumulating, "0.7x"),
        (sft, "0.8x"),
        (dpo, "0.8x"),
        (grpo, "0.8x"),
    ],
)
def test_a_trainer_keeps_its_losses_and_the_budget(make: Make, budget: str, tmp_path: Path) -> None:
    plain = make(tmp_path / "plain", [])
    plain.train()

    trainer = make(tmp_path / "planned", [BudgetCallback(budget)])
    trainer.train()

    assert losses(trainer) == losses(plain)
    assert len(losses(trainer)) == 14
    report = reprise.report(trainer.model)
    assert report.planned_steps > 4, report.sentence
    # What GRPO has generated decides which masks the model makes, and so what the step is.
    assert report.over_budget_steps <= (report.mismatched_steps if make is grpo else 0)
    # Without a mask the library asks whether several sequences are packed into a row.
    if make in (of_transformers, accumulating):
        assert report.mismatched_steps == report.unplanned_steps == 0, report.sentence
    assert report.failed_checks == 0, report.sentence

    last = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    assert {name for name in NAMES if name in last} == set(NAMES)
    if not report.over_budget_steps:
        assert last["reprise/peak_bytes"] <= last["reprise/budget_bytes"]
    events = EventAccumulator(str(next((tmp_path / "planned").rglob("events.*")).parent))
    events.Reload()
    assert {f"train/{name}" for name in NAMES} <= set(events.Tags()["scalars"])


def test_mlflow_has_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    trainer = of_transformers(tmp_path / "planned", [BudgetCallback("0.7x")], to="mlflow")
    trainer.train()

    (experiment,) = MlflowClient().search_experiments()
    (run,) = MlflowClient().search_runs([experiment.experiment_id])
    found = run.data.metrics
    assert set(NAMES) <= set(found)
    assert 0 < found["reprise/peak_bytes"] <= found["reprise/budget_bytes"]


def test_weights_and_biases_has_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    trainer = of_transformers(tmp_path / "planned", [BudgetCallback("0.7x")], to="wandb")
    trainer.train()

    assert wandb.run is not None
    found = dict(wandb.run.summary)  # the last value of each that is logged
    wandb.finish()
    assert {f"train/{name}" for name in NAMES} <= set(found)
    assert 0 < found["train/reprise/peak_bytes"] <= found["train/reprise/budget_bytes"]

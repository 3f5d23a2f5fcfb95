# SPDX-License-Identifier: Apache-2.0
"""A LightningModule with the callback and without: the same losses, the budget kept, and what is
known of the plan in the CSV that Lightning writes."""

from __future__ import annotations

import csv
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import reprise
from reprise.lightning import Budget


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.net = nn.Sequential(*layers, nn.Linear(64, 10))
        self.losses: list[str] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item().hex())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fitted(folder: Path, callbacks: list[L.Callback]) -> Classifier:
    L.seed_everything(0, verbose=False)
    module = Classifier()
    data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=CSVLogger(folder),
        log_every_n_steps=4,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(module, DataLoader(data, batch_size=256))
    return module


@pytest.mark.parametrize("part", [None, "net"])
def test_a_module_keeps_its_losses_and_the_budget(part: str | None, tmp_path: Path) -> None:
    plain = fitted(tmp_path / "plain", [])
    budget = Budget("0.7x", part=part)

    module = fitted(tmp_path / "planned", [budget])

    assert module.losses == plain.losses
    report = reprise.report(module if part is None else module.net)
    assert report.planned_steps > 4, report.sentence
    assert report.over_budget_steps == 0, report.sentence
    (file,) = (tmp_path / "planned").rglob("metrics.csv")
    last = list(csv.DictReader(file.open()))[-1]
    assert 0 < float(last["reprise/peak_bytes"]) <= float(last["reprise/budget_bytes"])

# SPDX-License-Identifier: Apache-2.0
"""A LightningModule whose training_step calls its network, fitted and tested."""

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    """A plain network with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        self.net = nn.Sequential(*layers, nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """One loss."""
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        print("loss", repr(loss.item()))
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Logs its loss."""
        self.log("validation", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir="out"
)
trainer.fit(Classifier(), DataLoader(data, batch_size=256), DataLoader(data, batch_size=256))
print({name: value.item() for name, value in trainer.callback_metrics.items()})

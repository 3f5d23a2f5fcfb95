# SPDX-License-Identifier: Apache-2.0
"""Training loops that a framework owns: Lightning, Accelerate, the Trainer of transformers.

Each is driven in rounds of a few steps, as a user calls `fit` or `train`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cases import Job, adamw, batch, case, classes, tokens
from .styles import COUNT, WIDTH, Net

__all__: list[str] = []


@case("framework/lightning")
def lightning() -> Job:
    """Manual driving of a LightningModule under a Trainer; the inner network is armed."""
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, number: Tensor, index: int) -> Tensor:
            at = int(number)
            return F.cross_entropy(self.net(batch(at, COUNT, WIDTH)), classes(at, 10, COUNT))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.net)

    return _fitted(L, Classifier(), inner=True)


@case("framework/lightning-module-armed")
def lightning_module() -> Job:
    """The LightningModule itself is armed; its own forward is never called."""
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, number: Tensor, index: int) -> Tensor:
            at = int(number)
            return F.cross_entropy(self.net(batch(at, COUNT, WIDTH)), classes(at, 10, COUNT))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.net)

    return _fitted(L, Classifier(), inner=False)


def _fitted(L: Any, module: Any, inner: bool) -> Job:
    class Numbers(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, at: int) -> int:
            return at

    def step(number: int) -> Tensor:
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(Numbers(), batch_size=None))
        module.train()
        with torch.no_grad():
            return F.cross_entropy(
                module.net(batch(number, COUNT, WIDTH)), classes(number, 10, COUNT)
            )

    return Job(step, [module], [], arm=module.net if inner else module)


@case("framework/accelerate")
def accelerate() -> Job:
    """Accelerate with two accumulated micro-batches."""
    from accelerate import Accelerator

    model = Net()
    model.train()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, optimizer = accelerator.prepare(model, adamw(model))

    def step(number: int) -> Tensor:
        total = torch.zeros(())
        for micro in range(2):
            with accelerator.accumulate(prepared):
                at = 2 * number + micro
                out = prepared(batch(at, COUNT, WIDTH))
                loss = F.cross_entropy(out, classes(at, 10, COUNT))
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()
        return total

    return Job(step, [model], [optimizer.optimizer])


@case("framework/transformers-trainer")
def trainer() -> Job:
    """The Trainer of transformers, four steps a call."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(vocab_size=512, n_embd=128, n_layer=4, n_head=4, n_positions=128)
    )

    class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, at: int) -> dict[str, Tensor]:
            ids = tokens(at, 512, 64)
            return {"input_ids": ids, "labels": ids}

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        max_steps=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        seed=0,
    )

    def step(number: int) -> Tensor:
        result = Trainer(model=model, args=arguments, train_dataset=Texts()).train()
        return torch.tensor(result.training_loss)

    return Job(step, [model], [])

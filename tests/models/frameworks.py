# SPDX-License-Identifier: Apache-2.0
"""Training loops that a framework owns: Lightning, Accelerate, the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Callable
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
    return _fitted(*_classifier(), inner=True)


@case("framework/lightning-fitted-twice")
def lightning_twice() -> Job:
    """The second `fit` makes an optimizer of its own."""
    return _fitted(*_classifier(), inner=True, fits=2)


@case("framework/lightning-module-armed")
def lightning_module() -> Job:
    """The LightningModule itself is armed; its own forward is never called."""
    return _fitted(*_classifier(), inner=False)


def _classifier() -> tuple[Any, Any]:
    """Lightning, and a module of it."""
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

    return L, Classifier()


def _fitted(L: Any, module: Any, inner: bool, fits: int = 1) -> Job:
    """One `fit` over all steps, or several with an optimizer of its own each."""

    class Numbers(torch.utils.data.Dataset[int]):
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, at: int) -> int:
            return at

    def loop(steps: int, before: Callable[[], None]) -> list[Tensor]:
        losses: list[Tensor] = []

        class Listens(L.Callback):
            def on_train_batch_start(self, *_: Any) -> None:
                before()

            def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:
                losses.append(outputs["loss"].detach())

        for _ in range(fits):
            trainer = L.Trainer(
                max_epochs=1,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=[Listens()],
            )
            data = torch.utils.data.DataLoader(Numbers(steps // fits), batch_size=None)
            trainer.fit(module, data)
        return losses

    return Job(None, [module], [], arm=module.net if inner else module, loop=loop)


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
    """The Trainer of transformers."""
    import tempfile

    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(vocab_size=512, n_embd=128, n_layer=4, n_head=4, n_positions=128)
    )

    class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 512

        def __getitem__(self, at: int) -> dict[str, Tensor]:
            ids = tokens(at, 512, 64)
            return {"input_ids": ids, "labels": ids}

    def loop(steps: int, before: Callable[[], None]) -> list[Tensor]:
        class Listens(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                before()

        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            seed=0,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[Listens()])
        return [torch.tensor(trainer.train().training_loss)]

    return Job(None, [model], [], loop=loop)

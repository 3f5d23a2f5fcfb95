# SPDX-License-Identifier: Apache-2.0
"""Lightning under a memory budget.

    from reprise.lightning import Budget
    trainer = L.Trainer(callbacks=[Budget("20GiB")], ...)
    trainer.fit(module)
    print(reprise.report(module))

What is known of the plan goes to the loggers of the Trainer (reprise.figures). Works with
`lightning` and with `pytorch_lightning`; with both installed, with the one that is imported.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import reprise

if "lightning" in sys.modules or (
    "pytorch_lightning" not in sys.modules and find_spec("lightning") is not None
):
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found, unused-ignore]
else:
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found, no-redef, unused-ignore]


class Budget(Callback):  # type: ignore[misc, unused-ignore]
    """Trains a LightningModule under a budget.

    part     the part that `training_step` calls, as "net"; None: the module itself, of which the
             one part that is called is found after some steps
    options  those of `reprise.auto`
    """

    def __init__(
        self, budget: str | int | None = "0.5x", *, part: str | None = None, **options: Any
    ) -> None:
        self._budget = budget
        self._part = part
        self._options = options

    def _model(self, module: Any) -> Any:
        return module if self._part is None else module.get_submodule(self._part)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Arms the module, which is where it will be during training."""
        reprise.auto(self._model(pl_module), self._budget, **self._options)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the figures whenever the Trainer logs."""
        if (batch_idx + 1) % trainer.log_every_n_steps == 0 and trainer.loggers:
            known = reprise.figures(self._model(pl_module))
            for logger in trainer.loggers:
                logger.log_metrics(known, step=trainer.global_step)

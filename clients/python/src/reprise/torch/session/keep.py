# SPDX-License-Identifier: Apache-2.0
"""The user's own choice of what is saved: the `collection` of the original package.

    h = reprise.keep(h)          # this tensor is never given up
    with reprise.keep():         # nor anything that is made in here
        ...

Noticed while a step is captured; costs nothing in any other step.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, overload

from torch import Tensor

from reprise.torch.session.steps import capturing


class _Block:
    """A block in which a plan discards nothing."""

    def __enter__(self) -> None:
        self._capture = capturing()
        if self._capture is not None:
            self._capture.storages.keep_all(True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._capture is not None:
            self._capture.storages.keep_all(False)


@overload
def keep() -> _Block: ...
@overload
def keep(tensor: Tensor) -> Tensor: ...


def keep(tensor: Any = None) -> Any:
    """Pins a tensor and returns it; without one, a context manager for all made inside it."""
    if tensor is None:
        return _Block()
    capture = capturing()
    if capture is not None:
        capture.storages.keep(tensor)
    return tensor

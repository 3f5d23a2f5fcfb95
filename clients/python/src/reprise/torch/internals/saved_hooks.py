# SPDX-License-Identifier: Apache-2.0
"""Saved-tensor hooks of ours: where one fails, autograd has the tensor all the same.

pack, unpack = packing(pack), unpacking(unpack)
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from torch import Tensor

from reprise.torch.internals.guard import fault, ours, told
from reprise.torch.internals.subclass import saved_alias, version_of

__all__ = ["Saved", "packing", "unpacking"]


class Saved:
    """What autograd keeps of a tensor where our hook has failed: the tensor, by an alias, which
    keeps no graph alive."""

    __slots__ = ("_version_of", "alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self._version_of: Callable[[Tensor], int] = version_of
        try:
            self.alias = saved_alias(tensor)
            self.version = version_of(self.alias)
        except Exception as error:
            if not ours(error):
                raise
            fault(error)
            self._version_of = attrgetter("_version")
            self.alias = tensor.detach()
            self.version = self.alias._version

    def tensor(self) -> Tensor:
        """Returns the tensor, or raises as autograd does if it was modified."""
        version = self._version_of(self.alias)
        if version != self.version:
            raise told(
                RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: [{self.alias.type()} {list(self.alias.shape)}] is at "
                    f"version {version}; expected version {self.version} instead."
                )
            )
        return self.alias


def packing(pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A pack hook of ours; where it fails the tensor is kept."""

    def guarded(tensor: Tensor) -> Any:
        try:
            return pack(tensor)
        except Exception as error:
            if not ours(error):
                raise
            fault(error)
        return Saved(tensor)

    return guarded


def unpacking(unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """An unpack hook of ours. Where it fails, what was packed says itself how it is had all the
    same (`plainly`)."""

    def guarded(packed: Any) -> Tensor:
        if type(packed) is Saved:
            return packed.tensor()
        if isinstance(packed, Tensor):
            return packed
        try:
            return unpack(packed)
        except Exception as error:
            if not ours(error):
                raise
            fault(error)
            if not hasattr(packed, "plainly"):
                raise
        return _plainly(packed)

    return guarded


def _plainly(packed: Any) -> Tensor:
    """What was packed says itself how it is had. A tensor that was kept and not written since is
    there even where that fails."""
    try:
        found: Tensor = packed.plainly()
    except Exception as error:
        kept = getattr(packed, "alias", None)
        if not ours(error) or kept is None or kept._version != packed.version:
            raise
        fault(error)
        return cast(Tensor, kept)
    return found

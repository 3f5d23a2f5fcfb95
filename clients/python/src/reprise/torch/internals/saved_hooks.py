# SPDX-License-Identifier: Apache-2.0
"""Guards our saved-tensor hooks: if one fails, autograd still gets its tensor.

pack, unpack = packing(pack), unpacking(unpack)
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from torch import Tensor

from reprise.torch.internals.guard import caught, fault, ours, told
from reprise.torch.internals.subclass import saved_alias, version_of

__all__ = ["Saved", "packing", "unpacking"]


class Saved:
    """What autograd keeps of a tensor whose pack hook has failed: an alias of it that keeps no
    graph alive."""

    __slots__ = ("_version_of", "alias", "version")

    def __init__(self, tensor: Tensor) -> None:
        self._version_of: Callable[[Tensor], int] = version_of
        try:
            self.alias = saved_alias(tensor)
            self.version = version_of(self.alias)
        except Exception as error:
            if not caught(error):
                raise
            self._version_of = attrgetter("_version")
            self.alias = tensor.detach()
            self.version = self.alias._version

    def tensor(self) -> Tensor:
        """Returns the tensor; raises the error that autograd raises if it was modified."""
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
    """Guards a pack hook: if it fails, the tensor itself is kept."""

    def guarded(tensor: Tensor) -> Any:
        try:
            return pack(tensor)
        except Exception as error:
            if not caught(error):
                raise
        return Saved(tensor)

    return guarded


def unpacking(unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Guards an unpack hook: if it fails, the packed object's method `plainly` returns the
    tensor."""

    def guarded(packed: Any) -> Tensor:
        if type(packed) is Saved:
            return packed.tensor()
        if isinstance(packed, Tensor):
            return packed
        try:
            return unpack(packed)
        except Exception as error:
            if not caught(error):
                raise
            if not hasattr(packed, "plainly"):
                raise
        return _plainly(packed)

    return guarded


def _plainly(packed: Any) -> Tensor:
    """Returns the tensor of a packed object without the hook. If that fails too, returns the packed
    alias, provided that it was not modified."""
    try:
        found: Tensor = packed.plainly()
    except Exception as error:
        kept = getattr(packed, "alias", None)
        if not ours(error) or kept is None or kept._version != packed.version:
            raise
        fault(error)
        return cast(Tensor, kept)
    return found

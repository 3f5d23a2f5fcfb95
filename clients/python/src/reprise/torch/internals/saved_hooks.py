# SPDX-License-Identifier: Apache-2.0
"""Guards our saved-tensor hooks: if one fails, autograd still gets its tensor. And the errors that
they raise for saved tensors that were modified, in autograd's words.

    pack, unpack = packing(pack), unpacking(unpack)
    refuse_stale(tensor, version), refuse_modified(tensor, version)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NoReturn, cast

from torch import Tensor

from reprise.torch.internals.guard import caught, fault, ours, told
from reprise.torch.internals.subclass import saved_alias, version_of

GONE = (
    "Trying to backward through the graph a second time: its saved tensors were freed when memory "
    "ran out in its backward"
)


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
            refuse_stale(self.alias, self.version, found=version)
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


def refuse_stale(
    tensor: Tensor, version: int, shape: Sequence[int] | None = None, found: int | None = None
) -> NoReturn:
    """Raises autograd's error for a saved tensor that was modified after it was packed at
    `version`. `shape` is given if the tensor has lost its own, `found` if its version is known."""
    size = list(tensor.shape if shape is None else shape)
    raise told(
        RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{tensor.type()} {size}] is at version "
            f"{version_of(tensor) if found is None else found}; expected version {version} instead."
        )
    )


def refuse_modified(tensor: Tensor, version: int) -> NoReturn:
    """Raises the error for a recorded call whose input was modified, so that it cannot be
    replayed."""
    raise told(
        RuntimeError(
            "a tensor that a recomputed op reads was modified in place after the forward, by "
            f"something that did not do so in the captured step: [{tensor.type()} "
            f"{list(tensor.shape)}] is at version {tensor._version}; expected {version}"
        )
    )

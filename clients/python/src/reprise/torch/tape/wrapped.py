# SPDX-License-Identifier: Apache-2.0
"""Saved tensors that wrap a plain one, such as DTensors: what is discarded and made again is the
plain tensor in them.

    pack, unpack = for_parts(pack, unpack)      # hooks that see the parts only
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from reprise.torch.internals.subclass import part_of, put_back

__all__ = ["for_parts"]

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class _Wrapped:
    """What autograd keeps of a wrapper: what is kept of its part, and how to put that back."""

    __slots__ = ("_put", "packed")

    def __init__(self, packed: Any, put: Callable[[Tensor], Tensor]) -> None:
        self.packed = packed
        self._put = put

    def around(self, part: Tensor) -> Tensor:
        """Returns a tensor like the saved one, around this part."""
        return self._put(part)

    def plainly(self) -> Tensor:
        """Returns the saved tensor after an internal error."""
        return self._put(self.packed.plainly())

    def let_go(self) -> None:
        """Releases what autograd keeps for a backward that will not run."""
        self.packed.let_go()


def for_parts(pack: Pack, unpack: Unpack) -> tuple[Pack, Unpack]:
    """Returns saved-tensor hooks that give these hooks the part of a wrapper instead of the
    wrapper."""

    def pack_part(tensor: Tensor) -> Any:
        part = part_of(tensor)
        return pack(tensor) if part is None else _Wrapped(pack(part), put_back(tensor))

    def unpack_part(packed: Any) -> Tensor:
        if type(packed) is not _Wrapped:
            return unpack(packed)
        return packed.around(unpack(packed.packed))

    return pack_part, unpack_part

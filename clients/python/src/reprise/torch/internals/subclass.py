# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses that wrap other tensors, such as DTensor.

    lacks_memory(tensor)      # its storage has a size but no bytes
    parts_of(tensor)          # the plain tensors in it; of a plain tensor, itself
    saved_alias(tensor)       # what a saved-tensor hook keeps
    version_of(tensor)        # changes when it is written
    part_of(tensor)           # the one plain tensor in it, which can be planned
    put_back(tensor)(part)    # a tensor of the same class around such a part

Such a tensor may have no bytes of its own: they are in its parts, which are tensors themselves. An
alias must have the same class, or autograd would go on with another kind of tensor than the program
had. It keeps no graph alive. If the class says how it is put together (`__tensor_flatten__`),
making an alias calls no operator, because dispatch modes count the operators that they see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = [
    "is_wrapper",
    "lacks_memory",
    "part_of",
    "parts_of",
    "put_back",
    "saved_alias",
    "version_of",
]

# A fake tensor wraps no other tensor.
_OTHERS = frozenset({Tensor, torch.nn.Parameter, FakeTensor})
_keys: Any = torch._C._dispatch_keys
_PYTHON = torch._C.DispatchKey.Python


def is_wrapper(tensor: Tensor) -> bool:
    """Returns whether a tensor handles its own calls in Python."""
    return type(tensor) not in _OTHERS and bool(_keys(tensor).has(_PYTHON))


def lacks_memory(tensor: Tensor) -> bool:
    """Returns whether the storage of a tensor has no bytes or cannot be read."""
    if not is_wrapper(tensor):
        return False
    if is_traceable_wrapper_subclass(tensor):
        return True
    try:
        tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return True
    return False


def parts_of(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors that hold the bytes; empty if they are not known."""
    if not is_wrapper(tensor):
        return [tensor]
    if is_traceable_wrapper_subclass(tensor):
        return [part for held in _held(tensor).values() for part in parts_of(held)]
    return [] if lacks_memory(tensor) else [tensor]


def saved_alias(tensor: Tensor) -> Tensor:
    """Returns an alias of the same class without its graph. Dispatch modes do not see it being
    made."""
    if not is_wrapper(tensor):
        guard = torch._C._DisableTorchDispatch()
        try:
            return tensor.detach()
        finally:
            del guard
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}  # not all of them tensors
        parts.update({name: saved_alias(held) for name, held in _held(tensor).items()})
        with torch.no_grad():
            made: Tensor = type(tensor).__tensor_unflatten__(
                parts, context, tensor.size(), tensor.stride()
            )
        return made.requires_grad_(False)
    return tensor.detach()


def part_of(tensor: Tensor) -> Tensor | None:
    """Returns the only tensor that a wrapper consists of, if that is a plain one: the shard of a
    DTensor. Returns None for any other tensor."""
    if not is_wrapper(tensor) or not is_traceable_wrapper_subclass(tensor):
        return None
    (part, *more) = (*_held(tensor).values(), None)
    return part if len(more) == 1 and type(part) is Tensor else None


def put_back(tensor: Any) -> Callable[[Tensor], Tensor]:
    """Returns a function that makes a tensor like this one, without its graph, around another
    part. It does not hold the tensor."""
    names, context = tensor.__tensor_flatten__()
    (name,) = _held(tensor)
    rest = {other: getattr(tensor, other) for other in names if other != name}
    kind, size, stride = type(tensor), tensor.size(), tensor.stride()

    def put(part: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = kind.__tensor_unflatten__({**rest, name: part}, context, size, stride)
        return made.requires_grad_(False)

    return put


def version_of(tensor: Tensor) -> int:
    """Returns a number that grows with every write to the tensor or to one of its parts."""
    if not is_wrapper(tensor):
        return tensor._version
    return tensor._version + sum(part._version for part in parts_of(tensor) if part is not tensor)


def _held(tensor: Any) -> dict[str, Tensor]:
    """Returns the tensors that a wrapper consists of, by attribute name."""
    names, _ = tensor.__tensor_flatten__()
    found = {name: getattr(tensor, name) for name in names}
    return {name: held for name, held in found.items() if isinstance(held, Tensor)}

# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses that wrap other tensors, such as DTensor.

    lacks_memory(tensor)      # its storage has a size but no bytes
    bytes_of(tensor)          # of what is in it
    parts_of(tensor)          # the plain tensors in it; of a plain tensor, itself
    saved_alias(tensor)       # what a saved-tensor hook keeps
    shape_of(tensor)          # its shape in numbers; () if it is nested
    geometry_of(tensor)       # its position in its storage
    version_of(tensor)        # changes when it is written
    part_of(tensor)           # the one plain tensor in it, which can be planned
    put_back(tensor)(part)    # a tensor of the same class around such a part

Such a tensor may have no bytes of its own: they are in its parts, which are tensors themselves. An
alias must have the same class, or autograd would go on with another kind of tensor than the program
had. It keeps no graph alive, and making it calls no operator that a dispatch mode would count.

It must also be interchangeable with the tensor. Some classes mean a certain tensor object by a
part: the ragged size of a jagged tensor is a symbol that belongs to its offsets, and with an alias
of these it is another size. So parts stay the objects that they are. The only part of a tensor is
its data: that is aliased, and may be planned. Where a class and the names of its parts are first
seen, such a tensor is made and compared. If it is not equal, the class makes its aliases itself, by
`detach`, and nothing of it is planned.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass


class _Way(Enum):
    ALIASED = auto()  # of an alias of its only part
    SAME_PARTS = auto()  # of its parts themselves
    DETACHED = auto()  # by the class


# By class and the names of its parts: a jagged tensor with lengths has another part.
_ways: weakref.WeakKeyDictionary[type, dict[tuple[str, ...], _Way]] = weakref.WeakKeyDictionary()

# A fake tensor wraps no other tensor.
_OTHERS = frozenset({Tensor, torch.nn.Parameter, FakeTensor})
_keys: Any = torch._C._dispatch_keys
_PYTHON = torch._C.DispatchKey.Python

# Sizes, strides, offset.
Geometry = tuple[torch.Size, tuple[int, ...], int]


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


def bytes_of(tensor: Tensor) -> int:
    """Returns the bytes of the elements of a tensor. Those of a jagged one are counted in its
    parts: the number of its own elements is a symbol."""
    held = parts_of(tensor) if is_wrapper(tensor) else []
    return sum(part.numel() * part.element_size() for part in held or [tensor])


def saved_alias(tensor: Tensor) -> Tensor:
    """Returns an alias of the same class without its graph, which is interchangeable with the
    tensor. Dispatch modes do not see it being made."""
    if not is_wrapper(tensor):
        guard = torch._C._DisableTorchDispatch()
        try:
            return tensor.detach()
        finally:
            del guard
    way = _way(tensor)
    return _detached(tensor) if way is _Way.DETACHED else _remade(tensor, way)


def part_of(tensor: Tensor) -> Tensor | None:
    """Returns the only tensor that a wrapper consists of, if that is a plain one that an equal one
    can replace: the shard of a DTensor. Returns None for any other tensor."""
    if not is_wrapper(tensor) or _way(tensor) is not _Way.ALIASED:
        return None
    (part,) = _held(tensor).values()
    return part if type(part) is Tensor else None


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


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor; () of a nested one, whose sizes are symbols or unknown."""
    return () if tensor.is_nested else tuple(tensor.shape)


def geometry_of(tensor: Tensor) -> Geometry:
    """Returns sizes, strides and offset of a tensor."""
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


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


def _way(tensor: Any) -> _Way:
    if not is_traceable_wrapper_subclass(tensor):
        return _Way.DETACHED
    known = _ways.setdefault(type(tensor), {})
    names = tuple(_held(tensor))
    if names not in known:
        known[names] = _found_way(tensor, only=len(names) == 1)
    return known[names]


def _found_way(tensor: Any, only: bool) -> _Way:
    """Tries how an interchangeable alias of a wrapper can be made; `only`: of one part."""
    for way in (_Way.ALIASED, _Way.SAME_PARTS) if only else (_Way.SAME_PARTS,):
        try:
            if _interchangeable(_remade(tensor, way), tensor):
                return way
        except Exception:  # code of the class, which may raise anything
            continue
    return _Way.DETACHED


def _remade(tensor: Any, way: _Way) -> Tensor:
    """Returns a tensor of the same class, without its graph, made of the parts of a wrapper."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}  # not all of them tensors
    if way is _Way.ALIASED:
        parts.update({name: saved_alias(held) for name, held in _held(tensor).items()})
    with torch.no_grad():
        made: Tensor = type(tensor).__tensor_unflatten__(
            parts, context, tensor.size(), tensor.stride()
        )
    return made.requires_grad_(False)


def _detached(tensor: Tensor) -> Tensor:
    """Returns the alias that the class of a wrapper makes, also where dispatch is disabled:
    otherwise it would be a plain tensor without memory."""
    disabled = torch._C._dispatch_tls_local_exclude_set()
    for key in (_PYTHON, torch._C.DispatchKey.PythonTLSSnapshot):
        disabled = disabled.remove(key)
    enabled = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(enabled, disabled), _disable_current_modes():
        return tensor.detach()


def _interchangeable(made: Any, tensor: Any) -> bool:
    """Returns whether a program cannot tell one wrapper from another by its class, its geometry and
    what the class keeps in it. Sizes that are symbols must be the same symbols."""
    if type(made) is not type(tensor) or tuple(_held(made)) != tuple(_held(tensor)):
        return False
    for of in (Tensor.size, Tensor.stride):
        if tuple(of(made)) != tuple(of(tensor)):
            return False
    for name in ("dtype", "device", "layout"):
        if getattr(made, name) != getattr(tensor, name):
            return False
    theirs = vars(tensor)
    return all(
        name in theirs
        and (isinstance(value, Tensor) or value is theirs[name] or bool(value == theirs[name]))
        for name, value in vars(made).items()
    )

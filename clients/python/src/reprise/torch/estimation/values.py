# SPDX-License-Identifier: Apache-2.0
"""The values of small tensors of integers among fake ones.

    values.know(fake, tensor)             # of an input
    values.saw(func, args, kwargs, made)  # an op has run on fake tensors
    value = values.asked(func, args)      # what a program reads of one; None: it is not known

A forward may ask what is in its masks and positions: whether a mask hides anything, whether several
sequences are packed into a row. What it does then depends on the answer. Such tensors are made of
numbers, sizes and integers of the batch, and are small: each op that makes one of others whose
values are known runs once more on these, on the CPU. Of floating-point numbers only those are known
that are written down, as the ones of a mask. Nothing is known of memory that was not written, or of
random numbers, but that those between 0 and 1 are: a layer that is dropped with a probability of 0
is not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from reprise.torch.internals.ops import written_by

# Bytes of a tensor whose values are known.
SMALL = 1 << 20
# What a program asks that ends if the answer is no, as torch's distributions do of their arguments.
_CHECK = "aten::_is_all_true"
_VALUE, _EQUAL = "aten::_local_scalar_dense", "aten::equal"
# What makes floating-point numbers that are the same everywhere.
_WRITTEN = ("aten::ones", "aten::zeros", "aten::full", "aten::_to_copy", "aten::clone")
_UNIFORM = "aten::rand"
_COMPARE = ("aten::lt.Scalar", "aten::le.Scalar", "aten::gt.Scalar", "aten::ge.Scalar")
_UNWRITTEN = "aten::empty", "aten::new_empty"


class Values:
    """The values of fake tensors that are known."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()
        self._uniform = WeakTensorKeyDictionary()  # between 0 and 1

    def know(self, fake: Tensor, tensor: Tensor) -> None:
        """Copies the values of a tensor that a fake one stands for, if it is a small one of
        integers."""
        if _is_small(tensor) and not isinstance(tensor, FakeTensor):
            with torch._C._DisableTorchDispatch():
                self._known[fake] = tensor.detach().to("cpu", copy=True)

    def asked(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Returns what an op tells the program, of tensors whose values are known; else None."""
        if func.name() not in (_VALUE, _EQUAL):
            return None
        known = [self._of(arg) for arg in args]
        if any(value is None for value in known):
            return None
        with torch._C._DisableTorchDispatch():
            return func(*known)

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """Notes what an op has made: its values, if they are known. Those of what it has modified
        are not known any more, unless all that it read is."""
        if made is NotImplemented:
            return
        name, written = func.name(), written_by(func, args, kwargs)
        if name == _UNIFORM:
            self._uniform[made] = True
        if not written and not (isinstance(made, FakeTensor) and _is_small(made, func)):
            return
        is_ours = all(isinstance(tensor, FakeTensor) for tensor in written)  # not the program's
        found = self._again(func, args, kwargs) if is_ours and not _is_unknown(func) else None
        if found is None and name == _CHECK:
            with torch._C._DisableTorchDispatch():
                found = torch.tensor(True)
        elif found is None and name in _COMPARE and args[0] in self._uniform:
            found = _compared(func, made, args[1])
        if isinstance(found, Tensor):
            assert not isinstance(found, FakeTensor)  # which no kernel may read
            self._known[made] = found
        else:
            self._forget(written)

    def _again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Runs an op on known values; returns None if one is not known."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = {id(tensor): self._of(tensor) for tensor in given}
        if any(value is None for value in known.values()):
            return None
        own = tree_map(lambda x: known[id(x)] if isinstance(x, Tensor) else x, (args, kwargs))
        where = {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
        with suppress(Exception), torch._C._DisableTorchDispatch(), torch.no_grad():
            found = func(*own[0], **{**own[1], **where})
            return found if isinstance(found, Tensor) else None
        return None  # the op itself will say what is wrong

    def _of(self, value: Any) -> Tensor | None:
        if isinstance(value, FakeTensor):
            return self._known.get(value)  # type: ignore[no-any-return]
        # A tensor that the forward makes of a list, or has made before.
        is_plain = type(value) is Tensor and value.device.type == "cpu" and _is_small(value)
        with torch._C._DisableTorchDispatch():
            return value.clone() if is_plain else None

    def _forget(self, written: list[Tensor]) -> None:
        """Forgets what shares memory with tensors that an op has written."""
        storages = {tensor.untyped_storage()._cdata for tensor in written}
        for of in (self._known, self._uniform) if storages else ():
            for tensor in list(of):
                if tensor.untyped_storage()._cdata in storages:
                    del of[tensor]


def _is_small(tensor: Tensor, func: Any = None) -> bool:
    """Returns whether the values of a tensor may be known. `func`: the op that has made it."""
    if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > SMALL:
        return False
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return True
    return func is not None and (func.is_view or func.name() in _WRITTEN)


def _compared(func: Any, made: Tensor, with_: Any) -> Tensor | None:
    """Returns how numbers of at least 0 and less than 1 compare with another one, if all do so in
    the same way."""
    with torch._C._DisableTorchDispatch():
        least, most = func(torch.tensor([0, 1 - 2**-24]), with_).tolist()
        return torch.full(made.shape, least) if least == most else None


def _is_unknown(func: Any) -> bool:
    """Returns whether the values that an op makes do not follow from its arguments."""
    return torch.Tag.nondeterministic_seeded in func.tags or func.name().startswith(_UNWRITTEN)

# SPDX-License-Identifier: Apache-2.0
"""Operators whose results differ bitwise from run to run on the same input.

Their kernels add with atomics, or let whichever thread comes last write. torch has a tag for them
(`nondeterministic_bitwise`), but no operator of torch 2.13 carries it; hence this list. These
operators are never replayed: the backward must see what they computed in the forward. On the CPU
the list does not apply, because all but one of them are deterministic there. It does not apply
either if the program has asked for deterministic algorithms.

A check finds the operators that are missing here (check/control.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ADD = """
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool3d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    fractional_max_pool2d_backward fractional_max_pool3d_backward
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward
    max_unpool2d max_unpool3d

    upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
    upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward
    _upsample_bicubic2d_aa_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward

    grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward
    reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward

    embedding_dense_backward _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward _segment_reduce_backward
    _ctc_loss_backward _cudnn_ctc_loss nll_loss2d_forward convolution_backward
    _flash_attention_backward _efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention_backward

    scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_
    index_copy index_copy_ index_reduce index_reduce_ put put_
    histc kthvalue median nanmedian

    _roi_align_backward _roi_pool_backward _ps_roi_align_backward _ps_roi_pool_backward
    _deform_conv2d_backward
"""
_ALWAYS = frozenset(_ADD.split())
# Floating-point sums of blocks that finish in any order.
_FLOATING = frozenset({"cumsum", "cumsum_", "logcumsumexp", "_logcumsumexp"})
# Nondeterministic only if they add: the position of the argument that says so, or that is added.
_IF_GIVEN = {
    "index_put": 3,
    "index_put_": 3,
    "_index_put_impl": 3,
    "_index_put_impl_": 3,
    "_unsafe_index_put": 3,
    "bincount": 1,
}
_REDUCES = frozenset({"scatter", "scatter_"})  # only the overloads that reduce
# These add with atomics even on the CPU, if several threads share a large float tensor.
_ON_THE_CPU = frozenset({"index_put", "index_put_", "_index_put_impl", "_index_put_impl_"})


def adds_in_any_order(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a call may compute different bits for the same input."""
    name = str(getattr(getattr(func, "overloadpacket", None), "__name__", ""))
    if name in _IF_GIVEN:
        at = _IF_GIVEN[name]
        given = args[at] if len(args) > at else kwargs.get("accumulate", kwargs.get("weights"))
        adds = given is not None and given is not False
    elif name in _REDUCES:
        adds = "reduce" in str(getattr(func, "_overloadname", ""))
    else:
        adds = name in _ALWAYS or (name in _FLOATING and _is_floating(args))
    # Asked for deterministic algorithms, these ops use another kernel, or raise.
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if not adds or (torch.are_deterministic_algorithms_enabled() and not warns_only):
        return False
    if any(device != "cpu" for device in _devices(args)):
        return True
    return name in _ON_THE_CPU and torch.get_num_threads() > 1


def _is_floating(args: tuple[Any, ...]) -> bool:
    """Returns whether the first argument is a tensor of floating-point or complex numbers."""
    first = args[0] if args else None
    return isinstance(first, Tensor) and (first.is_floating_point() or first.is_complex())


def _devices(values: Any) -> set[str]:
    found = set()
    for value in values:
        if isinstance(value, Tensor):
            found.add(value.device.type)
        elif isinstance(value, (list, tuple)):
            found |= _devices(value)
    return found

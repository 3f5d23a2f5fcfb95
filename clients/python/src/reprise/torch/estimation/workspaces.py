# SPDX-License-Identifier: Apache-2.0
"""What an op takes inside itself, beside what it reads and writes.

    workspace_bytes(func, args, result)      # args and result may be fake

Nothing says it before the op runs. On a CPU these are the rules that ops of torch 2.13 were seen to
follow, most of them within some percent; an op that is not named here takes nothing. Elsewhere a
margin stands for the workspaces of convolutions and attention, which libraries choose by what is
free.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals.ops import tensors_in

# Share of what a step makes that is held back for workspaces which are assumed.
COARSE = 0.05
# Of what an op writes, elsewhere than on a CPU.
MARGIN = 0.05
_FLOAT = 4  # bytes: attention on a CPU computes in single precision
_HALVES = (torch.bfloat16, torch.float16)
_TILE, _SUMS = 32, 8 << 10  # rows or columns of a product's tile; bytes of its sums
_COLUMNS = 64  # that are multiplied at a time, where there are no tiles


def workspace_bytes(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """Returns the bytes that an op takes at the most while it runs."""
    name = func.name().partition("::")[2].partition(".")[0]
    written = tensors_in(result)
    device = next((t.device.type for t in (*tensors_in(args), *written)), "cpu")
    if device == "cpu":
        rule = _ON_CPU.get(name)
        return 0 if rule is None else int(rule(args, result))
    taking = "conv" in name or "attention" in name
    return int(MARGIN * sum(t.nbytes for t in written)) if taking else 0


def held_back(message: dict[str, Any], peak_bytes: int) -> int:
    """Returns what a step with this peak may take beyond it, in bytes: where libraries choose how
    they compute, a share of what it makes; otherwise nothing."""
    chosen = any("conv" in op["name"] or "attention" in op["name"] for op in message["ops"])
    return int(COARSE * max(0, peak_bytes - message["static_bytes"])) if chosen else 0


def _largest(times: int) -> Callable[[Any, Any], int]:
    """Returns the rule of an op that makes so many tensors as large as its largest one."""

    def rule(args: Any, result: Any) -> int:
        return times * max((t.nbytes for t in tensors_in(args, result)), default=0)

    return rule


def _written(_: Any, result: Any) -> int:
    return max((t.nbytes for t in tensors_in(result)), default=0)


def _softmax(args: Any, _: Any) -> int:
    """A softmax works on a copy of what is not contiguous."""
    return 0 if args[0].is_contiguous() else int(args[0].nbytes)


def _convolution(args: Any, result: Any) -> int:
    source, weight, transposed, groups = args[0], args[1], args[6], args[8]
    if columns := _columns(source, weight, result, groups):
        return columns
    strided = max(args[3]) > 1
    if transposed:
        twice = strided or source.dtype in _HALVES
        return 2 * int(result.nbytes) if twice else _moved(result, source, weight)
    if not _is_blocked(source):
        return 0
    if source.dtype in _HALVES:
        again = 1 if source.dtype is torch.bfloat16 and not _has_tiles() else 2
        return int(max(source.nbytes + weight.nbytes, again * result.nbytes))
    if not _is_onednn(source, weight, strided or max(args[5]) > 1, groups):
        return _slow(source, weight, result)
    is_plain = _is_plain(source, weight, groups, _block_of_channels() - 1)
    return _moved(result, source, weight, is_plain=is_plain)


def _convolution_backward(args: Any, _: Any) -> int:
    gradient, source, weight = args[:3]
    groups, mask = args[9], args[10]
    if columns := _columns(source, weight, gradient, groups):
        return columns
    if not _is_blocked(source):
        return 0
    if source.dtype in _HALVES:
        again = 2 if source.dtype is torch.bfloat16 else 1
        return int(max(2 * source.nbytes, again * gradient.nbytes))
    strided, transposed = max(args[4]) > 1, args[7]
    if not transposed and not _is_onednn(source, weight, strided or max(args[6]) > 1, groups):
        return _slow(source, weight, gradient)
    # The gradient of the source comes first, and stays while that of the weight is made.
    of_source = of_weight = 0
    if mask[0]:
        of_source = _moved(source, gradient, weight)
        if strided and not transposed:
            of_source = 2 * int(source.nbytes)
        of_source -= mask[1] * int(weight.nbytes)
    if mask[1]:
        wide, narrow = (source, gradient) if transposed else (gradient, source)
        few = _is_plain(narrow, weight, groups, _block_of_channels() // 2)
        of_weight = _blocked(wide) + (0 if few else _blocked(narrow))
        of_weight += _blocked_weight(weight, wide, None if few else narrow) - int(weight.nbytes)
        of_weight += (torch.get_num_threads() > 1) * int(weight.nbytes)
    return max(of_source, of_weight)


def _moved(result: Tensor, source: Tensor, weight: Tensor, *, is_plain: bool = False) -> int:
    """Returns what a convolution of oneDNN takes that makes its result in blocks of channels and
    moves it to its place when all that it has read is gone. `is_plain`: it reads the source as it
    is."""
    made = _blocked(result)
    read = 0 if is_plain else _blocked(source)
    read += _blocked_weight(weight, result, None if is_plain else source)
    return max(made + read - int(result.nbytes), made)


def _is_plain(read: Tensor, weight: Tensor, groups: int, most: int) -> bool:
    """Returns whether oneDNN reads a tensor of `most` channels or fewer as it is."""
    return groups == 1 and read.size(1) <= most and max(weight.shape[2:]) > 1


def _blocked(tensor: Tensor) -> int:
    """Returns the bytes of a tensor whose channels are filled up to whole blocks."""
    return int(
        tensor.nbytes // max(1, tensor.size(1)) * _whole(tensor.size(1), _block_of_channels())
    )


def _blocked_weight(weight: Tensor, *sides: Tensor | None) -> int:
    """Returns the bytes of a weight between tensors, with the channels of each filled up."""
    size = int(weight.nbytes)
    for side in sides:
        if side is not None:
            size = size * _whole(side.size(1), _block_of_channels()) // max(1, side.size(1))
    return size


def _whole(size: int, block: int) -> int:
    return -(-size // block) * block


@cache
def _block_of_channels() -> int:
    """Returns how many single-precision numbers a processor register holds."""
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


def _is_onednn(source: Tensor, weight: Tensor, spread: bool, groups: int) -> bool:
    """Returns whether torch gives a convolution to oneDNN (`ConvParams::use_mkldnn`). `spread`: it
    has strides or is dilated."""
    window = (1, *weight.shape[2:])[-2:]
    is_wide = max(window) > 1
    quick = spread or source.size(0) >= 16 or is_wide or torch.get_num_threads() > 1
    large = groups > 1 or min(window) > 3 or source.size(0) > 1 or source.numel() > 20480
    return quick and large


def _slow(source: Tensor, weight: Tensor, output: Tensor) -> int:
    """Returns the bytes of the matrix that torch's own convolution multiplies."""
    if max(weight.shape[2:]) == 1:
        return 0
    return int(source.size(0) * weight[0].numel() * output[0, 0].numel() * source.itemsize)


def _is_blocked(source: Tensor) -> bool:
    """Returns whether a convolution may copy what it reads into blocks: not where channels lie side
    by side. One of single pixels often does not; it is not known when."""
    return not (source.dim() > 3 and source.stride(1) == 1 and source.size(1) > 1)


def _columns(source: Tensor, weight: Tensor, output: Tensor, groups: int) -> int:
    """Returns the bytes of the matrix that a convolution in half precision multiplies, on a CPU
    that has no instructions for it; 0 elsewhere."""
    if source.dtype not in _HALVES or _has_half(source.dtype):
        return 0
    if groups > 1:
        return int(source.nbytes)
    window, pixels = weight[0].numel(), output[0, 0].numel()
    return int(source.shape[0] * window * pixels * source.itemsize)


def _has_tiles() -> bool:
    """Returns whether the processor multiplies tiles of bfloat16 (AMX), for which results are
    blocked, too. A torch that does not tell: so is assumed."""
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return ask is None or bool(ask())


def _has_pairs() -> bool:
    """Returns whether the processor multiplies pairs of bfloat16, and no tiles."""
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return not _has_tiles() and ask is not None and bool(ask())


def _has_half(dtype: torch.dtype) -> bool:
    name = "bf16" if dtype is torch.bfloat16 else "fp16"
    ask = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", None)
    return False if ask is None else bool(ask())


def _product(args: Any, _: Any) -> int:
    """Returns the bytes to which each thread copies factors of half precision: of bfloat16 the
    right one in whole tiles, or in columns where pairs are multiplied; some rows and columns of
    both if the left one is transposed; of float16 some rows and columns."""
    left, right = args[-2:]
    if left.dtype not in _HALVES or not _has_half(left.dtype):
        return 0
    (rows, inner), columns = left.shape[-2:], _whole(right.shape[-1], _TILE)
    filled, sums = _whole(inner, _TILE), _SUMS
    if left.dtype is torch.float16:
        rows = min(2 * rows, 512)
        copied, sums = min(512, filled) * (rows + 128), rows * 128
    elif left.stride(-1) != 1:
        copied = min(rows, 256) * inner + min(64, columns) * filled
    elif _has_pairs():
        copied, sums = min(inner, 512) * _COLUMNS, min(rows, 256) * _COLUMNS * _FLOAT
    else:
        copied = filled * columns
    return int(torch.get_num_threads() * (copied * left.itemsize + sums))


def _attention(args: Any, _: Any) -> int:
    query, key = args[:2]
    rows, columns = _block(query, key)
    each = rows * columns + 2 * rows + rows * query.shape[-1]
    return int(torch.get_num_threads() * each * _FLOAT)


def _attention_backward(args: Any, _: Any) -> int:
    gradient, query, key = args[:3]
    rows, columns = _block(query, key)
    return int(gradient.nbytes + torch.get_num_threads() * 2 * rows * columns * _FLOAT)


def _block(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Returns the rows and columns of scores that a thread computes at once."""
    rows, columns = query.shape[-2], key.shape[-2]
    most = 256 if rows >= 768 else 64 if rows >= 192 else 32
    return min(rows, most), min(columns, 512)


_ON_CPU: dict[str, Callable[[Any, Any], int]] = {
    "mse_loss": _largest(2),
    "smooth_l1_loss": _largest(2),
    "huber_loss": _largest(1),
    "binary_cross_entropy_with_logits": _largest(2),
    "soft_margin_loss_backward": _largest(2),
    "logsumexp": _largest(1),
    "mm": _product,
    "addmm": _product,
    "_log_softmax": _softmax,
    "_softmax": _softmax,
    "native_batch_norm_backward": _written,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}

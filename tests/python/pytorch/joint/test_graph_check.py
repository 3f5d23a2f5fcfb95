# SPDX-License-Identifier: Apache-2.0
"""Calls of a compiled graph against the same graph without a plan: what is found, what is put
right, and that a program does not notice."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from reprise.torch.joint.graph_check import GraphCheck

pytestmark = pytest.mark.usefixtures("compiles_afresh")

WIDTH = 8
WRONG = 1 + 2**-20


class Block(nn.Module):
    """What of it is not as it should be: "gradient", "output", "buffer" or ""."""

    def __init__(self, forward: Callable[[Block, Tensor], Any], wrong: str = "") -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.how, self.wrong = forward, wrong

    def forward(self, x: Tensor) -> Any:
        out = self.how(self, x)
        first, *rest = out if isinstance(out, tuple) else (out,)
        if self.wrong == "gradient":
            first = Skewed.apply(first)
        if self.wrong == "output":
            first = first + (first.detach() * WRONG - first.detach())
        if self.wrong == "buffer":
            self.norm.num_batches_tracked.add_(1)
        return (first, *rest) if rest else first


class Skewed(torch.autograd.Function):
    """Returns its input, and a gradient that is slightly too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * WRONG


def plain(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.up(x))


def random(block: Block, x: Tensor) -> Tensor:
    return dropout(torch.tanh(block.up(x)), 0.5)


def writing(block: Block, x: Tensor) -> Tensor:
    return torch.tanh(block.norm(block.up(x)))


def viewing(block: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """The second output is a view of the input."""
    return torch.tanh(block.up(x)), x.view(-1)


def two(block: Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """Nobody reads the second output."""
    y = block.up(x)
    return torch.tanh(y), torch.relu(y)


FORWARDS = [plain, random, writing, viewing, two]


def compiled(block: Block) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """Returns a block compiled by AOTAutograd, and the list to which its graph is appended."""
    graphs: list[Callable[..., Any]] = []
    own = torch._dynamo.lookup_backend("aot_eager")

    def backend(gm: Any, inputs: Any) -> Any:
        made = own(gm, inputs)
        graphs.append(made)

        def called(*args: Any) -> Any:
            if check[0] is None:
                return made(*args)
            begun = check[0].begin(0, args)
            out = made(*args)
            if begun is not None:
                check[0].end(begun, out, args)
            return out

        return called

    check: list[GraphCheck | None] = [None]
    call = torch.compile(block, backend=backend, fullgraph=True)
    call.check = check
    return call, graphs


def made(forward: Callable[[Block, Tensor], Any], wrong: str = "") -> Block:
    torch.manual_seed(0)
    return Block(forward, wrong).train()


def stepped(
    forward: Callable[[Block, Tensor], Any],
    wrong: str = "",
    *,
    checked: bool = True,
    around: Callable[[Callable[..., Any], Tensor], Any] = lambda call, x: call(x),
) -> tuple[Any, list[Tensor]]:
    """Returns the result of a check of the step, and everything that the program sees of it."""
    block = made(forward, wrong)
    call, _ = compiled(block)
    torch.manual_seed(1)
    inputs = torch.randn(4, WIDTH)
    if checked:
        reference = made(forward)
        reference.up, reference.norm = block.up, block.norm
        other, graphs = compiled(reference)
        kept = {n: b.clone() for n, b in block.named_buffers()}
        other(inputs.clone().requires_grad_())  # compiles
        block.load_state_dict(kept, strict=False)
        call.check[0] = GraphCheck(block, {0: graphs[0]}, nullcontext)
    torch.manual_seed(2)
    x = inputs.requires_grad_()
    out = around(call, x * 1)
    first = out[0] if isinstance(out, tuple) else out
    first.square().sum().backward()
    result = call.check[0].compare(None) if checked else None
    seen = [x.grad, *(p.grad for p in block.parameters()), *block.buffers(), torch.rand(3)]
    return result, [t.detach().clone() for t in seen if t is not None]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_graph_that_is_right_is_equal_and_the_program_sees_no_difference(
    forward: Callable[[Block, Tensor], Any],
) -> None:
    _, expected = stepped(forward, checked=False)

    result, seen = stepped(forward)

    assert result.differing == ()
    assert result.repeatable
    assert result.checked >= 3  # of the input, the weight and the bias
    assert result.outputs >= 1
    assert (result.buffers > 0) == (forward is writing)
    assert same(seen, expected)


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_wrong_gradient_is_found_and_the_program_gets_the_right_one(
    forward: Callable[[Block, Tensor], Any],
) -> None:
    _, expected = stepped(forward, checked=False)

    result, seen = stepped(forward, "gradient")

    assert {"up.weight", "up.bias"} <= set(result.differing)
    assert any("the gradient of input" in name for name in result.differing)
    assert same(seen, expected)


@pytest.mark.parametrize("forward", FORWARDS)
def test_a_wrong_output_is_found_and_the_rest_of_the_step_reads_the_right_one(
    forward: Callable[[Block, Tensor], Any],
) -> None:
    _, expected = stepped(forward, checked=False)

    result, seen = stepped(forward, "output")

    assert "output 0" in result.differing
    assert same(seen, expected)


def test_a_wrong_buffer_is_found_and_put_right() -> None:
    buffer, seen = stepped(writing, "buffer")

    assert any(name.startswith("buffer ") for name in buffer.differing)
    _, expected = stepped(writing, checked=False)
    assert same(seen, expected)


def test_a_reference_that_differs_from_itself_says_nothing() -> None:
    from reprise.torch.joint import graph_check

    again, turn = graph_check._Call.again, [0]

    def unsteady(self: Any, came: Any) -> Any:
        found = again(self, came)
        turn[0] += 1
        found.grads = tuple(None if g is None else g * (1 + turn[0] * 2**-18) for g in found.grads)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_check._Call, "again", unsteady)
        result, _ = stepped(plain)

    assert not result.repeatable
    assert result.checked == 0
    assert result.left_out == 1


def test_a_call_within_a_checkpoint_of_the_program_is_compared_once() -> None:
    def around(call: Callable[..., Any], x: Tensor) -> Any:
        return checkpoint(call, x, use_reentrant=False)

    _, expected = stepped(plain, checked=False, around=around)

    result, seen = stepped(plain, around=around)

    assert result.differing == ()
    assert result.checked == 3
    assert same(seen, expected)


def test_a_reference_that_fails_leaves_the_step_as_it_is_and_is_told() -> None:
    from reprise.torch.joint import graph_check

    _, expected = stepped(plain, checked=False)

    def failing(self: Any, came: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graph_check._Call, "again", failing)
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            stepped(plain)
        patched.setattr(GraphCheck, "compare", lambda self, _: self.stop())
        _, seen = stepped(plain)

    assert same(seen, expected)


def test_what_a_check_keeps_goes_with_the_graph_of_a_step_without_a_backward() -> None:
    block = made(plain)
    call, graphs = compiled(block)
    x = torch.randn(4, WIDTH, requires_grad=True)
    call(x)  # compiles
    call.check[0] = GraphCheck(block, {0: graphs[0]}, nullcontext)

    kept = weakref.ref(call(x * 1).grad_fn)

    assert kept() is None

# SPDX-License-Identifier: Apache-2.0
"""What programs do inside a forward, and in the loss."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from habits import STEPS, Arm, Shown, W, deep, habit, some, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint


@habit
def activation_statistics(arm: Arm) -> Iterator[Shown]:
    """Forward hooks that log, keep and change activations."""
    model = deep()
    kept: list[Tensor] = []
    seen: list[float] = []

    def look(module: nn.Module, inputs: Any, out: Tensor) -> None:
        kept.append(out)
        seen.append(float(out.detach().std()))

    for layer in model:
        layer.register_forward_hook(look)
    model[5].register_forward_hook(lambda m, i, o: o * 1.5)
    model[2].register_forward_pre_hook(lambda m, i: (i[0] + 0.1,))
    arm(model)
    for said, modules in train(model, lambda _: model(some(16, W)).square().mean()):
        yield [*said, *seen, kept[3].detach().clone()], modules
        seen.clear(), kept.clear()


@habit
def weight_norm_and_orthogonal(arm: Arm) -> Iterator[Shown]:
    model = deep()
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[4])
    arm(model)
    return train(model, lambda _: model(some(16, W)).square().mean())


@habit
def spectral_norm(arm: Arm) -> Iterator[Shown]:
    """Power iteration: buffers written in every forward, both generations of it."""
    model = deep()
    parametrizations.spectral_norm(model[0])
    torch.nn.utils.spectral_norm(model[4])
    arm(model)
    return train(model, lambda _: model(some(16, W)).square().mean())


class Quantized(nn.Module):
    """Straight-through estimator, commitment loss, codebook by moving averages."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = deep(), deep()
        self.register_buffer("codes", torch.randn(8, W))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x)
        which = torch.cdist(z, self.codes).argmin(1)
        near = self.codes[which]
        with torch.no_grad():
            hot = F.one_hot(which, 8).to(z.dtype)
            self.codes.mul_(0.9).add_(hot.t() @ z, alpha=0.02)
        q = z + (near - z).detach()
        return self.decode(q), (z - near.detach()).square().mean()


@habit
def straight_through(arm: Arm) -> Iterator[Shown]:
    model = arm(Quantized())

    def loss(_: int) -> Tensor:
        x = some(16, W)
        out, commit = model(x)
        return F.mse_loss(out, x) + 0.25 * commit

    return train(model, loss)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = deep(), deep()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        mask = h > 0
        h = h.masked_scatter(mask, self.second(x)[mask] * 2)
        h = torch.where(mask, h.exp(), h)
        h[:, ::2] = h[:, ::2].clone().tanh_()
        h.masked_fill_(h > 3, 3.0)
        chosen = h[mask.sum(1) > W // 3]  # its size is the data's
        return h.sum(1) + chosen.sum()


@habit
def masks_and_sizes_of_data(arm: Arm) -> Iterator[Shown]:
    model = arm(Masked())
    return train(model, lambda _: model(some(16, W)).square().mean(), lr=1e-4)


class Scattered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = deep()

    def forward(self, x: Tensor, to: Tensor) -> Tensor:
        h = self.inner(x)
        out = torch.zeros(8, W)
        out.index_put_((to,), h, accumulate=True)
        out = out.index_add(0, to, h.sin())
        out = out.scatter_reduce(0, to[:, None].expand_as(h), h, "amax")
        return self.inner(out.sin().relu_())


@habit
def message_passing(arm: Arm) -> Iterator[Shown]:
    """index_put with accumulation, index_add, scatter_reduce."""
    model = arm(Scattered())
    return train(model, lambda _: model(some(16, W), torch.randint(8, (16,))).square().mean())


class Bagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, W, sparse=True, padding_idx=0)
        self.bags = nn.EmbeddingBag(40, W, mode="sum", sparse=True)
        self.inner = deep()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(self.words(tokens).mean(1) + self.bags(tokens))


@habit
def sparse_embeddings(arm: Arm) -> Iterator[Shown]:
    model = arm(Bagged())
    sparse = torch.optim.SparseAdam([*model.words.parameters(), *model.bags.parameters()], lr=0.01)
    dense = torch.optim.AdamW(model.inner.parameters(), fused=True)
    for _ in range(STEPS):
        sparse.zero_grad(), dense.zero_grad()
        loss = model(torch.randint(40, (16, 5))).square().mean()
        loss.backward()
        sparse.step(), dense.step()
        yield [loss.detach()], [model]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(W, W, 2, dropout=0.2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * W, 4)

    def forward(self, rows: list[Tensor]) -> Tensor:
        lengths = torch.tensor([len(r) for r in rows])
        padded = rnn.pad_sequence(rows, batch_first=True)
        packed = rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        out, _ = rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.head(out).sum((1, 2))


@habit
def packed_sequences(arm: Arm) -> Iterator[Shown]:
    model = arm(Packed())
    return train(
        model,
        lambda step: model([some(2 + (step + i) % 5, W) for i in range(6)]).square().mean(),
        lr=0.01,
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.inner = nn.GRUCell(W, W), deep()
        self.state: Tensor | None = None

    def forward(self, xs: Tensor) -> Tensor:
        h = torch.zeros(xs.shape[1], W) if self.state is None else self.state
        outs = []
        for x in xs:
            h = self.cell(x, h)
            outs.append(self.inner(h))
        self.state = h.detach()
        return torch.stack(outs)


@habit
def truncated_backward_through_time(arm: Arm) -> Iterator[Shown]:
    """Hidden state carried over steps by the model itself."""
    model = arm(Recurrent())
    for said, modules in train(model, lambda _: model(some(4, 8, W)).square().mean()):
        yield [*said, model.state], modules


class Deep(nn.Module):
    """Leaves layers out at random: two generators, branches on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(deep(depth=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for n, layer in enumerate(self.layers):
            if self.training and (random.random() if n % 2 else torch.rand(()).item()) < 0.25:
                continue
            x = x + layer(x)
        return x


@habit
def stochastic_depth(arm: Arm) -> Iterator[Shown]:
    random.seed(0)
    model = arm(Deep())
    return train(model, lambda _: model(some(16, W)).square().mean(), lr=0.01)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = deep(depth=2), deep(depth=1), deep(depth=2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.left(h) if h.mean().item() > 0 else self.right(h).exp()


@habit
def branches_on_values(arm: Arm) -> Iterator[Shown]:
    model = arm(Branching())
    return train(model, lambda _: model(some(16, W)).square().mean(), lr=0.01)


class Through(torch.autograd.Function):
    """Leaves torch and returns; writes to its input; has an output without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.from_numpy(np.sinh(x.detach().numpy()))
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(x, out)
        ctx.side = x.numpy().copy()
        return out, sign

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:  # type: ignore[override]
        x, out = ctx.saved_tensors
        return grad * torch.from_numpy(np.cosh(ctx.side)) + 0 * x + 0 * out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(), deep()

    def forward(self, x: Tensor) -> Tensor:
        out, sign = Through.apply(self.first(x))  # type: ignore[no-untyped-call]
        return self.last(Doubled.apply(out.clone()) * sign)  # type: ignore[no-untyped-call]


@habit
def numpy_and_back(arm: Arm) -> Iterator[Shown]:
    model = arm(Foreign())
    for said, modules in train(model, lambda _: model(some(16, W)).square().mean()):
        yield [*said, float(np.float32(said[0]))], modules


class Hooks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(), deep()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h.register_hook(lambda g: g * 0.5)
        h.retain_grad()
        self.kept = h
        return self.last(h)


@habit
def tensor_hooks(arm: Arm) -> Iterator[Shown]:
    model = Hooks()
    model.first[0].weight.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    model.last[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    arm(model)
    for said, modules in train(model, lambda _: model(some(16, W)).square().mean()):
        yield [*said, model.kept.grad], modules


class Result(NamedTuple):
    loss: Tensor
    extras: dict[str, list[Tensor]]


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": deep(), "b": deep()})

    def forward(self, *, batch: dict[str, Any], flags: tuple[bool, ...] = (True,)) -> Result:
        a = self.layers["a"](batch["x"])
        b = self.layers["b"](batch["more"][0]) if flags[0] else a
        loss = F.mse_loss(a, b.roll(1, 0))
        return Result(loss, {"hidden": [a, b.detach()]})


@habit
def structures_in_and_out(arm: Arm) -> Iterator[Shown]:
    """Keyword arguments, nested inputs, a loss made inside."""
    model = arm(Structured())

    def loss(_: int) -> Tensor:
        found = model(batch={"x": some(16, W), "more": [some(16, W), "text"], "none": None})
        return found.loss + found.extras["hidden"][0].square().mean()

    return train(model, loss)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.norm, self.act = nn.BatchNorm2d(8), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm(self.conv1(x)))
        r = F.dropout(self.conv2(h), 0.2, self.training, inplace=True)
        r += h
        r[:, 0].mul_(0.5)
        r.relu_().clone().add_(1).sqrt_()
        return r.permute(0, 2, 3, 1).expand(2, -1, -1, -1, -1).flatten(2, 3).unbind(1)[0]


@habit
def in_place_everything(arm: Arm) -> Iterator[Shown]:
    model = arm(InPlace().to(memory_format=torch.channels_last))

    def loss(_: int) -> Tensor:
        x = some(4, 3, 8, 8).to(memory_format=torch.channels_last)
        return model(x).square().mean()

    return train(model, loss)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = deep()
        self.filter = nn.Parameter(torch.randn(W // 2 + 1, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.irfft(torch.fft.rfft(self.inner(x)) * self.filter, n=W)
        return h.as_strided((4, W), (2 * W, 1)) + torch.view_as_real(self.filter).sum()


@habit
def complex_numbers(arm: Arm) -> Iterator[Shown]:
    model = arm(Spectral())
    return train(model, lambda _: model(some(16, W)).square().mean(), lr=0.01)


class Sampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = deep(), nn.Linear(W, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.inner(x))
        soft = F.gumbel_softmax(logits, hard=True)
        actions = torch.distributions.Categorical(logits=logits)
        drawn = actions.sample()
        noise = torch.distributions.Normal(logits, 1.0).rsample()
        noise = noise * torch.empty_like(noise).bernoulli_(0.7)
        return actions.log_prob(drawn).mean() + (soft * noise).mean() + torch.rand(3).sum()


@habit
def sampling(arm: Arm) -> Iterator[Shown]:
    model = arm(Sampling())
    return train(model, lambda _: model(some(16, W)))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = deep(), deep(), deep()

    def pair(self, x: Tensor) -> Tensor:
        return checkpoint(self.b, self.a(x), use_reentrant=False)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.pair, x, use_reentrant=False)
        with torch.autograd.graph.save_on_cpu():
            x = self.c(x)
        return self.a(x)


@habit
def checkpoints_in_checkpoints(arm: Arm) -> Iterator[Shown]:
    """Nested checkpoints, the program's own saved-tensor hooks, and a layer that is used twice."""
    model = arm(Nested())
    return train(model, lambda _: model(some(16, W)).square().mean())


class PerSample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = deep(dropout=0.0), deep()
        self.weight = nn.Parameter(torch.randn(W) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        norms = torch.func.vmap(lambda row: (row * self.weight).tanh().sum())(h)
        slope = torch.func.vmap(torch.func.grad(lambda row: row.sin().square().sum()))(h)
        return self.last(h * norms[:, None] + slope)


@habit
def transforms_inside(arm: Arm) -> Iterator[Shown]:
    """vmap and grad of torch.func inside the model."""
    model = arm(PerSample())
    return train(model, lambda _: model(some(16, W)).square().mean())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, W)
        self.inner = nn.TransformerEncoderLayer(W, 4, 48, batch_first=True)
        self.head = nn.Linear(W, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = self.inner(self.words(tokens), src_mask=mask, is_causal=True)
        return F.cross_entropy(self.head(self.inner(h)).flatten(0, 1), tokens.roll(-1).flatten())


@habit
def tied_weights(arm: Arm) -> Iterator[Shown]:
    model = arm(Tied())
    return train(model, lambda _: model(torch.randint(30, (4, 9))))

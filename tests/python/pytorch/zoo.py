# SPDX-License-Identifier: Apache-2.0
"""The model zoo: what people train, in small. One network per trait that is easy to get wrong.

    entry = ZOO["densenet"]
    job = entry(seed=0)              # model, and a step as a user would write it
    loss = job.step(3)               # zero_grad, forward, loss, backward, optimizer

Every step draws its batch from a generator of its own, so that two runs of a job see the same
data whatever else draws random numbers. A step takes 20 to 80 ms on one core, and its activations
are some 5 to 40 MiB: large against parameters, small against a test machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ZOO", "ZooJob"]


@dataclass
class ZooJob:
    """One training job."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    forward_loss: Callable[[int], Tensor]  # of micro-batch n
    micro_batches: int = 1
    autocast: bool = False

    def step(self, number: int) -> Tensor:
        """Runs a training step; returns the sum of the losses of its micro-batches."""
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for micro in range(self.micro_batches):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
                loss = self.forward_loss(number * self.micro_batches + micro)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total


def _generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + number)


def _images(number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(number))


def _labels(number: int, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=_generator(number + 1_000_000))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def _classifier(model: nn.Module, *shape: int, classes: int = 10, **options: Any) -> ZooJob:
    model.train()

    def forward_loss(number: int) -> Tensor:
        return F.cross_entropy(model(_images(number, *shape)), _labels(number, classes, shape[0]))

    return ZooJob(model, _sgd(model), forward_loss, **options)


# ---- Convolutions -------------------------------------------------------------


class Bottleneck(nn.Module):
    """The block of ResNet-50: 1x1, 3x3, 1x1 with batch norm, in-place ReLU, in-place addition."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = inner * 4
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down = (
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2), width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        channels, layers = width, []
        for stage, count in enumerate(blocks):
            for block in range(count):
                inner = width << stage
                layers.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
                channels = inner * 4
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1), 1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for size in (16, 16, 0, 32, 32, 0, 64, 64, 0):
            if size:
                layers += [nn.Conv2d(channels, size, 3, padding=1), nn.ReLU(inplace=True)]
                channels = size
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(64 * 16, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Has long skip connections: the last block reads what the first one made."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            [DoubleConv(3, width), DoubleConv(width, 2 * width), DoubleConv(2 * width, 4 * width)]
        )
        self.middle = DoubleConv(4 * width, 8 * width)
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(2 * width << i, width << i, 2, 2) for i in reversed(range(3))
        )
        self.convs = nn.ModuleList(
            DoubleConv(2 * width << i, width << i) for i in reversed(range(3))
        )
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, conv in zip(self.ups, self.convs, strict=True):
            x = conv(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(4 * growth)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = F.relu(self.norm1(torch.cat(features, 1)), inplace=True)
        x = self.conv2(F.relu(self.norm2(self.conv1(x)), inplace=True))
        return F.dropout(x, 0.1, self.training)


class DenseNet(nn.Module):
    """Every layer reads all layers before it, so memory is quadratic."""

    def __init__(self, growth: int = 6, layers: tuple[int, ...] = (4, 4)) -> None:
        super().__init__()
        channels = 12
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        self.transitions = nn.ModuleList()
        for count in layers:
            self.blocks.append(
                nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(count))
            )
            channels += count * growth
            self.transitions.append(
                nn.Sequential(
                    nn.BatchNorm2d(channels),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                )
            )
            channels //= 2
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            features = [x]
            for layer in block:  # type: ignore[attr-defined]
                features.append(layer(features))
            x = transition(torch.cat(features, 1))
        return self.head(x.mean((2, 3)))


# ---- Sequences ------------------------------------------------------------------


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 48)
        self.lstm = nn.LSTM(48, 64, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.lstm(self.token(tokens))
        return self.head(out)


class CellLSTM(nn.Module):
    """The recurrence in Python: one weight, read at every time step."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 48)
        self.cell = nn.LSTMCell(48, 96)
        self.head = nn.Linear(96, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        h = c = torch.zeros(tokens.shape[0], 96)
        outs = []
        for t in range(tokens.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            outs.append(h)
        return self.head(torch.stack(outs, 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(
        self, width: int, heads: int, dropout: float = 0.1, causal: bool = True, mlp: Any = None
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        self.drop = nn.Dropout(dropout)
        self.mlp = mlp or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Tied embeddings, dropout everywhere."""

    def __init__(self, depth: int = 4, width: int = 64, mlp: Any = None, shared: int = 1) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(128, width), nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        blocks = [Block(width, 4, mlp=mlp() if mlp else None) for _ in range(depth // shared)]
        # A block that stands there several times is the same module, called several times.
        self.blocks = nn.ModuleList(block for block in blocks for _ in range(shared))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 128, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.token(tokens) + self.position(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """Patches by a convolution, a class token, PyTorch's own encoder layer."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class Experts(nn.Module):
    """Mixture of experts, routed to the best two: sizes that depend on the data."""

    def __init__(self, width: int = 64, experts: int = 4, top: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, which = torch.where(chosen == number)
            part = expert(flat[rows]) * weights[rows, which, None]
            out = out.index_add(0, rows, part)
        return out.view_as(x)


def _language(model: nn.Module, vocabulary: int, batch: int, length: int, **options: Any) -> ZooJob:
    model.train()

    def forward_loss(number: int) -> Tensor:
        tokens = _labels(number, vocabulary, batch, length + 1)
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return ZooJob(model, _adam(model), forward_loss, **options)


# ---- Diffusion ------------------------------------------------------------------


class DiffusionBlock(nn.Module):
    """Group norm, SiLU, a shift by the time, attention over the pixels."""

    def __init__(self, inputs: int, outputs: int, attention: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(32, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = Attention(outputs, 4, 0.0, causal=False) if attention else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.skip(x) + self.conv2(F.dropout(F.silu(h), 0.1, self.training))
        if self.attention is None:
            return h
        flat = h.flatten(2).transpose(1, 2)
        return h + self.attention(flat).transpose(1, 2).reshape(h.shape)


class DiffusionUNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = DiffusionBlock(width, width, attention=False)
        self.down2 = DiffusionBlock(width, 2 * width, attention=True)
        self.middle = DiffusionBlock(2 * width, 2 * width, attention=True)
        self.up2 = DiffusionBlock(4 * width, width, attention=True)
        self.up1 = DiffusionBlock(2 * width, width, attention=False)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(16) * (-math.log(1e4) / 16))
        angles = when[:, None] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.stem(x)
        first = self.down1(x, time)
        second = self.down2(F.avg_pool2d(first, 2), time)
        x = self.middle(F.avg_pool2d(second, 2), time)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.up2(torch.cat([x, second], 1), time)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.head(F.silu(self.up1(torch.cat([x, first], 1), time)))


def _diffusion() -> ZooJob:
    model = DiffusionUNet().train()

    def forward_loss(number: int) -> Tensor:
        clean, noise = _images(number, 16, 3, 32, 32), _images(-number - 1, 16, 3, 32, 32)
        when = torch.rand(16, generator=_generator(number))
        level = when[:, None, None, None]
        return F.mse_loss(model(clean * (1 - level) + noise * level, when * 1000), noise)

    return ZooJob(model, _adam(model), forward_loss)


# ---- Custom functions --------------------------------------------------------------


class Swish(torch.autograd.Function):
    """Saves one tensor and recomputes the rest, as memory-saving kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class Careless(torch.autograd.Function):
    """Keeps its tensor in Python, unseen by any hook."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.out = x.tanh()
        return ctx.out.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (1 - ctx.out * ctx.out)


class CustomNet(nn.Module):
    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(16 if i else 3, 16, 3, padding=1, bias=False) for i in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(depth))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x))
            x = Careless.apply(x) if i % 3 == 2 else Swish.apply(x)  # type: ignore[no-untyped-call]
        return self.head(x.mean((2, 3)))


def _channels_last() -> ZooJob:
    model = ResNet().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]

    def forward_loss(number: int) -> Tensor:
        x = _images(number, 16, 3, 64, 64).to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x), _labels(number, 10, 16))

    return ZooJob(model, _sgd(model), forward_loss)


def _segmentation() -> ZooJob:
    model = UNet().train()

    def forward_loss(number: int) -> Tensor:
        labels = _labels(number, 2, 8, 48, 48)
        return F.cross_entropy(model(_images(number, 8, 3, 48, 48)), labels)

    return ZooJob(model, _sgd(model), forward_loss)


_MAKERS: dict[str, Callable[[], ZooJob]] = {
    "resnet50": lambda: _classifier(ResNet(), 16, 3, 64, 64),
    "vgg": lambda: _classifier(VGG(), 16, 3, 32, 32),
    "unet": _segmentation,
    "densenet": lambda: _classifier(DenseNet(), 16, 3, 32, 32),
    "lstm": lambda: _language(LSTM(), 64, 16, 48),
    "lstm-cell": lambda: _language(CellLSTM(), 64, 64, 24),
    "gpt": lambda: _language(GPT(), 128, 16, 64),
    "vit": lambda: _classifier(ViT(), 16, 3, 32, 32),
    "moe": lambda: _language(GPT(2, mlp=Experts), 128, 16, 64),
    "diffusion": _diffusion,
    "channels-last": _channels_last,
    "shared-weights": lambda: _language(GPT(6, shared=3), 128, 8, 64),
    "custom-function": lambda: _classifier(CustomNet(), 16, 3, 32, 32),
    "autocast": lambda: _language(GPT(3), 128, 16, 64, autocast=True),
    "autocast-conv": lambda: _classifier(ResNet(), 8, 3, 64, 64, autocast=True),
    "accumulation": lambda: _language(GPT(3), 128, 8, 64, micro_batches=2),
}


def _seeded(make: Callable[[], ZooJob]) -> Callable[..., ZooJob]:
    def seeded(seed: int = 0) -> ZooJob:
        torch.manual_seed(seed)
        return make()

    return seeded


# name -> a fresh job, the same one for the same seed
ZOO: dict[str, Callable[..., ZooJob]] = {name: _seeded(make) for name, make in _MAKERS.items()}

# SPDX-License-Identifier: Apache-2.0
"""Trains a pre-activation ResNet-v2 on the handwritten digits of scikit-learn.

    python examples/train_resnet.py                   # plain PyTorch
    python examples/train_resnet.py --budget 0.5x     # half of its own dynamic memory

The network is that of "Identity Mappings in Deep Residual Networks" (He et al.,
2016) for 32x32 images: three stages of n blocks with 16, 32 and 64 channels,
batch norm and in-place ReLU before every convolution. Depth 6n+2 has blocks of
two 3x3 convolutions, depth 9n+2 bottlenecks of three. The 8x8 digits are
enlarged to 32x32 and three channels.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import reprise


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """x + f(x), where f normalizes and activates before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        inner = outputs // 4 if bottleneck else outputs
        self.norm1 = nn.BatchNorm2d(inputs)
        if bottleneck:
            self.conv1 = conv(inputs, inner, 1, stride)
            self.norm3 = nn.BatchNorm2d(inner)
            self.conv3 = conv(inner, outputs, 1)
        else:
            self.conv1 = conv(inputs, inner, 3, stride)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv2 = conv(inner, inner, 3)
        self.relu = nn.ReLU(inplace=True)
        self.bottleneck = bottleneck
        self.shortcut = (
            conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(x))
        # A projection starts from the activated input, an identity from the raw one.
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.conv2(self.relu(self.norm2(y)))
        if self.bottleneck:
            y = self.conv3(self.relu(self.norm3(y)))
        return y + shortcut


class ResNet(nn.Module):
    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        bottleneck = (depth - 2) % 6 != 0
        blocks = (depth - 2) // (9 if bottleneck else 6)
        channels = 16
        layers: list[nn.Module] = [conv(3, channels, 3)]
        for stage in range(3):
            outputs = (64 if bottleneck else 16) << stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Block(channels, outputs, stride, bottleneck))
                channels = outputs
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(dim=(2, 3)))


def digits() -> TensorDataset:
    """1797 digits of 8x8 grey values 0..16, as 32x32 images of three channels."""
    from sklearn.datasets import load_digits  # for the data alone: the network needs torch only

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    images = F.interpolate(images, size=(32, 32), mode="bilinear")
    return TensorDataset(images.repeat(1, 3, 1, 1), torch.tensor(data.target))


def depth(text: str) -> int:
    value = int(text)
    if value < 8 or ((value - 2) % 6 and (value - 2) % 9):
        raise argparse.ArgumentTypeError(f"depth {value}: must be 6n+2 (as 38) or 9n+2 (as 47)")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--depth", type=depth, default=38, help="6n+2 or 9n+2; default 38")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, choices=range(5))
    parser.add_argument("--budget", help='of memory, as "0.5x" or "2GiB"; without: plain PyTorch')
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)

    model = ResNet(args.depth)
    if args.budget:
        model = reprise.auto(model, budget=args.budget, verify="gradients")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(
        digits(), args.batch, shuffle=True, drop_last=True, num_workers=args.workers
    )

    model.train()
    step = 0
    while step < args.steps:
        for images, labels in loader:
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

            step += 1
            seconds = time.perf_counter() - started
            if args.json:
                # The loss to its last bit, so that two runs can be compared.
                line = {"step": step, "loss": loss.item().hex(), "seconds": round(seconds, 6)}
                print(json.dumps(line), flush=True)
            else:
                print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()

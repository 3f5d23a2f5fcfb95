# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision, timm and diffusers, small and with random weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from .cases import Job, adamw, batch, case, classes, sgd, supervised, tokens

__all__: list[str] = []


def _classifier(model: nn.Module, count: int, size: int, optimizer: Any = sgd) -> Job:
    """A classifier of ten classes on square images of `size` pixels."""

    def loss_of(model: nn.Module, number: int) -> Tensor:
        return F.cross_entropy(model(batch(number, count, 3, size, size)), labels(number))

    def labels(number: int) -> Tensor:
        return classes(number, 10, count)

    return supervised(model, loss_of, optimizer)


# name -> batch, pixels
_TORCHVISION = {
    "resnet18": (16, 64),
    "resnet50": (8, 64),
    "mobilenet_v3_small": (16, 64),
    "efficientnet_b0": (8, 64),
    "densenet121": (8, 64),
    "vgg11_bn": (4, 64),
    "squeezenet1_1": (16, 96),
    "shufflenet_v2_x0_5": (32, 64),
    "regnet_y_400mf": (16, 64),
    "convnext_tiny": (4, 64),
    "mnasnet0_5": (32, 64),
    "swin_t": (4, 64),
}


def _torchvision(name: str, count: int, size: int) -> None:
    @case(f"torchvision/{name}")
    def build() -> Job:
        from torchvision import models

        return _classifier(models.get_model(name, weights=None, num_classes=10), count, size)


for _name, (_count, _size) in _TORCHVISION.items():
    _torchvision(_name, _count, _size)


@case("torchvision/vit")
def vit() -> Job:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=64,
        patch_size=8,
        num_layers=4,
        num_heads=4,
        hidden_dim=128,
        mlp_dim=512,
        num_classes=10,
    )
    return _classifier(model, 16, 64, adamw)


@case("torchvision/googlenet-auxiliary")
def googlenet() -> Job:
    from torchvision.models import googlenet as make

    model = make(weights=None, num_classes=10, aux_logits=True, init_weights=False)

    def loss_of(model: nn.Module, number: int) -> Tensor:
        out = model(batch(number, 8, 3, 96, 96))
        labels = classes(number, 10, 8)
        side = F.cross_entropy(out.aux_logits1, labels) + F.cross_entropy(out.aux_logits2, labels)
        return F.cross_entropy(out.logits, labels) + 0.3 * side

    return supervised(model, loss_of, sgd)


@case("torchvision/deeplab")
def deeplab() -> Job:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large as make

    model = make(weights=None, weights_backbone=None, num_classes=5)

    def loss_of(model: nn.Module, number: int) -> Tensor:
        return F.cross_entropy(model(batch(number, 4, 3, 96, 96))["out"], labels(number))

    def labels(number: int) -> Tensor:
        return tokens(number, 5, 4, 96, 96)

    return supervised(model, loss_of, sgd)


@case("torchvision/video-r3d")
def video() -> Job:
    from torchvision.models.video import r3d_18

    model = r3d_18(weights=None, num_classes=10)

    def loss_of(model: nn.Module, number: int) -> Tensor:
        return F.cross_entropy(model(batch(number, 2, 3, 4, 48, 48)), classes(number, 10, 2))

    return supervised(model, loss_of, sgd)


# name -> batch, pixels, options
_TIMM: dict[str, tuple[int, int, dict[str, Any]]] = {
    "mixer_s32_224": (4, 224, {}),
    "vit_tiny_patch16_224": (16, 64, {"img_size": 64}),
    "convmixer_768_32": (2, 64, {}),
    "resnetv2_50": (8, 64, {}),
    "efficientvit_b0": (16, 64, {}),
    "ghostnet_050": (32, 64, {}),
    "repvgg_a0": (8, 64, {}),
    "poolformer_s12": (4, 64, {}),
    "xcit_nano_12_p16_224": (16, 64, {}),
    "nf_resnet26": (8, 64, {}),
}


def _timm(name: str, count: int, size: int, options: dict[str, Any]) -> None:
    @case(f"timm/{name}")
    def build() -> Job:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return _classifier(model, count, size, adamw)


for _name, (_count, _size, _options) in _TIMM.items():
    _timm(_name, _count, _size, _options)


@case("diffusers/unet2d")
def unet2d() -> Job:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )

    def loss_of(model: nn.Module, number: int) -> Tensor:
        noisy, noise = batch(number, 8, 3, 32, 32), batch(10_000 + number, 8, 3, 32, 32)
        return F.mse_loss(model(noisy, tokens(number, 1000, 8)).sample, noise)

    return supervised(model, loss_of)


@case("diffusers/unet2d-conditional")
def unet2d_conditional() -> Job:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=64,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )

    def loss_of(model: nn.Module, number: int) -> Tensor:
        noisy, noise = batch(number, 4, 4, 16, 16), batch(10_000 + number, 4, 4, 16, 16)
        text = batch(20_000 + number, 4, 12, 64)
        return F.mse_loss(model(noisy, tokens(number, 1000, 4), text).sample, noise)

    return supervised(model, loss_of)


@case("diffusers/autoencoder-kl")
def autoencoder() -> Job:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=32,
    )

    def loss_of(model: nn.Module, number: int) -> Tensor:
        images = batch(number, 4, 3, 32, 32)
        return F.mse_loss(model(images, sample_posterior=True).sample, images)

    return supervised(model, loss_of)

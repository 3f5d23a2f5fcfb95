# SPDX-License-Identifier: Apache-2.0
"""Small random data in the form that public scripts read, so that nothing is downloaded."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from pathlib import Path

import numpy as np

__all__ = [
    "citations",
    "digits",
    "enwik8",
    "pictures",
    "sines",
    "tokens",
    "word_tokenizer",
    "words",
]


def digits(folder: Path, train: int = 512, test: int = 256) -> None:
    """MNIST's four files, as torchvision finds them under `folder`."""
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(1)
    for name, count in (("train", train), ("t10k", test)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, count) + labels.tobytes()
        )


def tokens(folder: Path, vocabulary: int = 65, count: int = 20_000) -> None:
    """train.bin, val.bin and meta.pkl, as nanoGPT reads them."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(2)
    for name in ("train", "val"):
        draw.integers(0, vocabulary, count, dtype=np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocabulary}))


def words(folder: Path, vocabulary: int = 200, lines: int = 700) -> None:
    """train.txt, valid.txt and test.txt of made-up words."""
    folder.mkdir(parents=True)
    draw = random.Random(3)
    for name, count in (("train", lines), ("valid", lines // 10), ("test", lines // 10)):
        text = [
            " ".join(f"w{draw.randrange(vocabulary)}" for _ in range(draw.randrange(5, 25)))
            for _ in range(count)
        ]
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")


def word_tokenizer(folder: Path, vocabulary: int = 200) -> None:
    """A tokenizer for `words`, in the form that transformers loads; token 200 is all else."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {f"w{number}": number for number in range(vocabulary)} | {"<unk>": vocabulary}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about | {"model_max_length": 64}))


def pictures(folder: Path, count: int = 24, size: int = 280) -> None:
    """Training and test images as of BSDS300."""
    from PIL import Image

    draw = np.random.default_rng(4)
    for part in ("train", "test"):
        where = folder / "BSDS300/images" / part
        where.mkdir(parents=True)
        for number in range(count if part == "train" else 4):
            pixels = draw.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(where / f"{number:03}.png")


def sines(path: Path, rows: int = 12, length: int = 80) -> None:
    """Shifted sine waves, as an array that torch.save has written."""
    import torch

    draw = np.random.default_rng(5)
    x = np.arange(length) + draw.integers(-80, 80, (rows, 1))
    torch.save(np.sin(x / 20), path)


def enwik8(folder: Path) -> None:
    """95 MB of letters, zipped: the scripts split them at the 90th."""
    folder.mkdir(parents=True)
    block = np.random.default_rng(6).integers(97, 123, 1_000_000, dtype=np.uint8).tobytes()
    with gzip.open(folder / "enwik8.gz", "wb", compresslevel=1) as file:
        for _ in range(95):
            file.write(block)


def citations(folder: Path, papers: int = 2000, words: int = 60, links: int = 4000) -> None:
    """cora.content and cora.cites."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(7)
    with (folder / "cora.content").open("w") as file:
        for paper in range(papers):
            has = " ".join(map(str, draw.integers(0, 2, words)))
            file.write(f"{paper} {has} class{paper % 7}\n")
    pairs = {(int(a), int(b)) for a, b in draw.integers(0, papers, (links, 2)) if a != b}
    text = "".join(f"{a} {b}\n" for a, b in sorted(pairs))
    (folder / "cora.cites").write_text(text)

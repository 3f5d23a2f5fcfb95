# SPDX-License-Identifier: Apache-2.0
"""Which scripts are run, with which arguments, on which data.

A path with a `+` in its first part is that of a clone, as OWNER+NAME in the folder that the user
names; any other is of a script of our own in `own/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import data

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A script and how it is run. `prepare` fills an empty folder; the script runs in `cwd` below
    it, where everything that lies beside the script is linked."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda _: None
    stop_after: int = 0  # steps of optimizers
    set: tuple[str, ...] = ()  # constants of the script, NAME=VALUE
    mask: tuple[str, ...] = ()  # regular expressions of what may differ, besides times
    path: str = ""  # where the script's modules are, below its clone
    environment: tuple[tuple[str, str], ...] = ()
    torchrun: int = 0  # ranks
    code: int = 0  # with which the script ends

    @property
    def clone(self) -> str:
        """The folder of the clone; empty: ours."""
        first = Path(self.script).parts[0]
        return first if "+" in first else ""


def _mnist(folder: Path) -> None:
    data.digits(folder / "data")


def _mnist_here(folder: Path) -> None:
    data.digits(folder / "cwd/data")


def _vae(folder: Path) -> None:
    _mnist(folder)
    (folder / "cwd/results").mkdir(exist_ok=True)


_GPT = (
    "--device=cpu --dtype=float32 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 "
    "--n_embd=96 --max_iters=16 --eval_iters=2 --eval_interval=8 --dataset=random"
)


def _gpt(name: str, more: str) -> Case:
    return Case(
        f"nanoGPT/{name}",
        "karpathy+nanoGPT/train.py",
        tuple(f"{_GPT} {more}".split()),
        lambda folder: data.tokens(folder / "cwd/data/random"),
        mask=(r"mfu -?[\d.]+%",),
    )


def _example(
    name: str,
    arguments: str = "",
    prepare: Callable[[Path], None] = lambda _: None,
    *,
    script: str = "main.py",
    called: str = "",
    stop_after: int = 0,
    mask: tuple[str, ...] = (),
    environment: tuple[tuple[str, str], ...] = (),
) -> Case:
    return Case(
        f"examples/{name}{called}",
        f"pytorch+examples/{name}/{script}",
        tuple(arguments.split()),
        prepare,
        stop_after,
        mask=mask,
        environment=environment,
    )


_WORDS = (
    "--data ../words --emsize 32 --nhid 64 --nlayers 2 --batch_size 8 --bptt 32 --epochs 2 "
    "--log-interval 5"
)
_ENWIK8 = ("dim=64", "depth=2", "heads=4", "BATCH_SIZE=4", "NUM_BATCHES=12", "GENERATE_EVERY=100")


def _words(folder: Path) -> None:
    data.words(folder / "words")


def _clm(folder: Path) -> None:
    data.words(folder / "words", lines=400)
    data.word_tokenizer(folder / "tokenizer")


_RUN_CLM = (
    "--model_type gpt2 --config_overrides n_embd=96,n_layer=4,n_head=4,vocab_size=201,"
    "n_positions=64,bos_token_id=200,eos_token_id=200 --tokenizer_name ../tokenizer "
    "--train_file ../words/train.txt --validation_file ../words/valid.txt --block_size 64 "
    "--do_train --max_steps 40 --per_device_train_batch_size 8 --logging_steps 1 --use_cpu "
    "--output_dir ../out --report_to none --seed 3 --disable_tqdm True"
)


def _run_clm(called: str, more: str) -> Case:
    return Case(
        f"transformers/run_clm{called}",
        "huggingface+transformers/examples/pytorch/language-modeling/run_clm.py",
        tuple(f"{_RUN_CLM} {more}".split()),
        _clm,
        mask=(
            r"train_(runtime|samples_per_second|steps_per_second) += +[\d.:]+",
            # Where the hub's folder lies, and what is named after the time of day.
            r"(hub|datasets)/\S+",
            r"default-[0-9a-f]{16}",
            r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d",
            r"runs/\S+",
        ),
        environment=(("HF_HOME", "../hub"),),
    )


def _titan(name: str, *arguments: str) -> Case:
    return Case(
        f"torchtitan/{name}",
        "own/titan.py",
        arguments,
        # What is compiled once more than before warns once more.
        environment=(("PYTHONWARNINGS", "ignore"),),
        torchrun=2,
    )


def _x(script: str, *constants: str, stop_after: int = 14, enwik8: bool = True) -> Case:
    return Case(
        f"x-transformers/{script}",
        f"lucidrains+x-transformers/{script}.py",
        (),
        (lambda folder: data.enwik8(folder / "cwd/data")) if enwik8 else (lambda _: None),
        stop_after,
        constants,
    )


CASES: tuple[Case, ...] = (
    _gpt("eager", "--compile=False --gradient_accumulation_steps=1"),
    _gpt("accumulated", "--compile=False --gradient_accumulation_steps=2 --dropout=0.1"),
    _gpt("compiled", "--compile=True --gradient_accumulation_steps=1"),
    _gpt("compiled-accumulated", "--compile=True --gradient_accumulation_steps=2"),
    _example(
        "mnist",
        "--epochs 2 --batch-size 32 --test-batch-size 64 --log-interval 1 --save-model",
        _mnist,
    ),
    _example("mnist_rnn", "--epochs 2 --batch-size 32 --log-interval 1", _mnist),
    _example("vae", "--epochs 2 --batch-size 64 --log-interval 1", _vae),
    _example(
        "siamese_network",
        "--batch-size 16 --test-batch-size 64 --log-interval 1",
        _mnist,
        stop_after=14,
    ),
    _example("mnist_forward_forward", "--epochs 14 --log-interval 1", _mnist_here),
    _example(
        "mnist_hogwild",
        "--epochs 2 --num-processes 1 --log-interval 1",
        _mnist,
        mask=(r"(?m)^\d+(?=\tTrain)",),
    ),
    _example("word_language_model", _WORDS, _words, called="-lstm"),
    _example(
        "word_language_model", f"{_WORDS} --model GRU --tied --emsize 64", _words, called="-gru"
    ),
    _example(
        "word_language_model",
        f"{_WORDS} --model Transformer --use-optimizer --lr 0.001",
        _words,
        called="-transformer",
    ),
    _example(
        "word_language_model", f"{_WORDS} --use-optimizer --lr 0.001", _words, called="-lstm-adamw"
    ),
    _example(
        "dcgan",
        "--dataset fake --workers 0 --batchSize 8 --ngf 16 --ndf 16 --manualSeed 1",
        stop_after=28,
    ),
    _example("reinforcement_learning", script="reinforce.py", called="-reinforce", stop_after=40),
    _example(
        "reinforcement_learning", script="actor_critic.py", called="-actor-critic", stop_after=40
    ),
    _example("regression"),
    _example(
        "time_sequence_prediction",
        "--steps 12",
        lambda folder: data.sines(folder / "cwd/traindata.pt", length=30),
        script="train.py",
        # The script reads its data in the way of torch before 2.6.
        environment=(("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"),),
    ),
    _example(
        "super_resolution",
        "--upscale_factor 4 --batchSize 2 --threads 0 --nEpochs 1",
        lambda folder: data.pictures(folder / "cwd/dataset"),
    ),
    _example("imagenet", "--dummy --batch-size 4 --workers 0 --print-freq 1", stop_after=9),
    _example(
        "gat",
        "--epochs 12 --val-every 2 --num-heads 2 --hidden-dim 8",
        lambda folder: data.citations(folder / "cwd/cora"),
    ),
    _x("train_copy", "NUM_BATCHES=14", "BATCH_SIZE=16", "GENERATE_EVERY=7", enwik8=False),
    _x("train_parity", "BATCH_SIZE=32", "train_seq_len=32", enwik8=False),
    _x("train_belief_state", *_ENWIK8, "SEQ_LEN=64", "GRADIENT_ACCUMULATE_EVERY=2"),
    _x("train_gpt_vae", *_ENWIK8, "SEQ_LEN=64", "GENERATE_LENGTH=16"),
    _x("train_free", "NUM_BATCHES=12", "dim=64", "heads=4", "SEQ_LEN=64", "GENERATE_LENGTH=16"),
    _x("train_with_muon", *_ENWIK8, "SEQ_LEN=64", "GENERATE_LENGTH=16"),
    Case("vit-pytorch/loop", "own/vit_loop.py", path="lucidrains+vit-pytorch"),
    Case("vit-pytorch/cait", "own/cait_loop.py", path="lucidrains+vit-pytorch"),
    Case("transformers/trainer-eager", "own/hf_trainer.py"),
    Case("transformers/trainer-compiled", "own/hf_trainer.py", ("--compile",)),
    Case("transformers/causal-lm", "own/causal_lm.py"),
    Case("transformers/causal-lm-compiled", "own/causal_lm.py", ("--compile", "inductor")),
    Case("transformers/causal-lm-aot", "own/causal_lm.py", ("--compile", "aot_eager")),
    _run_clm("", "--gradient_accumulation_steps 2"),
    _run_clm("-checkpointing", "--gradient_checkpointing True"),
    _titan("llama3"),
    _titan("llama3-full-ac", "--ac=full"),
    _titan("llama3-selective-ac", "--ac=selective"),
    _titan("llama3-compiled-blocks", "--compile=inductor"),
    _titan("qwen3-moe", "--moe"),
    _titan("qwen3-moe-compiled-blocks", "--moe", "--compile=inductor"),
    Case("lightning/fit", "own/lightning_fit.py"),
    Case("accelerate/loop", "own/accelerate_loop.py"),
    Case("torch/compiled-mlp", "own/compiled_mlp.py"),
    Case("torch/no-training", "own/no_training.py", code=7),
    Case("torch/failing", "own/failing.py", code=1),
    Case("torch/fsdp2", "own/fsdp2.py", torchrun=2),
    Case("torch/ddp", "own/ddp.py", torchrun=2),
)

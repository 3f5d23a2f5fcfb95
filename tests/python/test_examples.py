# SPDX-License-Identifier: Apache-2.0
"""The example jobs, as plain PyTorch: they learn, and the same seed gives the same bits."""

import json
import re
import runpy
import sys

import pytest

torch = pytest.importorskip("torch")

SMALL = {
    "train_resnet.py": ["--depth", "8", "--batch", "64"],
    "train_gpt.py": ["--depth", "1", "--width", "32", "--context", "64", "--batch", "4"],
}
pytestmark = pytest.mark.parametrize("script", SMALL)


@pytest.fixture(autouse=True)
def one_thread():
    """Limits the examples to one thread: two gain nothing here, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job(root, monkeypatch, capfd):
    """Runs an example as a user would and returns what it printed."""

    def run(script, *arguments):
        path = str(root / "examples" / script)
        monkeypatch.setattr(sys, "argv", [path, *SMALL[script], *arguments])
        runpy.run_path(path, run_name="__main__")
        return capfd.readouterr().out

    return run


@pytest.fixture
def losses(job):
    def run(*arguments):
        return [json.loads(line)["loss"] for line in job(*arguments, "--json").splitlines()]

    return run


@pytest.mark.train
def test_the_loss_goes_down(losses, script):
    curve = [float.fromhex(loss) for loss in losses(script, "--steps", "30")]

    assert len(curve) == 30
    assert sum(curve[-5:]) / 5 < 0.9 * curve[0]


@pytest.mark.train
def test_the_same_seed_gives_the_same_losses_to_the_last_bit_also_with_forked_workers(
    losses, script
):
    first = losses(script, "--steps", "4")

    assert losses(script, "--steps", "4", "--workers", "4") == first
    assert losses(script, "--steps", "4", "--seed", "1") != first


def test_plain_lines_say_step_and_loss(job, script):
    assert re.fullmatch(r"step   1  loss \d\.\d{4}\n", job(script, "--steps", "1"))


def test_reprise_is_one_line_of_the_job(root, script):
    text = (root / "examples" / script).read_text()

    code = [line.strip() for line in text.splitlines() if "reprise" in line]
    assert code == [
        "import reprise",
        'model = reprise.auto(model, budget=args.budget, verify="gradients")',
    ]


def test_a_size_that_does_not_exist_is_refused_in_one_sentence(job, script, capfd):
    wrong, says = {
        "train_resnet.py": (["--depth", "30"], "depth 30: must be 6n+2 (as 38) or 9n+2 (as 47)"),
        "train_gpt.py": (["--width", "30"], "--width 30: must be a multiple of --heads 4"),
    }[script]

    with pytest.raises(SystemExit, match="2"):
        job(script, *wrong)

    assert says in capfd.readouterr().err

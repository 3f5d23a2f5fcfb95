# SPDX-License-Identifier: Apache-2.0
"""The example jobs, as plain PyTorch: they learn, and the same seed gives the same bits."""

import json

import pytest

pytest.importorskip("torch")

SMALL = {
    "train_resnet.py": ["--depth", "8", "--batch", "32"],
    "train_gpt.py": ["--depth", "2", "--width", "32", "--context", "64", "--batch", "4"],
}


@pytest.fixture
def losses(python, root):
    def run(script, *arguments):
        path = str(root / "examples" / script)
        done = python(path, "--json", *SMALL[script], *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["loss"] for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("script", SMALL)
def test_the_loss_goes_down(losses, script):
    curve = [float.fromhex(loss) for loss in losses(script, "--steps", "40")]

    assert len(curve) == 40
    assert sum(curve[-5:]) / 5 < 0.9 * curve[0]


@pytest.mark.parametrize("script", SMALL)
def test_the_same_seed_gives_the_same_losses_to_the_last_bit(losses, script):
    first, again = losses(script, "--steps", "4"), losses(script, "--steps", "4")
    other = losses(script, "--steps", "4", "--seed", "1")

    assert first == again
    assert first != other


@pytest.mark.parametrize("script", SMALL)
def test_forked_workers_feed_the_same_batches(losses, script):
    alone = losses(script, "--steps", "3")

    assert losses(script, "--steps", "3", "--workers", "4") == alone


@pytest.mark.parametrize("script", SMALL)
def test_plain_lines_say_step_and_loss(python, root, script):
    done = python(str(root / "examples" / script), "--steps", "1", *SMALL[script])

    assert done.stdout.startswith("step   1  loss ")


@pytest.mark.parametrize("script", SMALL)
def test_reprise_is_one_line_of_the_job(root, script):
    text = (root / "examples" / script).read_text()

    code = [line.strip() for line in text.splitlines() if "reprise" in line]
    assert code == ["import reprise", "model = reprise.auto(model, budget=args.budget)"]


def test_a_depth_that_does_not_exist_is_one_sentence(python, root):
    done = python(str(root / "examples" / "train_resnet.py"), "--depth", "30")

    assert done.returncode == 2
    assert "depth 30: must be 6n+2 (as 38) or 9n+2 (as 47)" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""Ways to train, each on one small network: what people do around forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .cases import Job, adamw, batch, case, classes, sgd, supervised, tokens

__all__: list[str] = []

WIDTH, DEPTH, COUNT = 128, 8, 256


class Block(nn.Module):
    """A residual block of two linear layers with layer norm and GELU."""

    def __init__(self, width: int = WIDTH, drop: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """x + dropout(down(gelu(up(norm(x)))))."""
        hidden: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + self.drop(hidden)


class Net(nn.Module):
    """`depth` blocks and a head of ten classes."""

    def __init__(self, depth: int = DEPTH, drop: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(drop=drop) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, 10) for x of shape (batch, WIDTH)."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _loss(model: nn.Module, number: int) -> Tensor:
    return F.cross_entropy(model(batch(number, COUNT, WIDTH)), classes(number, 10, COUNT))


@case("style/plain")
def plain() -> Job:
    return supervised(Net(), _loss)


@case("style/dropout")
def dropout() -> Job:
    return supervised(Net(drop=0.1), _loss)


@case("style/adamw-fused")
def fused() -> Job:
    return supervised(Net(), _loss, lambda m: torch.optim.AdamW(m.parameters(), fused=True))


@case("style/adamw-foreach")
def foreach() -> Job:
    return supervised(Net(), _loss, lambda m: torch.optim.AdamW(m.parameters(), foreach=True))


@case("style/adafactor")
def adafactor() -> Job:
    return supervised(Net(), _loss, lambda m: torch.optim.Adafactor(m.parameters()))


def _custom(model: nn.Module, run: Callable[[torch.optim.Optimizer, int], Tensor]) -> Job:
    """A loop of the case's own with one AdamW."""
    model.train()
    optimizer = adamw(model)
    return Job(lambda number: run(optimizer, number).detach(), [model], [optimizer])


@case("style/accumulation")
def accumulation() -> Job:
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for micro in range(4):
            loss = _loss(model, 4 * number + micro) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return _custom(model, run)


@case("style/accumulation-that-varies")
def varying_accumulation() -> Job:
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for micro in range(1 + number % 3):
            loss = _loss(model, 3 * number + micro)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return _custom(model, run)


def _clipped(clip: Callable[[nn.Module], object]) -> Job:
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, number)
        loss.backward()
        clip(model)
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/clip-norm")
def clip_norm() -> Job:
    return _clipped(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


@case("style/clip-value")
def clip_value() -> Job:
    return _clipped(lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.001))


@case("style/autocast")
def autocast() -> Job:
    def loss_of(model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return _loss(model, number)

    return supervised(Net(), loss_of)


@case("style/grad-scaler")
def grad_scaler() -> Job:
    model = Net()
    scaler = torch.amp.GradScaler("cpu")

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = _loss(model, number)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return _custom(model, run)


@case("style/sam")
def sam() -> Job:
    """Sharpness-aware minimisation: up the gradient, a second forward and backward, and back."""
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, number)
        loss.backward()
        moved = []
        with torch.no_grad():
            for parameter in model.parameters():
                step = 0.01 * parameter.grad
                parameter.add_(step)
                moved.append(step)
        optimizer.zero_grad()
        _loss(model, number).backward()
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), moved, strict=True):
                parameter.sub_(step)
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/lbfgs")
def lbfgs() -> Job:
    model = Net(depth=4)
    model.train()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=3)

    def step(number: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model, number)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Job(step, [model], [optimizer])


@case("style/closure")
def closure_step() -> Job:
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model, number)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return _custom(model, run)


@case("style/optimizer-in-backward")
def optimizer_in_backward() -> Job:
    """Each parameter is updated, and its gradient freed, as soon as it is there."""
    model = Net()
    model.train()
    own = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(update)

    def step(number: int) -> Tensor:
        loss = _loss(model, number)
        loss.backward()
        return loss.detach()

    return Job(step, [model], list(own.values()))


@case("style/two-backwards")
def two_backwards() -> Job:
    """Two losses of one forward, one backward each."""
    model = Net()

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        out = model(batch(number, COUNT, WIDTH))
        first = F.cross_entropy(out, classes(number, 10, COUNT))
        second = out.square().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first + second

    return _custom(model, run)


@case("style/gradient-penalty")
def gradient_penalty() -> Job:
    """A backward through a backward."""
    model = Net(depth=4)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        x = batch(number, COUNT, WIDTH).requires_grad_()
        loss = F.cross_entropy(model(x), classes(number, 10, COUNT))
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + grad.square().sum()
        total.backward()
        optimizer.step()
        return total

    return _custom(model, run)


@case("style/gan")
def gan() -> Job:
    """Two models and two optimizers; the larger one is armed."""
    generator = nn.Sequential(*(Block() for _ in range(4)))
    judge = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(WIDTH, 1))
    generator.train(), judge.train()
    own = [adamw(generator), adamw(judge)]

    def step(number: int) -> Tensor:
        real, noise = batch(number, COUNT, WIDTH), batch(10_000 + number, COUNT, WIDTH)
        ones, zeros = torch.ones(COUNT, 1), torch.zeros(COUNT, 1)
        fake = generator(noise)
        own[1].zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        loss.backward()
        own[1].step()
        own[0].zero_grad()
        fooled = F.binary_cross_entropy_with_logits(judge(fake), ones)
        fooled.backward()
        own[0].step()
        return (loss + fooled).detach()

    return Job(step, [judge, generator], own)


@case("style/maml")
def maml() -> Job:
    """One step on a task inside the step, through torch.func."""
    model = Net(depth=3)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        weights = dict(model.named_parameters())

        def task(values: dict[str, Tensor], which: int) -> Tensor:
            out = torch.func.functional_call(model, values, (batch(which, COUNT, WIDTH),))
            return F.cross_entropy(out, classes(which, 10, COUNT))

        grads = torch.func.grad(task)(weights, 2 * number)
        moved = {name: weights[name] - 0.01 * grads[name] for name in weights}
        loss = task(moved, 2 * number + 1)
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/average")
def average() -> Job:
    """An exponential moving average of the weights beside the model."""
    model = Net()
    mean = torch.optim.swa_utils.AveragedModel(model)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, number)
        loss.backward()
        optimizer.step()
        mean.update_parameters(model)
        return loss

    job = _custom(model, run)
    return Job(job.step, [model, mean], job.optimizers)


@case("style/distillation")
def distillation() -> Job:
    model, teacher = Net(), Net(depth=4).eval().requires_grad_(False)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        x = batch(number, COUNT, WIDTH)
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        loss = F.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/teacher-copied-on-the-way")
def teacher() -> Job:
    """The teacher is a copy of the student, taken anew every few steps."""
    model = Net()
    copies: list[nn.Module] = []

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        if number % 5 == 0:
            copies[:] = [copy.deepcopy(model).eval().requires_grad_(False)]
        optimizer.zero_grad()
        x = batch(number, COUNT, WIDTH)
        with torch.no_grad():
            wanted = copies[0](x)
        out = model(x)
        loss = F.cross_entropy(out, classes(number, 10, COUNT)) + F.mse_loss(out, wanted)
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/contrastive")
def contrastive() -> Job:
    """Two forwards of one model in a step, one loss."""
    model = Net(drop=0.1)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        optimizer.zero_grad()
        x = batch(number, COUNT, WIDTH)
        one, two = F.normalize(model(x), dim=-1), F.normalize(model(x + 0.1), dim=-1)
        loss = F.cross_entropy(one @ two.T / 0.1, torch.arange(COUNT))
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/batch-norm-called-twice")
def batch_norm_twice() -> Job:
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()),) * 1
    model = nn.Sequential(*(copy.deepcopy(layers[0]) for _ in range(6)), nn.Linear(WIDTH, 10))

    def loss_of(model: nn.Module, number: int) -> Tensor:
        x = batch(number, COUNT, WIDTH)
        return F.mse_loss(model(x), model(x.flip(0)))

    return supervised(model, loss_of, sgd)


@case("style/unfreezing")
def unfreezing() -> Job:
    """Only the head trains at first; from step 8 on everything does."""
    model = Net()
    model.blocks.requires_grad_(False)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        if number == 8:
            model.blocks.requires_grad_(True)
        optimizer.zero_grad()
        loss = _loss(model, number)
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


def _checkpointed(reentrant: bool) -> Job:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(x)

    def loss_of(model: nn.Module, number: int) -> Tensor:
        x = batch(number, COUNT, WIDTH).requires_grad_()
        return F.cross_entropy(model(x), classes(number, 10, COUNT))

    return supervised(Checkpointed(), loss_of)


@case("style/checkpointed")
def checkpointed() -> Job:
    return _checkpointed(False)


@case("style/checkpointed-reentrant")
def checkpointed_reentrant() -> Job:
    return _checkpointed(True)


@case("style/save-on-cpu")
def save_on_cpu() -> Job:
    def loss_of(model: nn.Module, number: int) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return _loss(model, number)

    return supervised(Net(), loss_of)


@case("style/sizes-that-vary")
def varying_sizes() -> Job:
    def loss_of(model: nn.Module, number: int) -> Tensor:
        count = (256, 192, 320)[number % 3]
        return F.cross_entropy(model(batch(number, count, WIDTH)), classes(number, 10, count))

    return supervised(Net(), loss_of)


@case("style/layers-that-drop-out")
def stochastic_depth() -> Job:
    class Dropping(Net):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                if torch.rand(()) < 0.8:
                    x = block(x)
            return self.head(x)

    return supervised(Dropping(), _loss)


@case("style/tied-weights")
def tied() -> Job:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(512, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return x @ self.embed.weight.T

    def loss_of(model: nn.Module, number: int) -> Tensor:
        ids = tokens(number, 512, 4, 65)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return supervised(Tied(), loss_of)


@case("style/lstm")
def lstm() -> Job:
    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn = nn.Embedding(256, 64), nn.LSTM(64, 64, 2, batch_first=True)
            self.head = nn.Linear(64, 256)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.rnn(self.embed(ids))[0])

    def loss_of(model: nn.Module, number: int) -> Tensor:
        ids = tokens(number, 256, 8, 49)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return supervised(Lstm(), loss_of)


@case("style/sparse-embedding")
def sparse() -> Job:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.EmbeddingBag(2000, WIDTH, sparse=True)
            self.net = Net(depth=4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.net(self.embed(ids))

    model = Sparse()
    model.train()
    own = [
        torch.optim.SparseAdam(model.embed.parameters()),
        torch.optim.AdamW(model.net.parameters()),
    ]

    def step(number: int) -> Tensor:
        for optimizer in own:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens(number, 2000, COUNT, 8)), classes(number, 10, COUNT))
        loss.backward()
        for optimizer in own:
            optimizer.step()
        return loss.detach()

    return Job(step, [model], own)


@case("style/spectral-norm")
def spectral_norm() -> Job:
    layers = (nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)) for _ in range(6))
    model = nn.Sequential(*(nn.Sequential(layer, nn.GELU()) for layer in layers))
    model.append(nn.Linear(WIDTH, 10))
    return supervised(model, _loss)


@case("style/policy-gradient")
def policy_gradient() -> Job:
    """Many small forwards without gradients, then one with them."""
    model = Net(depth=4)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        states = []
        state = batch(number, 16, WIDTH)
        for turn in range(8):
            with torch.no_grad():
                action = model(state).argmax(-1)
            states.append(state)
            state = state.roll(1, 0) + 0.1 * action[:, None] + batch(number + turn, 16, WIDTH)
        optimizer.zero_grad()
        logits = model(torch.cat(states))
        loss = (logits.log_softmax(-1)[:, 0] * logits.detach()[:, 1]).mean()
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/hooks")
def hooks() -> Job:
    """Forward and gradient hooks of the program's own."""
    model = Net()
    seen: list[float] = []
    for block in model.blocks:
        block.register_forward_hook(lambda m, i, out: seen.append(out.detach().mean().item()))
        block.up.weight.register_hook(lambda grad: grad * 0.5)
    return supervised(model, _loss)


@case("style/evaluation-between")
def evaluation() -> Job:
    model = Net(drop=0.1)

    def run(optimizer: torch.optim.Optimizer, number: int) -> Tensor:
        if number % 3 == 2:
            model.eval()
            with torch.no_grad():
                _loss(model, 777)
            model.train()
        optimizer.zero_grad()
        loss = _loss(model, number)
        loss.backward()
        optimizer.step()
        return loss

    return _custom(model, run)


@case("style/update-by-hand")
def by_hand() -> Job:
    """No optimizer of torch.optim."""
    model = Net()
    model.train()

    def step(number: int) -> Tensor:
        loss = _loss(model, number)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        return loss.detach()

    return Job(step, [model], [])


@case("style/compiled-with-loss-output")
def compiled_outputs() -> Job:
    """torch.compile of a model that returns (logits, loss); the logits get no gradient."""

    class WithLoss(Net):
        def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            out = super().forward(x)
            return out, F.cross_entropy(out, labels)

    model = WithLoss(depth=4)
    compiled = torch.compile(model, backend="aot_eager")

    def loss_of(_: nn.Module, number: int) -> Tensor:
        loss: Tensor = compiled(batch(number, COUNT, WIDTH), classes(number, 10, COUNT))[1]
        return loss

    job = supervised(model, loss_of)
    job.arm = compiled
    return job


@case("style/compiled-blocks")
def compiled_blocks() -> Job:
    """Every block compiled by itself, without graph breaks."""
    model = Net(depth=4)
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return supervised(model, _loss)


@case("style/compiled-after-arming")
def compiled_after() -> Job:
    """The armed module is compiled, not the other way round."""
    model = Net(depth=4)
    lazily: list[Callable[..., Tensor]] = []

    def loss_of(model: nn.Module, number: int) -> Tensor:
        if not lazily:
            lazily.append(torch.compile(model, backend="aot_eager"))
        return F.cross_entropy(lazily[0](batch(number, COUNT, WIDTH)), classes(number, 10, COUNT))

    return supervised(model, loss_of)

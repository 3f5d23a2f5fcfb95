# SPDX-License-Identifier: Apache-2.0
"""What programs do in the loop around a model: several models, several passes, other optimizers."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from typing import Any

import torch
from habits import STEPS, Arm, Shown, W, deep, habit, sgd, some, train
from torch import Tensor, nn
from torch.nn import functional as F


@habit
def gan(arm: Arm) -> Iterator[Shown]:
    """Two armed models, two optimizers, the critic stepped more often."""
    generator, critic = arm(deep()), arm(nn.Sequential(deep(), nn.Linear(W, 1)))
    of_generator = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.99))
    of_critic = torch.optim.RMSprop(critic.parameters())
    for step in range(STEPS):
        for _ in range(1 + step % 2):
            of_critic.zero_grad()
            fake = generator(some(16, W)).detach()
            lost = F.softplus(critic(fake)).mean() + F.softplus(-critic(some(16, W))).mean()
            lost.backward()
            of_critic.step()
        of_generator.zero_grad()
        fooled = F.softplus(-critic(generator(some(16, W)))).mean()
        fooled.backward()
        of_generator.step()
        yield [lost.detach(), fooled.detach()], [generator, critic]


@habit
def gradient_penalty(arm: Arm) -> Iterator[Shown]:
    """Gradients of gradients, through an armed model."""
    critic = arm(nn.Sequential(deep(dropout=0.0), nn.Linear(W, 1)))

    def loss(_: int) -> Tensor:
        x = some(16, W).requires_grad_()
        out = critic(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    return train(critic, loss, lr=0.01)


@habit
def moving_average(arm: Arm) -> Iterator[Shown]:
    """A copy that follows the armed model and is evaluated in every step, and torch's own averaged
    model."""
    model = arm(nn.Sequential(deep(), nn.BatchNorm1d(W)))
    follower = copy.deepcopy(model).eval().requires_grad_(False)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for said, modules in train(model, lambda _: model(some(16, W)).square().mean()):
        with torch.no_grad():
            for mine, its in zip(follower.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
        averaged.update_parameters(model)
        x = some(4, W)
        yield [*said, follower(x), averaged(x)], [*modules, follower]


@habit
def clipping(arm: Arm) -> Iterator[Shown]:
    model = arm(deep())
    optimizer = torch.optim.NAdam(model.parameters(), foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss = model(some(16, W)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        schedule.step()
        yield [loss.detach(), norm], [model]


@habit
def functional_gradients(arm: Arm) -> Iterator[Shown]:
    """torch.func.grad and functional_call of the armed model, and a manual update."""
    model = arm(deep(dropout=0.0))
    for _ in range(STEPS):
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        x = some(16, W)

        def loss(values: dict[str, Tensor], x: Tensor = x) -> Tensor:
            return torch.func.functional_call(model, values, (x,)).square().mean()

        grads, value = torch.func.grad_and_value(loss)(parameters)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.05 * grads[name]
        yield [value], [model]


@habit
def inner_loop(arm: Arm) -> Iterator[Shown]:
    """MAML: a step inside the step, with gradients through it."""
    model = arm(deep(depth=2, dropout=0.0))

    def loss(_: int) -> Tensor:
        fast = dict(model.named_parameters())
        for _ in range(2):
            lost = torch.func.functional_call(model, fast, (some(8, W),)).square().mean()
            grads = torch.autograd.grad(lost, list(fast.values()), create_graph=True)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), grads, strict=True)}
        return torch.func.functional_call(model, fast, (some(8, W),)).square().mean()

    return train(model, loss)


@habit
def teacher(arm: Arm) -> Iterator[Shown]:
    """Distillation: a teacher without gradients, a projector, the student under no_grad too."""
    old, model = deep().eval(), arm(nn.Sequential(deep(), deep()))

    def loss(step: int) -> Tensor:
        x = some(16, W)
        with torch.no_grad():
            wanted = old(x)
            before = model(x)
        with torch.inference_mode():
            old(x)
        out = model(x)
        return F.kl_div(out.log_softmax(1), wanted.softmax(1)) + (out - before).abs().mean()

    return train(model, loss)


@habit
def sharpness_aware(arm: Arm) -> Iterator[Shown]:
    """SAM: two forwards, two backwards, weights moved in between; one optimizer step."""
    model = arm(deep(dropout=0.1))
    optimizer = sgd(model)
    for _ in range(STEPS):
        x = some(16, W)
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            moves = [p.grad * 0.05 / (1e-12 + p.grad.norm()) for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        again = model(x).square().mean()
        again.backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        yield [loss.detach(), again.detach()], [model]


@habit
def closures(arm: Arm) -> Iterator[Shown]:
    """L-BFGS runs the model inside optimizer.step()."""
    model = arm(deep(depth=2, dropout=0.0))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3)
    for _ in range(STEPS):
        x = some(16, W)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        yield [optimizer.step(closure).detach()], [model]


@habit
def half_precision_scaler(arm: Arm) -> Iterator[Shown]:
    """Autocast to half, a scaler whose steps are skipped when something overflows."""
    model = arm(deep())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16 if step % 2 else torch.float16):
            loss = model(some(16, W)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield [loss.detach(), scaler.get_scale()], [model]


@habit
def monte_carlo_dropout(arm: Arm) -> Iterator[Shown]:
    """Trains in eval mode with dropout on; several forwards are one loss; predictions too."""
    model = arm(deep())
    model.eval()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    for said, modules in train(
        model,
        lambda _: torch.stack([model(some(8, W)) for _ in range(3)]).var(0).mean(),
    ):
        with torch.no_grad():
            drawn = torch.stack([model(some(4, W)) for _ in range(3)]).var(0)
        yield [*said, drawn], modules


@habit
def mixed_train_and_eval(arm: Arm) -> Iterator[Shown]:
    """Parts switch between training and evaluation inside a step, and the whole in between."""
    model = arm(nn.Sequential(deep(), nn.BatchNorm1d(W), deep(), nn.BatchNorm1d(W)))

    def loss(step: int) -> Tensor:
        model.train()
        model[1].eval()
        first = model(some(16, W)).square().mean()
        model[1].train()
        return first + model(some(16, W)).sin().mean()

    for said, modules in train(model, loss):
        model.eval()
        value = model(some(4, W))
        yield [*said, value.detach().sum()], modules


@habit
def accumulation(arm: Arm) -> Iterator[Shown]:
    """Two to four batches per step, one of them dropped after its forward, shapes that vary."""
    model = arm(deep())
    optimizer = sgd(model)
    for step in range(STEPS):
        total = 0.0
        for micro in range(2 + step % 3):
            loss = model(some(8 + 4 * (micro % 2), W)).square().mean()
            if micro == 1 and step % 4 == 3:
                continue
            (loss / 3).backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield [total], [model]


@habit
def skipped_steps(arm: Arm) -> Iterator[Shown]:
    """Losses that are not finite are not stepped on; gradients stay from one to the next."""
    model = arm(deep())
    optimizer = sgd(model)
    for step in range(STEPS):
        loss = model(some(16, W)).square().mean()
        if step % 5 == 2:
            loss = loss * float("nan")
        if not torch.isfinite(loss):
            yield [step], [model]
            continue
        loss.backward()
        if step % 5 != 3:
            optimizer.step()
            optimizer.zero_grad()
        yield [loss.detach()], [model]


@habit
def several_losses(arm: Arm) -> Iterator[Shown]:
    """Gradients of two tasks by hand, projected, put into .grad (PCGrad)."""
    model = nn.ModuleDict({"body": deep(), "a": nn.Linear(W, 2), "b": nn.Linear(W, 2)})
    body = arm(model["body"])
    optimizer = sgd(model)
    for _ in range(STEPS):
        h = body(some(16, W))
        parameters = list(body.parameters())
        one = torch.autograd.grad(model["a"](h).square().mean(), parameters, retain_graph=True)
        two = torch.autograd.grad(model["b"](h).sin().mean(), parameters, retain_graph=True)
        (model["a"](h).mean() + model["b"](h).mean()).backward()
        for p, g, k in zip(parameters, one, two, strict=True):
            p.grad += g - (g * k).sum() / (k * k).sum().clamp(min=1e-9) * k
        optimizer.step()
        optimizer.zero_grad()
        yield [one[0].sum(), two[0].sum()], [model]


@habit
def contrastive(arm: Arm) -> Iterator[Shown]:
    """MoCo: a momentum encoder, a queue written in place, two views through one model."""
    model = arm(nn.Sequential(deep(), nn.BatchNorm1d(W)))
    keys = copy.deepcopy(model).requires_grad_(False)
    queue, at = F.normalize(some(32, W)), [0]

    def loss(_: int) -> Tensor:
        x = some(8, W)
        with torch.no_grad():
            for k, q in zip(keys.parameters(), model.parameters(), strict=True):
                k.mul_(0.99).add_(q, alpha=0.01)
            k = F.normalize(keys(x[torch.randperm(8)]))
        q = F.normalize(torch.cat([model(x), model(x + 0.1 * some(8, W))]).chunk(2)[0])
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone().t()], 1) / 0.2
        queue[at[0] : at[0] + 8] = k
        at[0] = (at[0] + 8) % 32
        return F.cross_entropy(logits, torch.zeros(8, dtype=torch.long))

    return train(model, loss)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.pi, self.value = (
            deep(dropout=0.0),
            nn.Linear(W, 3),
            nn.Linear(W, 1),
        )

    def forward(self, x: Tensor) -> tuple[Any, Tensor]:
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.pi(h)), self.value(h).squeeze(-1)


@habit
def policy_gradient(arm: Arm) -> Iterator[Shown]:
    """PPO: rollouts of any length without gradients, then epochs over them."""
    model = arm(Policy())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS // 2):
        states, actions, old = [], [], []
        with torch.no_grad():
            for _ in range(6 + step % 4):
                s = some(W)
                pi, _ = model(s)
                a = pi.sample()
                states.append(s), actions.append(a), old.append(pi.log_prob(a))
        s, a, before = torch.stack(states), torch.stack(actions), torch.stack(old)
        reward = s.sum(1)
        for _ in range(2):
            pi, value = model(s)
            gain = (reward - value).detach()
            ratio = (pi.log_prob(a) - before).exp()
            lost = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = lost + F.mse_loss(value, reward) - 0.01 * pi.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield [loss.detach()], [model]


@habit
def updates_by_hand(arm: Arm) -> Iterator[Shown]:
    """Updates parameters without an optimizer of torch."""
    model = arm(deep())
    for _ in range(STEPS):
        loss = model(some(16, W)).square().mean()
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.05 * p.grad.data
        yield [loss.detach()], [model]


@habit
def optimizer_in_the_backward(arm: Arm) -> Iterator[Shown]:
    """One optimizer per parameter, stepped by a hook as soon as its gradient is there."""
    model = arm(deep())
    each = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}

    def step(p: Tensor) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        loss = model(some(16, W)).square().mean()
        loss.backward()
        yield [loss.detach()], [model]


@habit
def another_thread(arm: Arm) -> Iterator[Shown]:
    """The forward and the backward run in a thread of their own every other step."""
    model = arm(deep())
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        found: list[Tensor] = []

        def work(found: list[Tensor] = found) -> None:
            loss = model(some(16, W)).square().mean()
            loss.backward()
            found.append(loss.detach())

        if step % 2:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            work()
        optimizer.step()
        yield [found[0]], [model]


@habit
def anomaly_mode_and_profiler(arm: Arm) -> Iterator[Shown]:
    """Anomaly mode and profiler in the middle of a run, as when somebody looks for a bug."""
    model = arm(deep())
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        if 8 <= step < 10:
            with torch.autograd.set_detect_anomaly(True):
                loss = model(some(16, W)).square().mean()
                loss.backward()
        elif 12 <= step < 14:
            with torch.profiler.profile(profile_memory=True):
                loss = model(some(16, W)).square().mean()
                loss.backward()
        else:
            loss = model(some(16, W)).square().mean()
            loss.backward()
        optimizer.step()
        yield [loss.detach()], [model]


@habit
def batches_changed_in_place(arm: Arm) -> Iterator[Shown]:
    """One buffer for every batch, refilled while the graph of the last one is still there."""
    model = arm(deep())
    batch = torch.empty(16, W)
    x = torch.empty(16, W)
    losses: list[Tensor] = []
    optimizer = sgd(model)
    for _ in range(STEPS):
        batch.normal_()
        x.data.copy_(batch)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        batch.zero_()
        losses = [*losses[-2:], loss]  # graphs kept alive by a log
        yield [sum(v.item() for v in losses)], [model]


@habit
def workers_that_load(arm: Arm) -> Iterator[Shown]:
    """A DataLoader that forks."""
    random.seed(0)
    model = arm(deep())
    data = torch.utils.data.TensorDataset(some(16 * 5, W))
    optimizer = sgd(model)
    for _ in range(STEPS // 5):
        for (x,) in torch.utils.data.DataLoader(data, 16, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            yield [loss.detach()], [model]

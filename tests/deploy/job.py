"""Trains a few steps under a budget and prints what came of it."""

import torch

import reprise

torch.manual_seed(0)
layers = [part for _ in range(8) for part in (torch.nn.Linear(64, 64), torch.nn.GELU())]
model = reprise.auto(torch.nn.Sequential(*layers), budget="0.6x")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(512, 64)).square().mean().backward()
    optimizer.step()
report = reprise.report(model)
print(report.stage, report.validated)

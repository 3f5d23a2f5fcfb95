# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the state of the random generator that an op draws from."""

from __future__ import annotations

from typing import Any

import torch

from reprise.torch.internals.ops import tensors_in

__all__ = ["GeneratorState", "device_of"]


def device_of(*values: Any) -> torch.device:
    """Returns the device on which an op with these arguments runs."""
    for tensor in tensors_in(*values):
        return tensor.device
    for value in values:
        if isinstance(value, dict) and value.get("device") is not None:
            return torch.device(value["device"])
    return torch.device("cpu")


class GeneratorState:
    """The state of a device's default generator at the time of construction."""

    __slots__ = ("_state", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda = device.type == "cuda"
        self._state = torch.cuda.get_rng_state(device) if cuda else torch.get_rng_state()

    def restore(self) -> None:
        """Sets the generator to the saved state."""
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self._state, self.device)
        else:
            torch.set_rng_state(self._state)

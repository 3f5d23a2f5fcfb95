# SPDX-License-Identifier: Apache-2.0
"""Puts the kernels of the fake (named by FAKEGPU_KERNELS) under torch right after its import.

A .pth file in the virtual environment imports this in every process of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            import ctypes

            library = ctypes.CDLL(os.environ["FAKEGPU_KERNELS"])
            module._fakegpu_ops = library.fakegpu_install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("FAKEGPU_KERNELS"):
    sys.meta_path.insert(0, _Finder())

# SPDX-License-Identifier: Apache-2.0
"""Loaded by Python at its start under `reprise run`: attaches Reprise once torch is imported."""

import importlib.abc
import importlib.machinery
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _say(error):
    line = f"reprise: not attached, the program runs without it: {error}\n"
    try:
        # Past Python's buffer, whose rest would be an exit code of its own (reprise/saying.py).
        os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
    except Exception:
        return


def _chain():
    """The sitecustomize that would have been found without this folder."""
    rest = [p for p in sys.path if not _is_here(p)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_here(path):
    try:
        return os.path.abspath(path or ".") == _HERE
    except OSError:
        return False  # the current folder is gone


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as everybody else would, and attaches when its import is over."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _attach()
        except Exception as error:
            _say(error)


def _attach():
    source = os.path.dirname(os.path.dirname(_HERE))
    if importlib.util.find_spec("reprise") is None:
        sys.path.append(source)  # not installed where the program runs: the one beside this file
    from reprise.torch.session.attach import attach

    attach()


import importlib.util  # noqa: E402

try:
    _chain()
finally:
    if os.environ.get("REPRISE_DISABLE") != "1" and "torch" not in sys.modules:
        sys.meta_path.insert(0, _AfterTorch())

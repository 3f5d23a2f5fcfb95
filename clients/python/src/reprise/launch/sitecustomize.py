# SPDX-License-Identifier: Apache-2.0
"""Attaches Reprise once torch or Keras is imported. Python loads this file at startup under
`reprise run`."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _say(error):
    """Prints why Reprise is not attached. Never raises."""
    line = f"reprise: not attached, the program runs without it: {error}\n"
    try:
        # Not through Python's buffer: unwritten data would change the exit code (saying.py).
        os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
    except Exception:
        return


def _chain():
    """Runs the sitecustomize that Python would have found without this folder."""
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


class _After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as Python would without us, and attaches Reprise when its import is
    over."""

    def __init__(self, name, attaching):
        """Takes the module, and the one of ours whose `attach` is called then."""
        self._name, self._attaching = name, attaching

    def find_spec(self, name, path=None, target=None):
        """Returns the module's own spec, with this object as its loader; None for any other."""
        if name != self._name:
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
        """Runs the module's own loader, then attaches Reprise. An error of ours is printed."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _attach(self._attaching)
        except Exception as error:
            _say(error)


def _attach(attaching):
    if importlib.util.find_spec("reprise") is None:  # not installed: use the one of this file
        sys.path.append(os.path.dirname(os.path.dirname(_HERE)))
    importlib.import_module(attaching).attach()


try:
    _chain()
finally:
    if os.environ.get("REPRISE_DISABLE") != "1":
        for _name, _attaching in (
            ("torch", "reprise.torch.session.attach"),
            ("keras", "reprise.keras.attach"),
        ):
            if _name not in sys.modules:
                sys.meta_path.insert(0, _After(_name, _attaching))

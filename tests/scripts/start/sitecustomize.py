# SPDX-License-Identifier: Apache-2.0
"""Lets a script and the processes it starts import torchvision beside a CPU build of PyTorch.

The registry's torchvision is built for CUDA: its operators do not load there, and its import fails
on two of them that it describes to the tracer. They are declared here, just before that import. No
script calls them.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None:
            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for op in ("nms", "qnms"):
                self.library.define(
                    f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )
            sys.modules[__name__].library = self.library  # it would undo them when it goes


sys.meta_path.insert(0, _BeforeTorchvision())

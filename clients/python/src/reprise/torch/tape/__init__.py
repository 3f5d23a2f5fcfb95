# SPDX-License-Identifier: Apache-2.0
"""The executor for eager PyTorch: compiles a plan into a program, and runs steps under it."""

# SPDX-License-Identifier: Apache-2.0
"""Gradients compared bit for bit with those of the same step without a plan."""

# SPDX-License-Identifier: Apache-2.0
"""Executes any schedule exactly, to check whether predictions are right."""

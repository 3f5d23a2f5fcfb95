# SPDX-License-Identifier: Apache-2.0
"""Estimates and questions about a model that need no training."""

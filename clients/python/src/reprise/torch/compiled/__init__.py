# SPDX-License-Identifier: Apache-2.0
"""The half of the tape in C++, its kernels, and how Python calls it."""

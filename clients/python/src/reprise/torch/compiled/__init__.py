# SPDX-License-Identifier: Apache-2.0
"""The native engine of the tape, its kernels, and the Python modules that load them."""

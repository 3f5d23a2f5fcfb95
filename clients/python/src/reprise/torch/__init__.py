# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side: capture, the tape executor, verification and the meters."""

# SPDX-License-Identifier: Apache-2.0
"""What the training loops of eager and of compiled models share."""

# SPDX-License-Identifier: Apache-2.0
"""Plans inside torch.compile."""

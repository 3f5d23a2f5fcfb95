# SPDX-License-Identifier: Apache-2.0
"""What runs the steps of a model under plans, as a training loop sees it."""

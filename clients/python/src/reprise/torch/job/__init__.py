# SPDX-License-Identifier: Apache-2.0
"""What the parts of one eager model under Reprise share: data, and nothing that acts on it."""

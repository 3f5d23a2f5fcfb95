# SPDX-License-Identifier: Apache-2.0
"""Host memory as a second place for storages: room in it, and copies out and in."""

# SPDX-License-Identifier: Apache-2.0
"""What everything here stands on: operators, hooks and modes of torch, copies it does not count."""

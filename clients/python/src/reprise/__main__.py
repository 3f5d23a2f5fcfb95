# SPDX-License-Identifier: Apache-2.0
"""`python -m reprise` is the command `reprise`, also where that is not on the path."""

from reprise.agent.bundled import command

if __name__ == "__main__":
    command()

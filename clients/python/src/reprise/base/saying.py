# SPDX-License-Identifier: Apache-2.0
"""Writes one line to the user on standard error, without ever disturbing the training.

say("training without a plan: ...")      # never raises
"""

from __future__ import annotations

import os
import re
import sys

# Control characters, line separators, and what turns the direction of writing.
_COMMANDS = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"
)

# Descriptions of internal errors, and whether a line has contained them already. Beyond the limit,
# descriptions are written out every time.
_faults: dict[str, bool] = {}
_MOST_FAULTS = 64


def named(text: str) -> str:
    """Registers the description of an internal error, and returns it: the first line that contains
    it shows it, later lines say `as above`."""
    if len(_faults) < _MOST_FAULTS:
        _faults.setdefault(text, False)
    return text


def _once(line: str) -> str:
    """Returns the line with every description that was already shown replaced by `as above`."""
    for text in [text for text in tuple(_faults) if text in line]:
        if _faults[text]:
            line = line.replace(text, "as above")
        _faults[text] = True
    return line


def shown(text: str) -> str:
    """Returns text that commands no terminal and begins no line of its own, as names of modules and
    files may: such characters become escapes. The command has the same rule (base/str_cat.h)."""
    if text.isascii() and text.isprintable():
        return text
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str) -> None:
    """Writes `reprise: text`. If standard error is full, closed, missing, or not read any more, the
    line is lost and nothing else happens."""
    line = f"reprise: {shown(_once(text))}\n"
    try:
        stream, own = sys.stderr, sys.__stderr__
        if stream is None:
            return
        if own is None or stream is not own:
            stream.write(line)  # a stream of the program's, or of a notebook
            stream.flush()
            return
        # Not through Python's buffer: data that cannot be written would stay there, and the
        # interpreter would end with exit code 120.
        own.flush()
        data = line.encode(errors="backslashreplace")
        while data:
            data = data[os.write(own.fileno(), data) :]
    except Exception:
        return


def because(text: str) -> str:
    """Returns only the reason from a line that also says that the job trains without a plan, or
    under an earlier one. For places that say so themselves: a report, a verdict."""
    return text.removeprefix("training without a plan: ").partition("; training continues ")[0]

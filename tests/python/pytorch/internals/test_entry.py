# SPDX-License-Identifier: Apache-2.0
"""A call with an argument that a function does not have is the program's error, not ours."""

from __future__ import annotations

from typing import Any

import pytest

from reprise import auto
from reprise.torch.internals.entry import otherwise


def test_an_unknown_argument_is_named_in_the_error() -> None:
    unknown: dict[str, Any] = {"balance": "pipeline"}

    with pytest.raises(TypeError, match="unexpected keyword argument 'balance'"):
        auto(object(), budget="0.5x", **unknown)  # type: ignore[type-var]


def test_a_type_error_within_the_function_is_ours_and_ends_in_what_is_returned_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @otherwise(lambda x: x)
    def fails(x: int) -> Any:
        return x + "1"  # type: ignore[operator]

    assert fails(3) == 3
    assert "Reprise failed (TypeError" in capsys.readouterr().err

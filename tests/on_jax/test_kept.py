# SPDX-License-Identifier: Apache-2.0
"""Plans that are kept for the next process, and files that nobody should believe."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from bench.jax import nets
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache
from tests.on_jax.test_auto import leaves

import reprise
import reprise.jax
from reprise.jax import cache, planning
from reprise.jax.ulps import difference

NET = nets.mlp(8, 32, 512)


def planned(budget: str = "0.6x", **how: Any) -> tuple[reprise.jax.PlannedFunction, Any]:
    """As a new process has it: nothing is known but what is in the folder."""
    loss, params, data = NET
    step = reprise.jax.value_and_grad(loss, budget=budget, time_limit_s=1.0, **how)
    return step, step(params, *data)


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def ask(*_: Any, **__: Any) -> Any:
        raise AssertionError("the planner was asked")

    return lambda: monkeypatch.setattr(planning, "ask", ask)


@pytest.mark.parametrize("budget", ["0.6x", "2GiB", "0.05x"], ids=["planned", "fits", "refused"])
def test_a_second_start_asks_nothing_and_compiles_one_program(
    budget: str,
    no_questions: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, made = planned(budget)
    said = capsys.readouterr().err
    no_questions()
    compiled: list[int] = []
    compile_flat = planning.compile_flat
    monkeypatch.setattr(
        planning, "compile_flat", lambda *a, **k: compiled.append(1) or compile_flat(*a, **k)
    )

    second, same = planned(budget)

    assert len(compiled) == 1
    assert first.found is not None
    assert second.found is not None
    assert second.found.plan == first.found.plan
    assert second.found.sentence == first.found.sentence
    assert second.found.compiled == first.found.compiled
    assert capsys.readouterr().err == said
    assert difference(leaves(made), leaves(same)).differing == 0


@pytest.mark.parametrize(
    "other", [{"budget": "0.7x"}, {"most_equations": 100}, {"time_limit_s": 0.9}], ids=str
)
def test_another_question_has_another_answer(other: dict[str, Any], folder_of_plans: Path) -> None:
    loss, params, data = NET
    planned()

    how = {"budget": "0.6x", "time_limit_s": 1.0, **other}
    reprise.jax.value_and_grad(loss, **how)(params, *data)

    assert len(list(folder_of_plans.glob("*.json"))) == 2


def test_a_search_that_ended_without_an_answer_is_made_again_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch, folder_of_plans: Path
) -> None:
    def ask(*_: Any, **__: Any) -> Any:
        raise reprise.InfeasibleBudget("No plan found yet.")

    with monkeypatch.context() as patched:
        patched.setattr(planning, "ask", ask)
        first, _ = planned()
    assert first.found is not None
    assert first.found.plan is None
    assert list(folder_of_plans.glob("*.json")) == []

    second, _ = planned()

    assert second.found is not None
    assert second.found.plan is not None


def test_what_is_kept_is_for_this_user_alone(folder_of_plans: Path) -> None:
    planned()

    (file,) = folder_of_plans.glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder_of_plans.stat().st_mode & 0o777 == 0o700


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        value = json.loads(file.read_text())
        value = change(value) or value
        file.write_text(json.dumps(value))

    return spoil


def linked(file: Path) -> None:
    file.rename(file.with_suffix(".other"))
    file.symlink_to(file.with_suffix(".other"))


def as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def others_may_write(file: Path) -> None:
    file.chmod(0o666)


def folder_of_others(file: Path) -> None:
    file.parent.chmod(0o777)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"\xff\xfe\x00"),
        lambda file: file.write_text("[" * 100_000),
        lambda file: file.write_text(" " * (17 << 20)),
        linked,
        as_pipe,
        others_may_write,
        folder_of_others,
        edited(lambda value: [value]),
        edited(lambda value: value.pop("plain") and None),
        edited(lambda value: value["plain"].update(temporaries=-1)),
        edited(lambda value: value["plain"].update(temporaries=1 << 80)),
        edited(lambda value: value["plan"].update(schedule=[])),
        edited(lambda value: value["plan"].update(schedule=["0"] * 3)),
        edited(lambda value: value["plan"].update(schedule=[10_000_000])),
        edited(lambda value: value["plan"]["schedule"].reverse()),
        edited(lambda value: value["plan"]["schedule"].pop()),
        edited(lambda value: value["plan"].update(feasible=False)),
        edited(lambda value: value["plan"].update(overhead=float("nan"))),
        edited(lambda value: value.update(why="\x1b[2J forged")),
        edited(lambda value: value.update(why="a" * 5000)),
        edited(lambda value: value["plain"].update(temporaries=1)),
    ],
)
def test_a_file_that_cannot_be_believed_is_not(
    spoil: Callable[[Path], None], folder_of_plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, made = planned()
    (file,) = folder_of_plans.glob("*.json")
    spoil(file)

    second, same = planned()

    assert first.found is not None
    assert second.found is not None
    assert second.found.rounds >= 1
    assert second.found.plan is not None
    assert second.found.budget_bytes == first.found.budget_bytes
    assert not capsys.readouterr().err
    assert difference(leaves(made), leaves(same)).differing == 0


def test_a_folder_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    step, _ = planned()

    assert step.found is not None
    assert step.found.plan is not None


# ---- Programs ----


@pytest.fixture
def loaded() -> Iterator[Callable[[], tuple[int, int]]]:
    """Says how many programs were loaded, and how many were compiled and kept, since it was last
    asked."""
    seen: list[str] = []

    def note(event: str, **_: Any) -> None:
        seen.append(event)

    def count() -> tuple[int, int]:
        found = seen.count("/jax/compilation_cache/cache_hits")
        made = seen.count("/jax/compilation_cache/cache_misses")
        seen.clear()
        jax.clear_caches()
        return found, made

    jax.clear_caches()
    monitoring.register_event_listener(note)
    yield count
    monitoring.unregister_event_listener(note)


def programs(folder_of_plans: Path) -> Path:
    (found,) = folder_of_plans.glob("xla-*")
    return found


def test_a_second_start_loads_the_program_that_xla_compiled(
    loaded: Callable[[], tuple[int, int]],
) -> None:
    _, made = planned()
    assert loaded()[1] >= 2

    second, same = planned()

    assert loaded() == (1, 0)
    assert second.found is not None
    assert second.found.compiled.temporaries > 0
    assert difference(leaves(made), leaves(same)).differing == 0


def test_programs_are_for_this_user_alone(folder_of_plans: Path) -> None:
    planned()

    assert programs(folder_of_plans).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", [b"", b"no program", b"\x28\xb5\x2f\xfd" + b"\x00" * 100])
def test_a_damaged_program_is_compiled_again_in_silence(
    text: bytes, folder_of_plans: Path, loaded: Callable[[], tuple[int, int]]
) -> None:
    _, made = planned()
    loaded()
    for file in programs(folder_of_plans).iterdir():
        file.write_bytes(text)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, same = planned()

    assert loaded()[0] == 0
    assert difference(leaves(made), leaves(same)).differing == 0
    assert not any(file.read_bytes() == text for file in programs(folder_of_plans).iterdir())


def readable(folder: Path) -> None:
    folder.chmod(0o755)


def a_link(folder: Path) -> None:
    folder.rename(folder.with_name("other"))
    folder.symlink_to("other")


def no_folder(folder: Path) -> None:
    folder.rename(folder.with_name("other"))
    folder.write_text("")


@pytest.mark.parametrize("spoil", [readable, a_link, no_folder])
def test_programs_that_others_could_have_written_are_not_loaded(
    spoil: Callable[[Path], None], folder_of_plans: Path, loaded: Callable[[], tuple[int, int]]
) -> None:
    _, made = planned()
    loaded()
    spoil(programs(folder_of_plans))

    _, same = planned()

    assert loaded() == (0, 0)
    assert difference(leaves(made), leaves(same)).differing == 0


def test_a_program_with_a_folder_of_its_own_keeps_to_it(
    tmp_path: Path, folder_of_plans: Path
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        planned()
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()

    assert not list(folder_of_plans.glob("xla-*"))


def test_what_the_program_compiles_itself_is_not_kept(
    folder_of_plans: Path, loaded: Callable[[], tuple[int, int]]
) -> None:
    planned()
    loaded()
    before = set(programs(folder_of_plans).iterdir())

    jax.jit(lambda x: x * 3.0 + 1.0)(2.0)

    assert loaded() == (0, 0)
    assert set(programs(folder_of_plans).iterdir()) == before
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0


@pytest.mark.parametrize("limit", [{"MOST_BYTES": 1}, {"MOST_PROGRAMS": 0}], ids=str)
def test_old_programs_make_room(
    limit: dict[str, int], folder_of_plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned()
    assert len(list(programs(folder_of_plans).iterdir())) > 1
    for name, value in limit.items():
        monkeypatch.setattr(cache, name, value)

    planned(budget="0.7x")

    assert len(list(programs(folder_of_plans).iterdir())) == 1

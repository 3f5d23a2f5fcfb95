# SPDX-License-Identifier: Apache-2.0
"""What all of the command promises: help, version, completion, usage, no server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_program import VERSION, Reprise

VERBS = ("plan", "sweep", "run", "fit", "show", "serve", "status")


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_an_example(reprise: Reprise, verb: str) -> None:
    result = reprise(verb, "--help")

    assert result.code == 0
    assert f"reprise {verb}" in result.out or verb == "serve"
    assert result.err == ""
    if verb != "serve":
        assert "Example:" in result.out


def test_help_lists_the_verbs_and_the_exit_codes(reprise: Reprise) -> None:
    result = reprise("--help")

    assert result.code == 0
    assert all(verb in result.out for verb in VERBS)
    assert "3 no plan fits" in result.out
    assert "Example:" in result.out


@pytest.mark.parametrize("verb", ["", "plan", "run", "serve"])
def test_help_is_a_word_too(reprise: Reprise, verb: str) -> None:
    words = [verb] if verb else []

    asked = reprise("help", *words)

    assert asked.code == 0
    assert asked.out == reprise(*words, "--help").out


def test_help_of_no_verb_is_wrong_usage(reprise: Reprise) -> None:
    result = reprise("help", "plam")

    assert result.code == 2
    assert "plam: no such command; did you mean `plan`?" in result.err


def test_command_and_daemon_have_the_version_of_the_python_package(reprise: Reprise) -> None:
    daemon = subprocess.run(
        [reprise.program.parent / "reprised", "--version"], capture_output=True, text=True
    )

    assert reprise("--version").out == f"reprise {VERSION}\n"
    assert daemon.stdout == f"reprised {VERSION}\n"


def test_nothing_typed_is_wrong_usage_and_shows_the_help(reprise: Reprise) -> None:
    result = reprise()

    assert result.code == 2
    assert "reprise plan" in result.out


def test_unknown_words_are_wrong_usage(reprise: Reprise) -> None:
    assert "frobnicate" in reprise.fails(2, "frobnicate")
    assert "--frobnicate" in reprise.fails(2, "status", "--frobnicate")
    assert "reprise status --help" in reprise.fails(2, "status", "--frobnicate")
    assert "--" in reprise.fails(2, "version", "--", "python")
    assert "behind the flags" in reprise.fails(2, "run")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_its_shell_accepts(reprise: Reprise, shell: str) -> None:
    result = reprise("--completion", shell)

    assert result.code == 0
    assert "reprise --completion words" in result.out
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=result.out, text=True, check=True)


def bash_completes(reprise: Reprise, *words: str) -> list[str]:
    """What bash offers for the last of the words behind `reprise`."""
    typed = " ".join(f"'{word}'" for word in words)
    script = reprise("--completion", "bash").out + (
        f"\nCOMP_WORDS=(reprise {typed}); COMP_CWORD={len(words)}; _reprise"
        '\necho "${COMPREPLY[@]}"'
    )
    path = f"{reprise.program.parent}:{os.environ['PATH']}"
    environment = {**reprise.environment, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pl",), ["plan"]),
        (("plan", "--bu"), ["--budget"]),
        (("plan", "--strategy", "p"), ["per-block"]),
        (("export", "latest", "--format", "h"), ["html"]),
        (("show", "lat"), ["latest"]),
        (("plan", "--gap", "0.1", "--ser"), ["--server"]),
        (("import", "/proc/cmdl"), ["/proc/cmdline"]),
        (("plan", "graph.json", "--gap", ""), []),
    ],
)
def test_bash_completes_verbs_options_and_values(
    reprise: Reprise, words: tuple[str, ...], offered: list[str]
) -> None:
    assert bash_completes(reprise, *words) == offered


def test_an_unknown_shell_is_wrong_usage(reprise: Reprise) -> None:
    assert "bash, zsh or fish" in reprise.fails(2, "--completion", "ksh")


@pytest.mark.long
def test_without_a_server_the_code_is_4_and_the_remedy_is_named(reprise: Reprise) -> None:
    for verb in (("status",), ("show", "latest"), ("show", "0000000000000001")):
        assert "reprise serve" in reprise.fails(4, *verb)
    said = reprise.fails(4, "status", "--server", "127.0.0.1:1")
    assert said.startswith("the server at 127.0.0.1:1 does not answer")
    assert reprise.fails(4, "status", REPRISE_SERVER="127.0.0.1:1") == said
    assert "reprise serve" in reprise.fails(
        4, "plan", "0123456789abcdef", "--budget", "1GiB", "--json"
    )


def test_a_server_elsewhere_is_reached_through_a_tunnel(reprise: Reprise) -> None:
    assert "ssh -L" in reprise.fails(2, "status", "--server", "gpu7:7070")
    assert "HOST:PORT" in reprise.fails(2, "status", "--server", "gpu7")


def test_a_damaged_server_json_is_named(reprise: Reprise) -> None:
    path = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"
    path.write_text("{")

    assert str(path) in reprise.fails(1, "status")


def test_a_full_disk_is_a_failure(reprise: Reprise) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [reprise.program, "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=reprise.environment,
        )
    assert done.returncode == 1
    assert "stdout" in done.stderr


def test_a_reader_that_has_read_enough_is_no_error(reprise: Reprise) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [str(reprise.program), "--help"],
            env=reprise.environment,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plna"], "plna: no such command; did you mean `plan`?"),
        (["frobnicate"], "frobnicate: no such command"),
        (
            ["plan", "a.json", "--budgt", "1GiB"],
            "--budgt: `reprise plan` has no such flag; did you mean --budget?",
        ),
    ],
)
def test_a_misspelt_word_is_named(reprise: Reprise, arguments: list[str], says: str) -> None:
    assert reprise.fails(2, *arguments).startswith(f"{says}; see `reprise ")

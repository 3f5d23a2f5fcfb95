# SPDX-License-Identifier: Apache-2.0
"""A server beyond this machine: TLS and a token, or none at all."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from authority import Authority
from cli_program import Reprise
from doctor_checks import checks
from serving import until

TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Server:
    url: str
    log: Path
    token_file: Path
    authority: Authority
    certificate: Path
    key: Path

    @property
    def flags(self) -> list[str]:
        """What a command of another machine is given."""
        return [
            "--server", self.url, "--token-file", str(self.token_file),
            "--ca", str(self.authority.certificate),
        ]  # fmt: skip


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def secured(
    reprise: Reprise, tmp_path: Path, authority: Authority
) -> Iterator[Callable[..., Server]]:
    """Starts a server that listens on every address of the machine."""
    processes: list[subprocess.Popen[str]] = []
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)

    def start(*more: str | Path) -> Server:
        certificate, key = authority.sign("server", "IP:127.0.0.1,DNS:localhost")
        log = (tmp_path / "serve.log").open("w")
        process = subprocess.Popen(
            [
                reprise.program, "serve", "--listen", "0.0.0.0:0", "--tls-cert", certificate,
                "--tls-key", key, "--token-file", token_file, *more,
            ],
            env=reprise.environment, cwd=reprise.folder, stdout=log, stderr=log, text=True,
        )  # fmt: skip
        processes.append(process)
        where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"

        def is_up() -> bool:
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            return where.exists()

        until("the server listens", 30, is_up)
        port = json.loads(where.read_text())["listen"].rpartition(":")[2]
        return Server(
            f"https://127.0.0.1:{port}", tmp_path / "serve.log", token_file, authority,
            certificate, key,
        )  # fmt: skip

    yield start
    for process in processes:
        process.terminate()
        assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()


def curl(server: Server, path: str, *more: str | Path) -> str:
    """The status and the body of an answer."""
    done = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code} %{http_version}", "--cacert",
         server.authority.certificate, server.url + path, *more],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_it_does_not_start_beyond_this_machine_without_tls_and_token(
    reprise: Reprise, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = map(str, authority.sign("server", "DNS:gpu7"))
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    tls = ["--tls-cert", certificate, "--tls-key", key]
    for listen in (["--listen", "0.0.0.0:0"], ["--grpc-listen", "[::]:0"]):
        for flags in ([], tls, ["--token-file", str(token)]):
            refused = reprise("serve", *listen, *flags)
            assert refused.code == 1, flags
            assert refused.err.count("\n") == 1
            assert (
                "is reached from other machines: that needs --tls-cert, --tls-key and --token-file"
                in refused.err
            )
    token.chmod(0o644)
    refused = reprise("serve", "--listen", "0.0.0.0:0", *tls, "--token-file", str(token))
    assert "others can read or replace the token" in refused.err


def test_what_cannot_be_used_for_tls_is_named(
    reprise: Reprise, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = map(str, authority.sign("server", "DNS:gpu7"))
    _, other_key = map(str, authority.sign("other", "DNS:gpu8"))
    nameless, nameless_key = map(str, authority.sign("nameless", None))
    text = tmp_path / "text"
    text.write_text("no certificate")
    for flags, code, said in (
        (["--tls-cert", certificate], 2, "--tls-cert and --tls-key belong together"),
        (["--client-ca", certificate], 2, "--client-ca: is for TLS"),
        (["--tls-cert", certificate, "--tls-key", other_key], 1, "--tls-key: "),
        (["--tls-cert", str(text), "--tls-key", key], 1, "no certificate in PEM"),
        (["--tls-cert", f"{text}.not", "--tls-key", key], 1, ".not: cannot be read: No such file"),
        (["--tls-cert", nameless, "--tls-key", nameless_key], 1, "names no host"),
        (
            ["--tls-cert", certificate, "--tls-key", key, "--client-ca", str(text)],
            1,
            "--client-ca: ",
        ),
    ):
        refused = reprise("serve", "--listen", "127.0.0.1:0", *flags)
        assert refused.code == code, refused
        assert said in refused.err
        assert refused.err.count("\n") == 1


def test_the_command_and_the_page_come_over_tls_with_the_token(
    reprise: Reprise, secured: Callable[..., Server], graph_file: Path
) -> None:
    server = secured()
    status = reprise("status", *server.flags)
    assert status.code == 0, status.err
    # By the file beside the socket, as ever.
    assert f"{server.url}/?token={TOKEN}" in reprise.on_terminal("status")
    # A stream up, an answer, and a stream down.
    imported = reprise("import", str(graph_file), *server.flags)
    assert imported.code == 0, imported.err
    assert reprise("show", "latest", *server.flags).code == 0

    bearer = ("-H", f"Authorization: Bearer {TOKEN}")
    assert curl(server, "/").endswith("401 1.1")
    assert curl(server, "/", *bearer).endswith("200 1.1")
    assert "reprise_build_info" in curl(server, "/metrics", *bearer)
    assert curl(server, "/healthz").endswith("200 1.1")
    link = curl(server, f"/?token={TOKEN}", "-i")
    assert "SameSite=Strict" in link
    assert "; Secure" in link
    assert curl(server, "/", *bearer, "-H", "Origin: https://evil.example").endswith("403 1.1")


def test_without_the_token_or_the_authority_nobody_is_let_in(
    reprise: Reprise, secured: Callable[..., Server], tmp_path: Path
) -> None:
    server = secured()
    named = ["--server", server.url]
    wrong = tmp_path / "wrong"
    wrong.write_text("f" * len(TOKEN))
    trusted = ["--ca", str(server.authority.certificate)]
    other = Authority(tmp_path / "other")
    assert (
        "does not take this token"
        in reprise("status", *named, *trusted, "--token-file", str(wrong)).err
    )
    untrusted = reprise(
        "status", *named, "--token-file", str(server.token_file), "--ca", str(other.certificate)
    )
    assert untrusted.code == 4
    assert "certificate that is trusted here" in untrusted.err
    plain = server.url.replace("https", "http")
    spoken = subprocess.run(["curl", "-sS", plain], capture_output=True, text=True, timeout=60)
    assert spoken.returncode != 0
    assert "reprise" not in spoken.stdout


def test_a_client_authority_lets_in_its_own_clients_alone(
    reprise: Reprise,
    secured: Callable[..., Server],
    authority: Authority,
    graph_file: Path,
) -> None:
    server = secured("--client-ca", authority.certificate, "--log-format", "json")
    certificate, key = authority.sign("client", None)
    assert reprise("status", *server.flags).code == 4
    known = reprise("status", *server.flags, "--cert", str(certificate), "--key", str(key))
    assert known.code == 0, known.err
    assert not curl(server, "/healthz").endswith("200 1.1")
    assert curl(server, "/healthz", "--cert", certificate, "--key", key).endswith("200 1.1")

    # The log names the certificate, over gRPC and over HTTP.
    own = [*server.flags, "--cert", str(certificate), "--key", str(key)]
    assert reprise("import", str(graph_file), *own).code == 0
    body = '{"runId": "nobody", "steps": 1}'
    asked = curl(
        server, "/reprise.v1.Control/StartWindow", "--cert", certificate, "--key", key, "-d", body,
        "-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {TOKEN}",
    )  # fmt: skip
    assert asked.endswith("404 1.1"), asked
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    changes = [line for line in lines if line["event"] == "change"]
    assert {change["action"] for change in changes} >= {"graph", "window"}
    assert {change["who"] for change in changes} == {"certificate CN=client"}
    for change in changes:
        assert re.fullmatch(r"127\.0\.0\.1:\d+ over TLS", change["peer"])


def test_a_certificate_that_was_replaced_is_read_again(
    reprise: Reprise, secured: Callable[..., Server], authority: Authority
) -> None:
    server = secured()
    assert curl(server, "/healthz").endswith("200 1.1")
    server.certificate.write_text("broken")
    assert curl(server, "/healthz").endswith("200 1.1")
    assert "the certificate of before stays in use" in server.log.read_text()
    new, new_key = authority.sign("new", "IP:127.0.0.1,DNS:localhost")
    server.certificate.write_bytes(new.read_bytes())
    server.key.write_bytes(new_key.read_bytes())
    assert curl(server, "/healthz", "-v").count("subject: CN=new") == 1


def test_doctor_says_when_a_certificate_ends(
    reprise: Reprise, secured: Callable[..., Server], authority: Authority
) -> None:
    server = secured()
    found = checks(reprise)
    assert found["certificate"]["health"] == "warning", found["certificate"]
    # It was made for nine days, some of whose seconds may have passed.
    assert re.search("ends in [89] days", found["certificate"]["found"]), found["certificate"]
    new, new_key = authority.sign("new", "IP:127.0.0.1,DNS:localhost", days=400)
    server.certificate.write_bytes(new.read_bytes())
    server.key.write_bytes(new_key.read_bytes())
    assert checks(reprise)["certificate"]["health"] == "ok"

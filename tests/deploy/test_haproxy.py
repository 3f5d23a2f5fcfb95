"""The example for HAProxy, checked by HAProxy itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    certificate, key = tmp_path / "reprised.crt", tmp_path / "reprised.key"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=reprised"
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    both = tmp_path / "reprised.pem"
    both.write_text(certificate.read_text() + key.read_text())
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    text = text.replace("/etc/haproxy/reprised.pem", str(both))
    text = text.replace("/etc/haproxy/reprised-ca.pem", str(certificate))
    # Names are looked up when HAProxy starts.
    for number in (1, 2):
        text = text.replace(f"replica{number}.example.org:7443", f"127.0.0.1:{7443 + number}")
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)

    done = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr

# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of a test's own."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A certificate authority of a test's own, with what it has signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", folder / "ca.key", "-out", self.certificate, "-days", "9",
            "-subj", "/CN=test authority",
        )  # fmt: skip

    def _openssl(self, *words: str | Path) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

    def sign(self, name: str, alternative: str | None, days: int = 9) -> tuple[Path, Path]:
        """Returns the certificate and the key of somebody."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", key, "-out", request, "-subj", f"/CN={name}",
        )  # fmt: skip
        extra.write_text(f"subjectAltName={alternative}\n" if alternative else "")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey",
            self.folder / "ca.key", "-CAcreateserial", "-days", str(days), "-extfile", extra,
            "-out", certificate,
        )  # fmt: skip
        return certificate, key

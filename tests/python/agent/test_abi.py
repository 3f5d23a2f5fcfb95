# SPDX-License-Identifier: Apache-2.0
"""The ctypes copy of the C ABI matches the header."""

import ctypes
import re
import subprocess

from reprise.agent import abi

STRUCTS = {
    "reprise_config": abi.Config,
    "reprise_caps": abi.Caps,
    "reprise_want": abi.Want,
    "reprise_plan": abi.PlanView,
    "reprise_step_report": abi.StepReport,
    "reprise_verify_report": abi.VerifyReport,
    "reprise_python": abi.PythonCalls,
}


def compile_and_run(folder, root, body):
    source = folder / "abi.c"
    lines = ['#include "reprise_agent.h"', "#include <stddef.h>", "#include <stdio.h>"]
    source.write_text("\n".join([*lines, "int main(void) {", *body, "return 0; }"]))
    include = root / "profiler" / "include"
    subprocess.run(["cc", "-std=c99", f"-I{include}", source, "-o", folder / "abi"], check=True)
    return subprocess.check_output([folder / "abi"], text=True).split()


def test_every_struct_has_the_size_and_offsets_of_the_header(tmp_path, root):
    body, expected = [], []
    for name, struct in STRUCTS.items():
        body.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(str(ctypes.sizeof(struct)))
        for field, *_ in struct._fields_:
            body.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(str(getattr(struct, field).offset))

    assert compile_and_run(tmp_path, root, body) == expected


def test_every_constant_has_the_value_of_the_header(tmp_path, root):
    names = re.findall(r"\bREPRISE_[A-Z_]+\b(?= *=)", header(root))
    names += re.findall(r"#define (REPRISE_[A-Z_]+) \d", header(root))

    values = compile_and_run(tmp_path, root, [f'printf("%d\\n", {name});' for name in names])

    known = {
        f"REPRISE_{name}": value for name, value in vars(abi).items() if isinstance(value, int)
    }
    assert {n: int(v) for n, v in zip(names, values, strict=True)} == known


def test_every_function_we_call_is_declared(root):
    declared = set(re.findall(r"\b(reprise_[a-z_]+)\(", header(root)))

    assert {*abi._QUICK, *abi._BLOCKING} <= declared


def header(root):
    return (root / "profiler" / "include" / "reprise_agent.h").read_text()

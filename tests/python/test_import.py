# SPDX-License-Identifier: Apache-2.0
"""What `import reprise` does, and what it must not do."""

import reprise


def test_importing_reprise_imports_no_framework_and_nothing_heavy(python):
    code = (
        "import sys, reprise; reprise.__version__; reprise.Plan; reprise.RepriseError\n"
        "heavy = {'torch', 'jax', 'keras', 'tensorflow', 'numpy', 'grpc', 'google', 'ctypes'}\n"
        "heavy |= {'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = python("-c", code)

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_importing_reprise_loads_none_of_its_parts_before_they_are_used(python):
    code = (
        "import sys; before = set(sys.modules)\n"
        "import reprise\n"
        "loaded = {name for name in set(sys.modules) - before if name.startswith('reprise')}\n"
        "print(sorted(loaded))"
    )

    done = python("-S", "-c", code)

    assert (done.stdout.strip(), done.stderr) == (
        "['reprise', 'reprise.base', 'reprise.base.errors']",
        "",
    )


def test_the_public_names_are_few():
    assert dir(reprise) == [
        "InfeasibleBudget",
        "Plan",
        "RepriseError",
        "ServerUnavailable",
        "__version__",
        "auto",
        "check",
        "estimate",
        "figures",
        "fit",
        "keep",
        "pause",
        "remove",
        "report",
        "saved",
    ]


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(reprise, "no_such_name")


def test_the_three_exceptions_are_one_family():
    assert issubclass(reprise.InfeasibleBudget, reprise.RepriseError)
    assert issubclass(reprise.ServerUnavailable, reprise.RepriseError)

"""The arrows between folders point one way only: read from includes and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Folder -> folders it may include from, besides itself.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "planner": {"base"},
    "profiler": set(),
    "formats": {"base", "planner", "proto", "profiler"},
    "server": {"base", "planner", "proto", "formats", "profiler"},
    # Made-up step graphs, for tests and benchmarks.
    "bench/generate": {"base", "planner", "formats"},
    "clients/cpp": {"profiler"},
    "clients/cli": {
        "base",
        "planner",
        "proto",
        "formats",
        "server",
        "profiler",
    },
}
# Folders of the planner, in the order in which a request flows -> those that they include from. The
# front door, the files right in planner/, includes from all.
PLANNER: dict[str, set[str]] = {
    "model": set(),
    # The step graph and the certificate as plain data.
    "verify": {"model"},
    "bounds": {"model", "verify"},
    "chains": {"model"},
    "construct": {"model", "bounds", "chains"},
    "once": {"model", "bounds", "construct"},
    "search": {"model", "bounds", "chains", "construct", "once"},
    "host": {"model"},
    "explain": {"model", "bounds", "construct"},
}
# The one header of the agent that the server may see: the wire format.
AGENT_HEADERS = {"reprise_wire.h", "reprise_agent.h", "reprise_sockets.h"}

# Folder of the PyTorch adapter -> those it may import from. Imports for the sake of types alone are
# arrows, too: whoever changes the one file has to know the other.
TORCH = "clients/python/src/reprise/torch"
BELOW: dict[str, set[str]] = {
    "internals": set(),
    "meter": {"internals"},
    "compiled": {"internals"},
    "rerun": {"internals", "compiled"},
    "check": {"internals", "compiled", "rerun"},
    "capture": {"internals", "meter", "compiled"},
    "offload": {"internals"},
    # What the loops know of tape and joint.
    "executor": {"check"},
    "tape": {"internals", "meter", "compiled", "check", "capture", "executor", "offload"},
    "estimation": {"internals", "meter", "rerun", "capture"},
    # Which imports no torch.
    "policy": set(),
    "training": {"internals", "meter", "check", "executor", "policy"},
    "joint": {
        "internals",
        "meter",
        "compiled",
        "rerun",
        "check",
        "estimation",
        "executor",
        "policy",
        "training",
    },
    "ladder": {"internals", "capture", "tape"},
    # What the parts of an eager model share, as data.
    "job": {"internals", "meter", "check", "capture", "tape", "ladder", "training"},
    "planning": {
        "internals",
        "meter",
        "capture",
        "tape",
        "estimation",
        "executor",
        "policy",
        "ladder",
        "training",
        "job",
    },
    "recovery": {
        "internals",
        "meter",
        "compiled",
        "rerun",
        "capture",
        "tape",
        "estimation",
        "policy",
        "ladder",
        "training",
        "job",
        "planning",
    },
    "session": {
        "internals",
        "meter",
        "compiled",
        "check",
        "rerun",
        "capture",
        "estimation",
        "tape",
        "executor",
        "joint",
        "policy",
        "ladder",
        "recovery",
        "training",
        "job",
        "planning",
    },
}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)


def sources(folder: str) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in {".h", ".cc", ".c"}:
            yield path


def includes(path: Path) -> Iterator[str]:
    for match in INCLUDE.finditer(path.read_text()):
        yield match.group(2)


def folder_of(include: str) -> str | None:
    if include.startswith("reprise/v1/"):
        return "proto"
    if include.rpartition("/")[2] in AGENT_HEADERS:
        return "profiler"
    for folder in (*ALLOWED, "web", "clients", "bench", "tests"):
        if include.startswith(folder + "/"):
            return folder
    return None


def imports(node: ast.AST) -> Iterator[str]:
    """Modules that a file imports, at its top, in a function, or for the sake of types."""
    for child in ast.walk(node):
        if isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)


CLIENT = ROOT / "clients/python/src"


def client_arrows() -> dict[str, set[str]]:
    """By module of the Python client: the modules of it that it imports."""
    files = {
        ".".join(path.relative_to(CLIENT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(CLIENT.rglob("*.py"))
    }
    return {module: set(targets(path, set(files))) - {module} for module, path in files.items()}


def targets(path: Path, modules: set[str]) -> Iterator[str]:
    """Those of `modules` that a file imports. `from package import module` is an arrow to the
    module, and to the package where the name is one of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from {name if name in modules else node.module} & modules
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules in which each reaches every other along arrows."""
    reached = {module: set(after) for module, after in arrows.items()}
    changed = True
    while changed:
        changed = False
        for after in reached.values():
            further = set().union(*(reached[other] for other in after)) - after
            changed |= bool(further)
            after |= further
    found = {
        tuple(sorted(other for other in after if module in reached[other]))
        for module, after in reached.items()
        if module in after
    }
    return [list(circle) for circle in sorted(found)]


def test_a_circle_of_imports_is_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}

    assert circles(arrows) == [["a", "b", "c"]]


def test_the_client_has_no_circle_of_imports() -> None:
    assert circles(client_arrows()) == []


def folder_arrows() -> dict[str, set[str]]:
    """By folder of the product: the folders whose headers or modules its own files need."""
    arrows: dict[str, set[str]] = {}
    for top in ("base", "planner", "profiler", "formats", "server", "clients/cli", "clients/cpp"):
        for path in sources(top):
            here = path.parent.relative_to(ROOT).as_posix()
            found = {Path(include).parent.as_posix() for include in includes(path)}
            known = {folder for folder in found if "/" in folder or folder == "base"}
            arrows.setdefault(here, set()).update(known - {here})
    for module, after in client_arrows().items():
        here = package(module)
        arrows.setdefault(here, set()).update({package(other) for other in after} - {here})
    return {here: after & set(arrows) for here, after in arrows.items()}


def package(module: str) -> str:
    """The folder of a module, as a package."""
    path = CLIENT / module.replace(".", "/")
    return module if path.is_dir() else module.rpartition(".")[0]


def test_no_folders_depend_on_each_other() -> None:
    assert circles(folder_arrows()) == []


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_of_the_adapter_imports_only_from_those_below_it(folder: str) -> None:
    prefix = "reprise.torch."
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / TORCH / folder).glob("*.py"))
        for name in imports(ast.parse(path.read_text()))
        if name.startswith(prefix)
        if name[len(prefix) :].split(".")[0] not in {folder} | BELOW[folder]
    ]
    assert wrong == []


def test_every_file_of_the_adapter_is_in_one_of_its_folders() -> None:
    folders = {path.parent.name for path in (ROOT / TORCH).glob("*/*.py")}
    assert folders == set(BELOW)
    assert [path.name for path in (ROOT / TORCH).glob("*.py")] == ["__init__.py"]


def test_the_command_knows_the_daemon_only_where_it_starts_one() -> None:
    knows = {
        path.name
        for path in sources("clients/cli")
        if any(include.startswith("server/") for include in includes(path))
    }
    assert knows == {"serve.cc"}


def test_tests_of_the_adapter_are_in_folders_of_its_names() -> None:
    tests = ROOT / "tests/python/pytorch"
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}

    assert folders - set(BELOW) == {"oracle", "whole_jobs"}


@pytest.mark.parametrize("folder", PLANNER)
def test_a_folder_of_the_planner_includes_only_from_those_before_it(
    folder: str,
) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(f"planner/{folder}")
        for include in includes(path)
        if include.startswith("planner/")
        if include.removeprefix("planner/").split("/")[0] not in {folder} | PLANNER[folder]
    ]
    assert wrong == []


def test_every_folder_of_the_planner_has_its_place() -> None:
    assert {path.parent.name for path in (ROOT / "planner").glob("*/*.cc")} == set(PLANNER)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_includes_only_what_it_may_depend_on(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(folder)
        for include in includes(path)
        if folder_of(include) not in {None, folder} | ALLOWED[folder]
    ]
    assert wrong == []


# Folder -> the headers of the agent that it may see: how it is called, what it writes, where it
# looks for a daemon.
OF_THE_AGENT = {
    "clients/cli": {"reprise_agent.h", "reprise_sockets.h"},
    "formats": {"reprise_wire.h"},
    "server": {"reprise_wire.h", "reprise_sockets.h"},
}


@pytest.mark.parametrize("folder", OF_THE_AGENT)
def test_only_the_public_headers_of_the_agent_are_seen_outside_of_it(
    folder: str,
) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(folder)
        for include in includes(path)
        if folder_of(include) == "profiler"
        and include.rpartition("/")[2] not in OF_THE_AGENT[folder]
    ]
    assert wrong == []


def test_the_verifier_shares_nothing_with_the_search() -> None:
    # It knows the step graph as plain data. Whoever verifies must not share a mistake.
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources("planner/verify")
        for include in includes(path)
        if "/" in include
        and not include.startswith(("base/", "planner/verify/"))
        and include not in {"planner/model/step_graph.h", "planner/model/certificate.h"}
    ]
    links = (ROOT / "planner/verify/CMakeLists.txt").read_text()

    assert wrong == []
    assert re.findall(r"target_link_libraries\(([^)]*)\)", links)[0].split() == [
        "reprise_verify", "PUBLIC", "reprise_base", "PRIVATE", "reprise_warnings",
    ]  # fmt: skip


LIBRARIES = {"grpc", "grpcpp", "google", "nlohmann", "sqlite3.h", "boost", "CLI"}


@pytest.mark.parametrize("folder", ["base", "planner", "profiler"])
def test_the_core_needs_no_library(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources(folder)
        for include in includes(path)
        if include.split("/")[0] in LIBRARIES
    ]
    assert wrong == []


# A search that proves splits trees and annealings between threads that others lend it
# (planner/model/exchange.h): these guard what they share, and start no thread.
GUARDED = {
    ROOT / "planner" / name
    for name in (
        "bounds/tree_grower.h",
        "bounds/tree_parts.cc",
        "search/anneal_each.cc",
    )
}


@pytest.mark.parametrize("header", ["thread", "mutex", "fstream", "iostream", "chrono"])
def test_the_planner_is_a_pure_function(header: str) -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources("planner")
        if header in includes(path) and not (path in GUARDED and header in ("mutex", "chrono"))
    ]
    assert wrong == []


def test_the_agent_includes_no_cxx_library() -> None:
    # Headers without a library behind them are fine.
    allowed = {"atomic", "bit", "cstdint", "cstddef", "cstring", "type_traits", "new"}
    wrong = [
        f"{path.relative_to(ROOT)} includes <{include}>"
        for path in sources("profiler")
        for include in includes(path)
        if "." not in include and "/" not in include and include not in allowed
    ]
    assert wrong == []


def python_imports(folder: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for match in IMPORT.finditer(path.read_text()):
            yield path, match.group(1).split(".")[0]


def test_the_python_client_needs_neither_grpc_nor_protobuf() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, name in python_imports("clients/python/src")
        if name in {"grpc", "google"}
    ]
    assert wrong == []


def test_frameworks_are_imported_only_by_their_adapters() -> None:
    # The steps of Keras on torch and on TensorFlow.
    steps = {
        (name, f"clients/python/src/reprise/keras/{name}_step.py")
        for name in ("torch", "tensorflow")
    }
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, name in python_imports("clients/python/src")
        if name in {"torch", "jax", "keras", "tensorflow"}
        and name not in path.relative_to(ROOT).parts
        and (name, str(path.relative_to(ROOT))) not in steps
        and not re.search(rf"^(?:    |\t)+(?:from|import) {name}", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


def test_every_top_level_folder_explains_itself() -> None:
    folders = [
        "base", "bench", "clients", "docs", "examples", "planner", "profiler",
        "proto", "scripts", "server", "tests", "web",
    ]  # fmt: skip
    assert [f for f in folders if not (ROOT / f / "README.md").exists()] == []

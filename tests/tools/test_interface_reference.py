"""Each series' interface and its page name the same, by the same signatures; links lead on."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_upstream import REPOSITORY
from series import read_names
from upstream import Layout, pin_versions

Entry = tuple[str, bool]  # signature, whether a backend must implement it


@dataclass(frozen=True)
class Interface:
    """An engine's. `changes` are edits of its source that the page would not follow."""

    engine: str
    source: str
    page: str
    classes: tuple[str, ...]
    entries: int
    changes: tuple[tuple[str, str], ...]

    def documented(self) -> str:
        return (REPOSITORY / "docs" / self.page).read_text()


INTERFACES = (
    Interface(
        "vllm",
        "vllm/v1/kv_storage/interface.py",
        "interface.md",
        ("KVStorageBackend", "KVBlockStorage", "KVStorageUpdate", "KVWorkerStorage"),
        20,
        (
            ("num_blocks: int) -> bool", "count: int) -> bool"),
            ("    def end_step(self)", "    def finish_step(self)"),
            ("    @abstractmethod\n    def usage", "    def usage"),
            ("    epoch: int\n", "    epoch: int\n    more: int\n"),
        ),
    ),
    Interface(
        "sglang",
        "sglang/srt/mem_cache/kv_storage/interface.py",
        "interface-sglang.md",
        ("KVStorageBackend",),
        15,
        (
            ("(self, default: int)", "(self, count: int)"),
            ("        *,\n        available_gb: float", "        available_gb: float"),
            ("tokens_per_row: int = 1", "tokens_per_row: float = 1"),
            ("    def wakeup_fd(self)", "    def wakeup(self)"),
        ),
    ),
)


# Each pin's series must leave the same interface.
PINS = [
    (interface, version)
    for interface in INTERFACES
    for version in pin_versions(Layout(REPOSITORY, interface.engine))
]


@pytest.fixture(scope="module", params=PINS, ids=lambda pin: f"{pin[0].engine}-{pin[1]}")
def pin(request: pytest.FixtureRequest) -> tuple[Interface, str]:
    found: tuple[Interface, str] = request.param
    return found


@pytest.fixture(scope="module")
def interface(pin: tuple[Interface, str]) -> Interface:
    return pin[0]


@pytest.fixture(scope="module")
def source(pin: tuple[Interface, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interface as the whole series leaves it."""
    interface, version = pin
    folder = tmp_path_factory.mktemp("interface")
    layout = Layout(REPOSITORY, interface.engine)
    for name in read_names(layout, version):
        patch = layout.series(version) / name
        command = ["git", "apply", "--unidiff-zero", f"--include={interface.source}", str(patch)]
        subprocess.run(command, cwd=folder, check=True)
    return (folder / interface.source).read_text()


def in_the_code(source: str) -> dict[str, list[Entry]]:
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {cls.name: list(filter(None, map(entry, cls.body))) for cls in classes}


def entry(node: ast.stmt) -> Entry | None:
    if isinstance(node, ast.AnnAssign):
        return f"{ast.unparse(node.target)}: {bare(node.annotation)}", False
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
        return None
    assert node.returns is not None
    given = _typed(node.args.args)
    if node.args.kwonlyargs:
        given += ["*", *_typed(node.args.kwonlyargs)]
    must = any(ast.unparse(decorator) == "abstractmethod" for decorator in node.decorator_list)
    return f"{node.name}({', '.join(given)}) -> {bare(node.returns)}", must


def _typed(arguments: list[ast.arg]) -> list[str]:
    return [f"{a.arg}: {bare(a.annotation)}" for a in arguments if a.annotation is not None]


def bare(annotation: ast.expr) -> str:
    """An annotation without the quotes round names that are imported for types only."""
    return ast.unparse(annotation).replace("'", "")


def in_the_page(page: str) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for section in re.split(r"(?m)^## ", page)[1:]:
        title, *parts = re.split(r"(?m)^### ", section)
        found[title.split("\n")[0]] = [
            (part.split("`")[1], part.split("\n")[1].startswith("Required.")) for part in parts
        ]
    return found


def test_the_page_is_what_the_interface_is(interface: Interface, source: str) -> None:
    code, page = in_the_code(source), in_the_page(interface.documented())
    assert tuple(page) == interface.classes and set(code) == set(interface.classes)
    for name in interface.classes:
        assert page[name] == code[name], name
    assert sum(len(entries) for entries in page.values()) > interface.entries


def test_each_entry_says_who_where_when_and_what_can_go_wrong(interface: Interface) -> None:
    for part in re.split(r"(?m)^### ", interface.documented())[1:]:
        labels = re.findall(r"(?m)^\* (\w+): \S", part.split("\n## ")[0])
        assert labels == ["Who", "Where", "When", "Errors"], part.split("\n")[0]


def test_another_signature_or_method_is_noticed(interface: Interface, source: str) -> None:
    page = in_the_page(interface.documented())
    for old, new in interface.changes:
        assert old in source
        assert in_the_code(source.replace(old, new)) != page


def test_links_between_pages_lead_somewhere() -> None:
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    pages += sorted((REPOSITORY / "docs").glob("*.md"))
    seen = 0
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            seen += 1
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
    assert seen > 10
    linked = (REPOSITORY / "README.md").read_text()
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in linked, f"README.md does not lead to docs/{page.name}"


def test_paths_that_the_pages_name_are_there() -> None:
    ignored = ("vendored/vllm/tree", "vendored/vllm/wheels", "dist/", "vllm/")
    for page in (REPOSITORY / "docs").glob("*.md"):
        for named in re.findall(r"`((?:[\w.-]+/)+[\w.*-]*)`", page.read_text()):
            if named.startswith(ignored) or named.split("/")[0] not in top_level():
                continue
            assert list(REPOSITORY.glob(named.rstrip("/"))), f"{page.name}: {named}"


def top_level() -> set[str]:
    return {path.name for path in Path(REPOSITORY).iterdir() if path.is_dir()}

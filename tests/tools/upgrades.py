"""Releases for a series to go to, and what a person does on the way; fixtures are in conftest."""

from __future__ import annotations

from fake_upstream import ENGINE, World

CORE = "fakeengine/core.py"
MOVED, TORN, LATER = "2.0", "3.0", "3.1"
CONFLICT = 3
FIRST = "0001-ask-the-storage-where-to-start.patch"
SECOND = "0002-add-the-storage-interface.patch"
HEAD = '"""The engine\'s own words."""\n'
LONGER = ENGINE.replace(HEAD, HEAD + "\n# One more.\n# And another.\n# A third.\n")
# The line that our first patch replaces is another one here.
OTHER = LONGER.replace("    chosen = []\n", "    chosen = deque()\n")
RESOLVED = OTHER.replace("    chosen = deque()\n", "    chosen = deque(start(limit))\n").replace(
    "import json\n", "import json\n\nfrom .kv import start\n"
)
RELEASES: dict[str, dict[str, bytes | None]] = {
    MOVED: {CORE: LONGER.encode()},
    TORN: {CORE: OTHER.encode()},
}


def add_releases(world: World) -> None:
    for version, changed in RELEASES.items():
        world.add_release(version, changed)


def upgrade(world: World, *args: str, code: int = 0) -> str:
    """Runs the tool on `fake`; returns what it printed."""
    result = world.call("rebase_patches", "fake", *args)
    assert result.code == code, result.out + result.err
    assert not result.err
    return result.out


def resolve(world: World, text: str = RESOLVED) -> None:
    """What a person does in the tree of TORN: writes the file, and stages it."""
    tree = world.at(TORN)
    tree.write(CORE, text)
    tree.git.raw("add", CORE)


def to_torn(world: World) -> dict[str, bytes]:
    """The whole way to TORN. Returns the series."""
    upgrade(world, "--to", TORN, code=CONFLICT)
    resolve(world)
    upgrade(world, "--continue")
    return world.at(TORN).patch_files()


def outside(world: World) -> dict[str, bytes]:
    """Every file of the repository that is not materialised or fetched."""
    skipped = ("tree", "wheels", ".rebase.lock")
    return {
        str(path.relative_to(world.root)): path.read_bytes()
        for path in sorted(world.root.rglob("*"))
        if path.is_file() and not set(path.relative_to(world.root).parts) & set(skipped)
    }

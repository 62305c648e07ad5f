"""A package index on this machine that answers as PEP 691 says, and pip with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fake_upstream import sha256
from packaging.utils import canonicalize_name


@dataclass
class FakeIndex:
    """Wheels by project. `asked` holds the path of every request, in order."""

    port: int = 0
    pages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def offer(self, wheel: Path, day: str = "2026-01-02", **more: Any) -> None:
        entry = {
            "filename": wheel.name,
            "url": f"http://127.0.0.1:{self.port}/files/{wheel.name}",
            "hashes": {"sha256": sha256(wheel)},
            "size": wheel.stat().st_size,
            "upload-time": f"{day}T01:02:03Z",
            **more,
        }
        project = canonicalize_name(wheel.name.split("-")[0])
        self.pages.setdefault(project, []).append(entry)
        self.files[wheel.name] = wheel

    def offer_all(self, folder: Path) -> None:
        for wheel in sorted(folder.glob("*.whl")):
            self.offer(wheel)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        kind, _, name = path.strip("/").partition("/")
        if kind == "files" and name in self.files:
            return "application/octet-stream", self.files[name].read_bytes()
        if kind == "simple" and name in self.pages:
            page = {"meta": {"api-version": "1.1"}, "name": name, "files": self.pages[name]}
            return "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()
        return None


@contextmanager
def serve() -> Iterator[FakeIndex]:
    index = FakeIndex()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.asked.append(self.path)
            index.credentials.append(self.headers.get("Authorization"))
            found = index.answer(self.path)
            self.send_response(200 if found else 404)
            kind, body = found or ("text/plain", b"nothing here")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield index
        server.shutdown()
        thread.join()

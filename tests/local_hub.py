"""A model hub on this machine, which serves folders by the hub's protocol and logs requests."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def local_hub(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serve models by their hub id; yields the address and the log of requests."""
    log: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *args: object) -> None:
            pass

        def answer(self) -> None:
            log.append(f"{self.command} {self.path}")
            path = self.path.split("?")[0].strip("/")
            for repo, folder in models.items():
                if path in (f"api/models/{repo}", f"api/models/{repo}/revision/main"):
                    files = [{"rfilename": p.name} for p in folder.iterdir()]
                    return self.send(json.dumps({"id": repo, "sha": COMMIT, "siblings": files}))
                for revision in ("main", COMMIT):
                    place = f"{repo}/resolve/{revision}/"
                    if path.startswith(place) and (folder / path.removeprefix(place)).is_file():
                        return self.send((folder / path.removeprefix(place)).read_bytes())
                if path.startswith((f"{repo}/resolve/", f"api/models/{repo}/tree/")):
                    return self.refuse("EntryNotFound")
            return self.refuse("RepoNotFound")

        def send(self, content: str | bytes) -> None:
            body = content.encode() if isinstance(content, str) else content
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", log
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A Hugging Face hub of one repository, on this machine."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def lfs_of(body: bytes) -> dict[str, str | int]:
    """What a hub says of a large file."""
    return {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "pointerSize": 1}


@contextmanager
def tiny_hub(
    repository: str, files: Mapping[str, bytes], *, told: Mapping[str, bytes] | None = None,
    asked: list[str] | None = None,
) -> Iterator[str]:  # fmt: skip
    """The address of a hub that has these files, for huggingface_hub's own client.

    Args:
        told: what the hub says that its files are, where that is something else.
        asked: takes the path of each request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            headers = {}
            if asked is not None:
                asked.append(path)
            name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/").removeprefix(f"/{repository}/resolve/main/")
            if path.startswith(f"/api/models/{repository}/tree/"):
                rows = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in files.items()]
                body = json.dumps(rows).encode()
            elif path.startswith(f"/api/models/{repository}"):
                siblings = [
                    {"rfilename": name, "size": len(body), "blobId": name, "lfs": lfs_of(body)}
                    for name, body in (told or files).items()
                ]
                body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
            elif name in files:
                body = files[name]
                headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            else:
                self.send_error(404)
                return
            self.send_response(200)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

"""A Hugging Face hub on loopback: the real client talks to it, and gets Parquet files as the real hub keeps them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow
import pyarrow.parquet

COMMIT = "c0ffee" + 34 * "0"
Rows = Sequence[Mapping[str, Any]]


def parquet(rows: Rows) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), buffer)
    return buffer.getvalue()


@contextmanager
def hub(files: Mapping[str, Rows]) -> Iterator[tuple[str, list[str]]]:
    """Serve `owner/name/config/split/0000.parquet` → rows; gives the address, and the paths that were downloaded."""
    stored, downloaded = {path: parquet(rows) for path, rows in files.items()}, list[str]()

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            kind, _, rest = path.partition("/")
            if kind == "datasets" and "/resolve/" in rest:
                self._file(rest.replace(f"/resolve/{COMMIT}/", "/"))
                return
            name, _, asked = rest.removeprefix("datasets/").partition("/revision/")
            tree = {p: data for p, data in stored.items() if p.startswith(f"{name.split('/tree/')[0]}/")}
            if not tree:
                self._send(404, b"{}")
            elif asked == "refs/convert/parquet":
                self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
            else:
                inside = {p.split("/", 2)[2]: data for p, data in tree.items()}
                listed = [{"type": "file", "path": p, "size": len(d), "oid": oid(d)} for p, d in inside.items()]
                self._send(200, json.dumps(listed).encode())

        do_HEAD = do_GET

        def _file(self, path: str) -> None:
            if self.command == "GET":
                downloaded.append(path)
            data = stored[path]
            self._send(200, data, {"ETag": f'"{oid(data)}"', "X-Repo-Commit": COMMIT})

        def _send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", downloaded
    finally:
        server.shutdown()
        server.server_close()


def oid(data: bytes) -> str:
    return sha1(data).hexdigest()

"""A server on the loopback interface that stores files: plain HTTP with ranges, and the used parts of S3 and of the
Hub of Hugging Face."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


class Store:
    """Files by path, the requests that were made, and what goes wrong with the next ones.

    faults: for each path what happens to its GETs: a status, "stall", "truncate", or "once" for a status 500 once.
    put_faults: what happens to the next PUTs, the first first: a status, "half" (half of it is kept, and all is well),
    "lost" (it is kept, and the connection ends without an answer), "stall", or "" for nothing. sent: the bytes
    of all PUTs that were kept.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: dict[str, int | str] = {}
        self.put_faults: list[int | str] = []
        self.sent = 0
        self.over = threading.Event()
        self.ranges = True
        self.url = ""

    def read(self, path: str) -> int:
        """How many requests have read the content of a file."""
        return self.requests.count(("GET", path))


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    """Serve the files of a store."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_POST(self) -> None:
            names = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
            self.send(200, dataset(store, self.path_of(), names), {"Content-Type": "application/json"})

        def do_PUT(self) -> None:
            path, data = self.path_of(), self.rfile.read(int(self.headers["Content-Length"]))
            store.requests.append((self.command, path))
            fault = store.put_faults.pop(0) if store.put_faults else ""
            if isinstance(fault, int):
                self.send(fault, b"", {})
                return
            if self.headers.get("If-None-Match") == "*" and path in store.files:
                self.send(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
                return
            if fault == "stall":
                store.over.wait()
                self.close_connection = True
                return
            store.sent += len(data)
            store.files[path] = data[: len(data) // 2] if fault == "half" else data
            if fault == "lost":
                self.close_connection = True
                return
            self.send(200, b"", {"ETag": f'"{md5(data).hexdigest()}"'})

        def do_DELETE(self) -> None:
            store.requests.append((self.command, self.path_of()))
            store.files.pop(self.path_of(), None)
            self.send(204, b"", {})

        def path_of(self) -> str:
            return unquote(urlsplit(self.path).path)

        def answer(self, *, with_body: bool) -> None:
            parts = urlsplit(self.path)
            path, query = unquote(parts.path), parse_qs(parts.query)
            if "/resolve/main/" in path:  # a file of a dataset of the Hub
                path = path.removeprefix("/datasets").replace("/resolve/main/", "/")
            store.requests.append((self.command, path))
            if path.startswith("/api/datasets/"):
                self.send(200, dataset(store, path), {"Content-Type": "application/json"})
                return
            if "list-type" in query:
                self.send(200, listing(store, path.strip("/"), query), {"Content-Type": "application/xml"})
                return
            fault = store.faults.get(path) if with_body else None
            if fault == "once":
                fault = 500
                del store.faults[path]
            if isinstance(fault, int) or path not in store.files:
                self.send(fault if isinstance(fault, int) else 404, b"", {})
                return
            if fault == "stall":
                time.sleep(10)
            data, status = store.files[path], 200
            headers = {"ETag": f'"{md5(data).hexdigest()}"', "Last-Modified": "Sat, 01 Aug 2026 10:00:00 GMT"}
            wanted = self.headers.get("Range")
            if store.ranges:
                headers["Accept-Ranges"] = "bytes"
            if wanted and store.ranges:
                first, last = wanted.removeprefix("bytes=").split("-")
                stop = min(int(last) + 1 if last else len(data), len(data))
                headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(data)}"
                data, status = data[int(first) : stop], 206
            self.send(status, data, headers, cut=fault == "truncate")

        def send(self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield store
    finally:
        store.over.set()
        server.shutdown()


def dataset(store: Store, path: str, names: list[str] | None = None) -> bytes:
    """The answer of the Hub about a dataset, or about its files."""
    owner, name = path.split("/")[3:5]
    root = f"/{owner}/{name}/"
    if "/tree/" not in path and names is None:
        return json.dumps({"id": f"{owner}/{name}", "sha": "0" * 40}).encode()
    found = {p.removeprefix(root): data for p, data in store.files.items() if p.startswith(root)}
    rows = [
        {"type": "file", "path": n, "size": len(data), "oid": md5(data).hexdigest()}
        for n, data in found.items()
        if names is None or n in names
    ]
    return json.dumps(rows).encode()


def listing(store: Store, bucket: str, query: dict[str, list[str]]) -> bytes:
    """The answer of S3's ListObjectsV2."""
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    names = sorted(p.removeprefix(f"/{bucket}/") for p in store.files if p.startswith(f"/{bucket}/{prefix}"))
    deeper = {n[: n.index(delimiter, len(prefix)) + 1] for n in names if delimiter and delimiter in n[len(prefix) :]}
    names = [name for name in names if not any(name.startswith(folder) for folder in deeper)]
    rows = [
        f"<Contents><Key>{name}</Key><LastModified>2026-08-01T10:00:00.000Z</LastModified>"
        f"<ETag>&quot;{md5(store.files[f'/{bucket}/{name}']).hexdigest()}&quot;</ETag>"
        f"<Size>{len(store.files[f'/{bucket}/{name}'])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for name in names
    ]
    rows += [f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(deeper)]
    return (
        f'{HEAD}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
        f"<Prefix>{prefix}</Prefix><KeyCount>{len(rows)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
    ).encode()

"""A made judge behind a local HTTP server with OpenAI's chat completions."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(reply):
    """Serve `reply(body, headers)`, which returns (status, tree or bytes, headers), on the loopback interface.

    Yields the endpoint and the list of requests' bodies.
    """
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append({"path": self.path, **body})
            status, tree, headers = reply(body, self.headers)
            data = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            """Say nothing of clients that left."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()


def completion(text, tokens=7, reasoning=3, finish="stop"):
    """A response with one choice."""
    usage = {"prompt_tokens": 11, "completion_tokens": tokens, "completion_tokens_details": {}}
    usage["completion_tokens_details"]["reasoning_tokens"] = reasoning
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}, {}

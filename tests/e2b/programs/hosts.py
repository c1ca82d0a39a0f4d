"""What a sandbox's own host serves: signed URLs of files, as the Python SDK signs them, and the sandbox that the host names.

The host is sent to the service's own address: a wildcard domain needs a name server and a certificate, which this program does not have.
"""

from __future__ import annotations

import http.client
import json
import os
from urllib.parse import urlsplit

from e2b import Sandbox

SERVICE = urlsplit(os.environ["HOLDFAST_URL"])


def ask(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(SERVICE.hostname or "", SERVICE.port, timeout=60)
    connection.request(method, f"{parts.path}?{parts.query}", body, {"Host": parts.netloc, **(headers or {})})
    answer = connection.getresponse()
    return answer.status, answer.read()


def main() -> None:
    del os.environ["E2B_SANDBOX_URL"]  # the SDK then makes hosts of the domain that the create answered with
    sandbox = Sandbox.create("base", timeout=120)
    octets = {"Content-Type": "application/octet-stream"}
    url = sandbox.upload_url("note.txt", "user", 60)
    assert url.startswith(f"https://49983-{sandbox.sandbox_id}.box.test/files?"), url
    assert ask("POST", url, b"signed", octets)[0] == 200
    assert ask("GET", sandbox.download_url("note.txt", "user")) == (200, b"signed")
    assert ask("GET", sandbox.download_url("note.txt", "user", 60)) == (200, b"signed")
    status, body = ask("GET", sandbox.download_url("note.txt", "user", -60))
    assert (status, json.loads(body)) == (401, {"code": 401, "message": "signature is already expired"})
    for changed in (
        sandbox.download_url("note.txt", "user").replace("note", "other"),
        sandbox.upload_url("note.txt", "user"),
        sandbox.download_url("note.txt", "user").replace("username=user", "username=root"),
    ):
        assert ask("GET", changed)[0] == 401, changed
    assert ask("GET", f"https://{sandbox.get_host(49983)}/health")[0] == 401, "without a token"
    token = {"X-Access-Token": sandbox._envd_access_token or ""}
    assert ask("GET", f"https://{sandbox.get_host(49983)}/health", headers=token)[0] == 204
    other = Sandbox.create("base", timeout=120)
    assert ask("GET", f"https://{other.get_host(49983)}/health", headers=token)[0] == 401, "the token of another sandbox"
    other.kill()
    os.environ["E2B_SANDBOX_URL"] = os.environ["E2B_API_URL"]
    Sandbox.connect(sandbox.sandbox_id).kill()
    assert ask("GET", f"https://{sandbox.get_host(49983)}/health", headers=token)[0] == 502


main()

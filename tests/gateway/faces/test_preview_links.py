"""Links to previews where TLS ends in front of the service, and where there is no preview domain."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.settings import ConnectionSettings
from tests.gateway.checked import Checked
from tests.gateway.harness import ADA, serve
from tests.support.requires import requires

pytestmark = requires("redis")

DOMAIN = "preview-example.org"
LOCAL = ConnectionSettings(trusted_proxies=(ip_network("127.0.0.0/8"),))


async def made(client: Any, sandbox_id: str, **body: Any) -> dict[str, Any]:
    answer = await Checked(client)("POST", f"/sandboxes/{sandbox_id}/previews", json={"port": 8000, **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_over_tls_the_cookie_is_of_one_host_and_secure(redis_url: str, tmp_path: Path) -> None:
    more = {"public_url": "https://example.org", "preview_domain": DOMAIN}
    async with serve(redis_url, tmp_path, more=more) as served, served.client(ADA) as ada, served.client(None) as browser:
        await served.place("sb-1", "unix:///nowhere")
        link = await made(ada, "sb-1", expires_s=100)
        host = f"8000-sb-1.{DOMAIN}"
        assert (link["form"], link["address"]) == ("host", f"https://{host}/")
        answer = await browser.get(f"/?{urlsplit(link['url']).query}", headers={"Host": host, "Accept": "text/html"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        name, _, rest = answer.headers["set-cookie"].partition("=")
        attributes = {part.strip().partition("=")[0].lower(): part.strip().partition("=")[2] for part in rest.split(";")[1:]}
        assert name == "__Host-holdfast-preview"
        assert attributes.keys() == {"httponly", "max-age", "path", "samesite", "secure"}
        assert attributes["path"] == "/"
        assert 0 < int(attributes["max-age"]) <= 100
        assert link["token"] not in answer.headers["location"]
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_only_a_trusted_proxy_says_that_the_client_used_tls(redis_url: str, tmp_path: Path) -> None:
    for connections, name in ((LOCAL, "__Host-holdfast-preview"), (ConnectionSettings(), "holdfast-preview")):
        async with (
            serve(redis_url, tmp_path, connections=connections, more={"preview_domain": DOMAIN}) as served,
            served.client(ADA) as ada,
        ):
            await served.place("sb-1", "unix:///nowhere")
            query = urlsplit((await made(ada, "sb-1"))["url"]).query
            headers = {"Host": f"8000-sb-1.{DOMAIN}", "Accept": "text/html", "X-Forwarded-Proto": "https"}
            async with served.client(None) as browser:
                answer = await browser.get(f"/?{query}", headers=headers)
            assert answer.headers["set-cookie"].startswith(f"{name}=")


async def test_what_is_no_host_name_has_the_form_with_a_path(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path, more={"preview_domain": DOMAIN}) as served, served.client(ADA) as ada:
        for sandbox_id in ("a.b", "a_b", "a-", "x" * 60):
            await served.place(sandbox_id, "unix:///nowhere")
            link = await made(ada, sandbox_id)
            assert (link["form"], link["address"]) == ("path", f"{served.url}/sandboxes/{sandbox_id}/ports/8000/")
    async with serve(redis_url, tmp_path) as served, served.client(ADA) as ada:
        await served.place("plain", "unix:///nowhere")
        assert (await made(ada, "plain"))["form"] == "path"
        for wrong in ({"port": 0}, {"port": 65536}, {"port": "x"}, {"expires_s": 0}, {"expires_s": 604801}, {"expires_s": "x"}):
            answer = await ada.post("/sandboxes/plain/previews", json={"port": 8000, **wrong})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), wrong

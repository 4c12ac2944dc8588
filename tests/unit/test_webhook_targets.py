"""Where webhooks may go, and to which addresses a connection is made."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.service.webhooks.sending import Refused, post, signature, team_secret
from autodeploy.service.webhooks.service import MAX_URL_LENGTH, Targets

pytestmark = pytest.mark.unit

LISTED = Targets.parse("ci.example.com, *.hooks.example.com:8443,10.20.0.0/16:*, 93.184.216.34:8080,[2001:db8::1]:443")


@pytest.mark.parametrize(
    ("url", "known_as"),
    [
        ("https://ci.example.com/a?b=c", "https://ci.example.com/a?b=c"),
        ("http://ci.example.com", "http://ci.example.com/"),
        ("HTTPS://CI.Example.COM./a", "https://ci.example.com/a"),
        ("https://ci.example.com:443?x", "https://ci.example.com:443/?x"),
        ("https://a.b.hooks.example.com:8443/", "https://a.b.hooks.example.com:8443/"),
        ("http://10.20.3.4:9000/x", "http://10.20.3.4:9000/x"),
        ("http://93.184.216.34:8080/", "http://93.184.216.34:8080/"),
    ],
)
def test_what_is_listed_is_allowed_in_one_spelling(url, known_as):
    target = LISTED.target(url)
    assert target.url == known_as
    assert target.url.startswith(target.origin)
    assert target.origin.endswith("/")
    assert LISTED.target(target.url) == target


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example.com/",
        "https://ci.example.com.evil.org/",
        "https://ci.example.com:8443/",
        "http://a.hooks.example.com/",
        "https://hooks.example.com:8443/",
        "https://evilhooks.example.com:8443/",
        "http://10.21.0.1/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.20.1.1]:80/x\\@evil",
        "http://93.184.216.34/",
        "http://169.254.169.254/latest/meta-data",
        "ftp://ci.example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        "//ci.example.com/",
        "ci.example.com",
        "",
        "https://user@ci.example.com/",
        "https://user:secret@ci.example.com/",
        "https://other.example.com\\@ci.example.com/",
        "https://ci.example.com/#x",
        "https://ci.example.com/a b",
        "https://ci.example.com/\r\nX: y",
        "https://ci.example.com:99999/",
        "https://ci.example.com:x/",
        "https://[::1",
        "https://*.hooks.example.com:8443/",
        "https://ci.ex%61mple.com/",
        "https://ci.exämple.com/",
        "https://ci.example.com/" + "x" * MAX_URL_LENGTH,
    ],
)
def test_everything_else_is_refused(url):
    with pytest.raises(SpecError) as caught:
        LISTED.target(url)
    assert [error.path for error in caught.value.errors] == ["webhook"]


def test_the_star_is_every_public_host():
    every = Targets.parse("*")
    assert every.target("https://anywhere.example.org/x").host == "anywhere.example.org"
    assert every.target("https://93.184.216.34/").host == "93.184.216.34"
    for private in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"):
        with pytest.raises(SpecError, match="private network"):
            every.target(f"http://{private}/")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001::1"),
        *("fec0::1", "feff::1", "3fff::1", "3fff:fff::1", "192.88.99.1", "::ffff:192.88.99.2"),
    ],
)
def test_private_addresses_are_refused_however_they_are_written(address):
    assert not LISTED.allows_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "10.20.255.1", "::ffff:10.20.0.1", "2606:2800:220:1::1"])
def test_public_and_listed_addresses_are_not(address):
    assert LISTED.allows_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("text", ["a b", "host:0", "host:99999", "host:x", "*x.com", "a.*.com", "http://a", "-", "a/b"])
def test_a_list_that_cannot_be_read_is_refused(text):
    with pytest.raises(SpecError) as caught:
        Targets.parse(f"ok.example.com,{text}")
    assert caught.value.errors[0].path == "AUTODEPLOY_WEBHOOK_TARGETS"


def test_a_name_that_resolves_to_a_private_address_is_not_connected_to():
    target = LISTED.target("http://ci.example.com/")
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1", "::1"]

    with pytest.raises(Refused) as caught:
        post(target, b"{}", {}, targets=LISTED, timeout_s=5.0, resolve=rebinding)
    assert asked == ["ci.example.com"]
    assert not any(address in str(caught.value) for address in ("127.0.0.1", "::1"))  # tells no tenant of names inside


def test_the_connection_is_to_the_judged_address_and_the_name_is_asked_for_once():
    """A second look-up would be answered otherwise: by then the name is that of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listed = Targets.parse(f"ci.example.com:{port},127.0.0.0/8")
        asked = []

        def once(host: str, port: int) -> list[str]:
            asked.append(host)
            assert len(asked) == 1
            return ["10.9.9.9", "127.0.0.1"]  # the first is private and not listed

        server.settimeout(10.0)
        with pytest.raises(TimeoutError, match="timed out"):
            post(
                listed.target(f"http://ci.example.com:{port}/"), b"{}", {}, targets=listed, timeout_s=0.5, resolve=once
            )
        connection, _ = server.accept()
        with connection:
            assert connection.recv(4096).startswith(b"POST / HTTP/1.1\r\nHost: ci.example.com:")


def test_each_team_has_a_secret_of_its_own():
    master = "0123456789abcdef0123456789abcdef"
    secrets = {team_secret(master, team) for team in ("default", "a", "b")}
    assert len(secrets) == 3
    assert all(secret.startswith("whsec_") and master not in secret for secret in secrets)
    assert team_secret(master, "a") == team_secret(master, "a")
    # echo -n '1700000000.{}' | openssl dgst -sha256 -hmac secret
    digest = "b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
    assert signature("secret", 1_700_000_000, b"{}") == f"t=1700000000,v1={digest}"

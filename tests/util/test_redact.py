"""No part of a password or signature is shown, whatever characters it has."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bartizan._util.redact import mentions_secret, without_addresses_secrets, without_secrets

SECRET = st.lists(st.sampled_from("/@?#:%&= +!~.;'[]*"), min_size=0, max_size=4).map(
    lambda marks: "qjvault" + "".join(f"{mark}zxkeep{number}" for number, mark in enumerate(marks))
)
SCHEMES = st.sampled_from(["http", "https", "s3", "ftp", "memory", "simplecache::https"])


def parts(secret: str) -> list[str]:
    return [part for part in ("qjvault", "zxkeep") if part in secret]


@given(SCHEMES, SECRET, st.sampled_from(["{0}://me:{1}@host:81/a/b.npy", "{0}://:{1}@host/a/b.npy"]), st.booleans())
@settings(max_examples=500, deadline=None)
def test_a_password_is_not_shown_whatever_is_in_it(scheme, secret, form, signed):
    address = form.format(scheme, secret) + ("?X-Amz-Signature=zxkeep&who=a@b" if signed else "")
    shown = without_secrets(address)
    assert not any(part in shown for part in ("qjvault", "zxkeep")), address
    assert shown.startswith(f"{scheme}://")


@given(SCHEMES, SECRET, st.booleans(), st.booleans())
@settings(max_examples=500, deadline=None)
def test_a_query_is_not_shown_whatever_is_in_it(scheme, secret, port, user):
    address = f"{scheme}://{'me:pw@' if user else ''}host{':443' if port else ''}/a/b.npy?sig={secret}&b=@c"
    shown = without_secrets(address)
    assert not any(part in shown for part in parts(secret)), address
    assert shown in (f"{scheme}://host{':443' if port else ''}/a/b.npy", f"{scheme}://...")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:pw@host/a/b.npy?sig=1#x", "https://host/a/b.npy"),
        ("https://token@host/b.npy", "https://host/b.npy"),
        ("https://me:a)b'c]d@host/b.npy", "https://host/b.npy"),
        ("https://host/b.npy#sig", "https://host/b.npy"),
        ("memory://round/c0/", "memory://round/c0/"),
        ("s3://bucket/ann@example.org/c#1.npy", "s3://bucket/ann@example.org/c#1.npy"),
        ("a/c3.npy?.npy", "a/c3.npy?.npy"),
        ("me:pw@host/x.npy", "me:pw@host/x.npy"),  # no address: a local path
        ("zip://a.npy::https://me:pw@host/x.zip", "zip://host/x.zip"),
    ],
)
def test_what_is_no_secret_is_shown(address, shown):
    assert without_secrets(address) == shown
    assert without_addresses_secrets(f"Open ({address})") == f"Open ({shown})"


@given(SECRET, st.sampled_from([str, str.upper, lambda one: quote(one, safe=""), lambda one: one.partition("/")[0]]))
@settings(max_examples=300, deadline=None)
def test_a_message_with_a_part_of_a_secret_is_recognised(secret, written):
    message = f"Invalid port {written(secret)!r}"
    assert mentions_secret(message, f"https://me:{secret}@host/x.npy")
    assert mentions_secret(message, f"https://host/x.npy?sig={secret}")
    assert mentions_secret(message, "s3://b/x.npy", {"client_kwargs": {"aws_secret_access_key": secret}})
    assert not mentions_secret(message, "https://host/x.npy")
    assert not mentions_secret("there is no such object", f"https://me:{secret}@host/x.npy")
    assert not mentions_secret(message, "s3://b/x.npy", {"endpoint_url": secret, "anon": True})

"""Redact passwords and signatures in addresses, and in errors about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

ADDRESS = re.compile(r"[\w+.:-]+://(?:\S*@)?[^\s'\")\]>]+")  # a password may hold what else ends an address
SECRET_OPTION = re.compile(r"secret|password|passwd|token|key|auth|credential|signature|sas|headers|cookie", re.I)
MIN_PART_CHARS = 4  # shorter parts of a secret count only as words of their own


def without_secrets(address: str) -> str:
    """Return an address without user, password, query and fragment: a signed one is as good as a password.

    A password may hold any character, also those that end it by the rules. Where it can't be told from what
    follows it, only the scheme is left. Any other text is returned as it is.

    >>> without_secrets("https://me:p/w@host/a.npy?sig=1"), without_secrets("https://me:p?w@host/a.npy")
    ('https://host/a.npy', 'https://...')
    """
    scheme, _, shown, _ = _split(address)
    return f"{scheme}://{shown}" if scheme else address


def without_addresses_secrets(text: str) -> str:
    """Return a text with `without_secrets` of every address in it.

    >>> without_addresses_secrets("URL('http://h/x?sig=1') is bad?")
    "URL('http://h/x') is bad?"
    """
    return ADDRESS.sub(lambda found: without_secrets(found[0]), text)


def mentions_secret(text: str, address: str, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a text holds a part of an address that `without_secrets` removes, or of a secret option's value.

    >>> mentions_secret("no port 'p'", "https://me:p/w@host/x"), mentions_secret("stopped", "https://me:p/w@host/x")
    (True, False)
    """
    text = text.casefold()
    for secret in map(str.casefold, [*_left_out(address), *_secret_values(options or {})]):
        parts = {part for form in (secret, unquote(secret)) for part in re.split(r"[\W_]+", form)}
        if secret in text or quote(secret, safe="") in text:
            return True
        for part in parts - {""}:
            if part in text if len(part) >= MIN_PART_CHARS else re.search(rf"\b{re.escape(part)}\b", text):
                return True
    return False


def _split(address: str) -> tuple[str, str, str, str]:
    """Return scheme, leading secrets, the part to show, and trailing secrets; no scheme if this is no address."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return "", "", address, ""
    before, at, after = rest.rpartition("@")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if not (at and ("@" in authority or ":" in before)):
        before, after = "", rest
    elif "?" in before:  # the end of a password, or a part of the query
        return scheme, rest, "...", ""
    shown = re.split("[?#]" if "http" in scheme else "[?]", after, maxsplit=1)[0]
    return scheme, before, shown, after[len(shown) :]


def _left_out(address: str) -> list[str]:
    """Return the secrets of an address: user and password, and the values in its query."""
    _, before, _, behind = _split(address)
    values = [part.partition("=")[2] or part for part in re.split("[&;?#]", behind)]
    return [part for part in (before, *values) if part]


def _secret_values(options: Any, secret: bool = False) -> Iterator[str]:
    if isinstance(options, Mapping):
        for key, value in options.items():
            yield from _secret_values(value, secret or bool(SECRET_OPTION.search(str(key))))
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from _secret_values(value, secret)
    elif secret and isinstance(options, (str, bytes)) and options:
        yield options if isinstance(options, str) else options.decode(errors="replace")

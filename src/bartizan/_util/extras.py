"""The error about an extra that is not installed."""

from __future__ import annotations


def missing_extra(needed: str, extra: str, *, name: str | None = None) -> ModuleNotFoundError:
    """Return the error that says how to install an extra, in a checkout and elsewhere.

    >>> print(missing_extra("bartizan.flower needs Flower", "flower"))
    bartizan.flower needs Flower: pip install '.[flower]' in a checkout of bartizan, or pip install
    'bartizan-...-py3-none-any.whl[flower]' with its wheel
    """
    from bartizan import __version__

    wheel = f"bartizan-{__version__}-py3-none-any.whl"
    install = f"pip install '.[{extra}]' in a checkout of bartizan, or pip install '{wheel}[{extra}]' with its wheel"
    return ModuleNotFoundError(f"{needed}: {install}", name=name)

"""Skip modules whose optional dependency is not installed, with a reason that names the extra."""

import pytest
from _pytest.doctest import DoctestModule

EXTRAS = {
    **{"torch": "torch", "triton": "gpu", "matplotlib": "plot", "tensorboard": "tensorboard"},
    **{"PIL": "lab", "prodigyopt": "lab", "flwr": "flower", "httpx": "flower", "ray": "ray", "dask": "dask"},
    **{"hypothesis": "dev", "safetensors": "dev", "playwright": "dev", "griffe": "docs", "nvflare": "nvflare"},
    **{"pandas": "studies", "scipy": "studies", "fsspec": "remote", "jupytext": "slow"},
}
# Apps for Flower's processes, and measurements that import every library: no tests.
collect_ignore = ["tests/support/flower_app", "tests/support/lora_app", "studies/measurements", "studies/__main__.py"]


def missing_package(error):
    while error is not None:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
            return package
        error = error.__cause__ or error.__context__
    return None


def pytest_collectstart(collector):
    if not isinstance(collector, (pytest.Module, DoctestModule)):
        return
    collect = collector.collect

    def collect_or_skip():
        try:
            return list(collect())
        except (ImportError, pytest.Collector.CollectError) as error:
            package = missing_package(error)
            if package is None:
                raise
            reason = f"{package} is not installed: pip install '.[{EXTRAS[package]}]'"
        pytest.skip(reason, allow_module_level=True)

    collector.collect = collect_or_skip

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs the tests in an empty folder.

    Python puts the current folder first on the path of a child's `python -c`: in the checkout that
    would be our package without its built half, before the one that is installed.
    """
    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(here)

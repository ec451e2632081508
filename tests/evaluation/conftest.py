"""A small model with random weights, for all evaluations."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_model import write_model

import gidd
from gidd.pipeline import Pipeline


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pipe(model_folder: Path) -> Pipeline:
    return gidd.from_pretrained(model_folder, device="cpu")


@pytest.fixture(scope="module")
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what lm_eval caches of local tasks out of the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield

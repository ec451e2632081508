"""The exception classes."""

import pytest

from gidd import errors
from gidd.data.loading.shards import open_shard
from gidd.errors import DataError, GiddError


@pytest.mark.parametrize("name", ["ConfigError", "ScheduleError", "DataError", "CheckpointError"])
def test_errors_of_user_input_are_value_errors(name):
    error = getattr(errors, name)
    assert issubclass(error, GiddError)
    assert issubclass(error, ValueError)


def test_a_missing_array_is_reported_as_missing(tmp_path):
    """Not as an unreadable one: `DataError` is a ValueError, which numpy also raises."""
    with pytest.raises(DataError, match=r"a\.ds does not exist"):
        open_shard(tmp_path / "a.ds")

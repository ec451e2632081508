"""Chats: templates as transformers renders them, answers as targets, and shards with conditions."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner, decoders, models, pre_tokenizers

from gidd.data import Tokenizer, prepare, train_tokenizer, verify
from gidd.data.chat import answer_end, encode_chat, parse_chat, render
from gidd.data.loading.loader import BatchSource, LoaderConfig, open_split
from gidd.errors import DataError

HEADER = "'<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n'"
HEADERS = (  # Llama 3, LLaDA
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    f"{{{{ {HEADER} + m['content'] | trim + '<|eot_id|>' }}}}{{% endfor %}}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
ALTERNATE = (
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama3": HEADERS,
    "llada": HEADERS,
    "gemma": (
        "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "\n"
        "    {%- set role = 'model' if m.role == 'assistant' else m.role -%}\n"
        "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m.role == 'user' %}"
        "{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role == 'assistant' %}"
        "{% generation %}{{ ' ' + m.content }}{% endgeneration %}{{ eos_token }}{% endif %}"
        "{% endfor %}"
    ),
}
ENDS = {"chatml": "<|im_end|>", "gemma": "<end_of_turn>", "mistral": "</s>"}
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>"]
SPECIAL += ["<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"]
CHAT = [
    {"role": "user", "content": " Add 2 and 3. "},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "Écris 'deux'."},
    {"role": "assistant", "content": "deux\n<b>"},
]


def fast_tokenizer(template):
    transformers = pytest.importorskip("transformers", reason="needs `pip install gidd[hf]`")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = template
    return fast


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_rendered_as_by_transformers(name, tmp_path):
    fast = fast_tokenizer(TEMPLATES[name])
    fast.save_pretrained(tmp_path / "theirs")
    own = Tokenizer.load(tmp_path / "theirs")
    own.save(tmp_path / "ours")
    for tokenizer in (Tokenizer(fast), own, Tokenizer.load(tmp_path / "ours")):
        for length in range(1, 5):
            for prompt in (False, True):
                expected = fast.apply_chat_template(
                    CHAT[:length], tokenize=False, add_generation_prompt=prompt
                )
                found = render(tokenizer, CHAT[:length], add_generation_prompt=prompt)
                assert found == expected
        tokens, given = encode_chat(tokenizer, CHAT)
        whole = fast(fast.apply_chat_template(CHAT, tokenize=False), add_special_tokens=False)
        assert tokens[: len(whole["input_ids"])] == whole["input_ids"]
        assert tokens[-1] == tokenizer.end_id
        answers = tokenizer.decode(np.array(tokens)[~np.array(given)].tolist())
        assert "5" in answers and "deux\n<b>" in answers and "Add" not in answers
        assert answer_end(tokenizer) == ENDS.get(name, "<|eot_id|>")


def test_a_template_cannot_reach_anything(tmp_path):
    fast = fast_tokenizer("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(DataError, match="chat template"):
        render(Tokenizer(fast), CHAT)
    with pytest.raises(DataError, match="not valid"):
        render(Tokenizer(fast_tokenizer("{% for")), CHAT)
    with pytest.raises(DataError, match="alternate"):
        render(Tokenizer(fast_tokenizer(TEMPLATES["gemma"])), CHAT[1:])


def test_names_of_special_tokens_in_messages_are_refused():
    tokenizer = Tokenizer(fast_tokenizer(TEMPLATES["chatml"]))
    chat = [{"role": "user", "content": "hi<|im_end|>"}, {"role": "assistant", "content": "ho"}]
    with pytest.raises(DataError, match=r"<\|im_end\|>"):
        encode_chat(tokenizer, chat)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: not JSON"),
        ('{"prompt": "a"}', "line 3: a chat must be written"),
        ('{"messages": []}', "messages must be a list of messages, got \\[\\]"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "role .*system, user, assistant"),
        ('{"prompt": "a", "response": 5}', "string as content, got .*5"),
    ],
)
def test_a_wrong_line_is_named(line, message):
    with pytest.raises(DataError, match=message):
        parse_chat(line, "chats.jsonl, line 3")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["User: 12 + 3\nAssistant: 15", "Be brief."], 270)


def test_a_chat_that_ends_with_a_question_is_refused(tokenizer):
    with pytest.raises(DataError, match="last message must be an answer"):
        encode_chat(tokenizer, CHAT[:3])


def test_shards_keep_the_condition(tokenizer, tmp_path):
    pairs = [{"prompt": f"{i} + 3", "response": f"{i + 3}"} for i in range(30)]
    pairs[7] = {"messages": CHAT}
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, pairs)))
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        prepare([path], tokenizer, out, validation=3, format="chat", workers=workers, quiet=True)
        verify(out)
    names = [p.relative_to(tmp_path / "out1") for p in (tmp_path / "out1").rglob("*.ds.given")]
    assert names and all(
        (tmp_path / "out1" / n).read_bytes() == (tmp_path / "out2" / n).read_bytes() for n in names
    )
    split = open_split(tmp_path / "out1")
    assert split.has_given
    config = LoaderConfig(
        global_batch=27, length=24, pad_id=tokenizer.end_id, vocab_size=270, shuffle=False
    )
    arrays = BatchSource(split, config)[0]
    for number, pair in enumerate(pairs[:27]):
        tokens, given, valid = (arrays[name][number] for name in ("tokens", "given", "valid"))
        if number == 7:  # too long: its last tokens
            assert valid.all() and tokens[-1] == tokenizer.end_id
            assert tokenizer.decode(tokens[-9:-1]) == "deux\n<b>"
            continue
        assert tokenizer.decode(tokens[given]) == f"User: {pair['prompt']}\nAssistant:"
        answer = tokens[valid & ~given]
        assert tokenizer.decode(answer[:-1]) == f" {pair['response']}"
        assert answer[-1] == tokenizer.end_id and (tokens[~valid] == tokenizer.end_id).all()


def test_a_damaged_condition_is_found(tokenizer, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"prompt": "1", "response": "2"}))
    prepare([path], tokenizer, tmp_path / "out", format="chat", quiet=True)
    (file,) = (tmp_path / "out").rglob("*.given")
    given = np.fromfile(file, dtype=np.uint8)
    file.write_bytes((1 - given).tobytes())
    with pytest.raises(DataError, match="given"):
        verify(tmp_path / "out")


def test_chats_are_json_lines(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"a\.txt.*JSON lines"):
        prepare([tmp_path / "a.txt"], tokenizer, tmp_path / "out", format="chat", quiet=True)

"""Chats: templates as transformers renders them, answers as targets, and shards with conditions."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from support.tokenizer_kinds import byte_level_bpe
from tokenizers import AddedToken, Tokenizer as Inner, decoders, models, normalizers, pre_tokenizers

from gidd.data import Tokenizer, chat as chat_module, prepare, train_tokenizer, verify
from gidd.data.chat import answer_end, encode_chat, parse_chat, render
from gidd.data.loading.loader import BatchSource, LoaderConfig, open_split
from gidd.data.tokenizers import byte_level, train_characters
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


FIELDS = {
    "system": lambda name: [{"role": "system", "content": f"a {name}"}, *CHAT[:2]],
    "question": lambda name: [{"role": "user", "content": f"hi{name}"}, CHAT[1]],
    "answer": lambda name: [*CHAT[:3], {"role": "assistant", "content": f"5 {name} 6"}],
    "earlier answer": lambda name: [CHAT[0], {"role": "assistant", "content": name}, *CHAT[2:]],
    "other field": lambda name: [CHAT[0] | {"name": name}, CHAT[1]],
    "nested field": lambda name: [CHAT[0], CHAT[1] | {"calls": [{"to": [name]}]}],
    "key": lambda name: [CHAT[0] | {"other": {name: 1}}, CHAT[1]],
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", ["<|im_end|>", "</s>", "[MASK]"])
def test_names_of_special_tokens_are_refused_in_every_field(field, name):
    tokenizer = Tokenizer(fast_tokenizer(TEMPLATES["chatml"]))
    number = 4 if field == "answer" else 2 if field in ("earlier answer", "nested field") else 1
    encode_chat(tokenizer, FIELDS[field]("name"))
    with pytest.raises(DataError, match=rf"line 3: message {number} .*{re.escape(name)}"):
        encode_chat(tokenizer, FIELDS[field](name), "chats.jsonl, line 3")


def test_text_that_a_tokenizer_changes_into_a_special_token_is_refused():
    wide = [CHAT[0], {"role": "assistant", "content": "\uff3bMASK\uff3d"}]  # becomes [MASK]
    with pytest.raises(DataError, match=r"message 2.*\[MASK\]"):
        encode_chat(train_characters(["[MASK] User: assistant"]), wide)
    inner = byte_level_bpe()
    inner.normalizer = normalizers.Lowercase()
    inner.add_special_tokens([AddedToken("<|end|>", normalized=True)])
    loud = [{"role": "user", "content": "<|END|>"}, CHAT[1]]
    with pytest.raises(DataError, match=r"message 1.*<\|end\|>"):
        encode_chat(Tokenizer(inner), loud)


def test_a_template_that_writes_the_mask_is_refused():
    joined = "{% for m in messages %}{{ m.content }}{% endfor %}"
    halves = [*({"role": "user", "content": half} for half in ("[MA", "SK]")), CHAT[1]]
    for template, chat in ((joined, halves), ("[MASK]" + joined, CHAT)):
        with pytest.raises(DataError, match=r"line 3.*template.*\[MASK\]"):
            encode_chat(Tokenizer(fast_tokenizer(template)), chat, "line 3")


def test_a_template_that_is_nested_too_deeply_is_refused():
    template = "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"
    with pytest.raises(DataError, match="chat template is not valid"):
        render(Tokenizer(byte_level_bpe(), chat_template=template), CHAT)


ROUNDS = (  # ChatGLM: a turn depends on those before it
    "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index0 // 2 }}] {% endif %}"
    "{{ m.content }}</s>{% endfor %}"
)


@pytest.fixture
def rendered(monkeypatch):
    """The number of messages of each time that a chat is rendered."""
    numbers, plain = [], chat_module.render

    def count(tokenizer, messages, **options):
        numbers.append(len(messages))
        return plain(tokenizer, messages, **options)

    monkeypatch.setattr(chat_module, "render", count)
    return numbers


@pytest.mark.parametrize("name", [*TEMPLATES, "default", "rounds"])
def test_a_chat_is_encoded_by_turns_as_by_all_messages_before(name, rendered, monkeypatch):
    """Every answer rendered all messages before it: the square of their number."""
    template = {"rounds": ROUNDS, "default": None, **TEMPLATES}[name]
    tokenizer, work = Tokenizer(fast_tokenizer(template)), list[int]()
    system = [] if name in ("gemma", "mistral") else [{"role": "system", "content": "Be brief."}]
    for turns in (10, 20, 40):
        rendered.clear()
        found = encode_chat(tokenizer, [*system, *CHAT * turns])
        work.append(sum(rendered))
        with monkeypatch.context() as patch:
            patch.setattr(chat_module, "_FEW_MESSAGES", 1000)
            assert encode_chat(tokenizer, [*system, *CHAT * turns]) == found
    is_linear = all(twice <= 2.1 * once for once, twice in pairwise(work))
    assert is_linear == (name != "rounds")


def test_the_messages_rendered_for_a_chat_are_limited(tokenizer, rendered, monkeypatch):
    """With a template whose turns depend on earlier ones, time grows as the square."""
    monkeypatch.setenv("GIDD_MAX_CHAT_MESSAGES", "40")
    with pytest.raises(DataError, match=r"line 3.*at most 40 messages, got 42"):
        encode_chat(tokenizer, [*CHAT * 10, *CHAT[:2]], "line 3")
    assert not rendered


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
        global_batch=27, length=24, pad_id=tokenizer.end_id, vocab_size=270, shuffle="none"
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


@pytest.mark.parametrize(
    ("characters", "what"), [(101, "message 1 must"), (60, "an answer, or what is before it, must")]
)
def test_what_is_encoded_at_once_is_limited(monkeypatch, characters, what):
    """Encoding takes more than a hundred times the memory of a text."""
    monkeypatch.setenv("GIDD_MAX_PIECE_CHARACTERS", "100")
    question = {"role": "user", "content": "a" * characters}
    with pytest.raises(DataError, match=what):
        encode_chat(byte_level(), [question, question, {"role": "assistant", "content": "b"}])

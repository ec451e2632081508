"""Answers to conversations: what is given, what may be written, and where an answer ends."""

import io
import json

import pytest
import torch
from support.sampling_worlds import random_denoiser
from tokenizers import Tokenizer as Inner, decoders, models, pre_tokenizers

import gidd
from gidd.cli import main
from gidd.data import Tokenizer, train_tokenizer
from gidd.data.chat import encode_chat, render_prompt
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.errors import ConfigError, DataError
from gidd.pipeline import Pipeline
from gidd.pipeline.chat import answer_end_of, is_chat_model

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role + '=' + m.content + ';;' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant=' }}{% endif %}"
)
SPECIAL = ["</s>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
CONTEXT = 160
HELLO = [{"role": "user", "content": "Hello"}]


def byte_tokenizer(template: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    return Tokenizer(inner, end="</s>", chat_template=template)


def chat_pipe(template: str = CHATML, p_uniform: float = 0.0, likely: str = "") -> Pipeline:
    """A model with random weights that writes the token `likely` at about a third of positions."""
    tokenizer = byte_tokenizer(template)
    vocab = tokenizer.vocab
    denoiser = random_denoiser(vocab, CONTEXT)
    with torch.no_grad():
        denoiser.backbone.head.weight *= 0.1
        if likely:
            denoiser.backbone.head.bias[tokenizer.encode_with_special(likely)[0]] += 5
    schedule = HybridSchedule(vocab, p_uniform) if p_uniform else MaskedSchedule(vocab)
    return Pipeline(denoiser, schedule, tokenizer, context=CONTEXT)


@pytest.mark.parametrize("block_length", [None, 4])
@pytest.mark.parametrize("p_uniform", [0.0, 0.3])
def test_all_tokens_of_the_prompt_are_given(p_uniform, block_length):
    pipe = chat_pipe(p_uniform=p_uniform)
    answered = [*HELLO, {"role": "assistant", "content": "Hi"}]
    messages = [{"role": "system", "content": "Be brief."}, *answered, *HELLO]
    ending = [*messages, {"role": "assistant", "content": "!"}]
    tokens, given = encode_chat(pipe.tokenizer, ending)
    start = len(given) - given[::-1].index(True)  # of the last answer
    seen = []

    def require_given(events):
        for event in events:
            assert list(event.tokens[:start]) == tokens[:start]
            seen.append(event)

    answer = pipe.chat(
        messages, max_tokens=9, steps=3, block_length=block_length, on_step=require_given
    )
    assert len(seen) >= 3 and list(answer.generation.trace.tokens[:start]) == tokens[:start]
    assert answer.generation.manifest["given"] == start and answer.num_dropped == 0
    assert answer.text == answer.generation.filled[0].strip()
    assert answer.messages == [*messages, {"role": "assistant", "content": answer.text}]
    again = pipe.chat(messages, max_tokens=9, steps=3, block_length=block_length)
    assert again.text == answer.text
    other = pipe.chat(messages, max_tokens=9, steps=3, block_length=block_length, seed=1)
    assert other.generation.trace.tokens != answer.generation.trace.tokens


@pytest.mark.parametrize("likely", ["<|im_start|>", "<|tool|>"])
def test_special_tokens_are_not_written_inside_an_answer(likely):
    pipe = chat_pipe(likely=likely)
    tokenizer = pipe.tokenizer
    (banned,) = tokenizer.encode_with_special(likely)
    answer = pipe.chat(HELLO, max_tokens=40, steps=2)
    generated = answer.generation.trace.tokens[-40:]
    assert banned not in generated and tokenizer.vocab.mask_id not in generated
    prompt = render_prompt(tokenizer, HELLO)
    text = pipe.decoder(answer.generation.trace.tokens)
    assert "".join(text).startswith(prompt)


@pytest.mark.parametrize("end", ["<|im_end|>", "</s>"])
def test_an_answer_ends_as_in_the_template(end):
    pipe = chat_pipe(likely=end)
    (end_id,) = pipe.tokenizer.encode_with_special(end)
    lengths = set()
    for seed in range(4):
        answer = pipe.chat(HELLO, max_tokens=40, steps=4, seed=seed)
        generated = answer.generation.trace.tokens[-40:]
        kept = generated[: generated.index(end_id)]
        assert answer.text == "".join(pipe.decoder(kept)).strip() and end not in answer.text
        lengths.add(len(kept))
    assert len(lengths) > 1


def test_blocks_end_early():
    """Forward passes are fewer than those of all tokens, and than those of all blocks."""
    pipe = chat_pipe(likely="<|im_end|>")
    for seed in range(3):
        whole = pipe.chat(HELLO, max_tokens=40, steps=8, seed=seed)
        blocks = pipe.chat(HELLO, max_tokens=40, steps=2, block_length=4, seed=seed)
        num_blocks = -(-(len(blocks.generation.tokens) - whole.generation.manifest["given"]) // 4)
        assert blocks.generation.forward_passes <= 2 * (num_blocks + 1) < 20
        assert len(blocks.generation.trace.tokens) < len(whole.generation.trace.tokens)


def test_an_end_that_is_no_special_token_is_a_stop_string():
    pipe = chat_pipe(PLAIN, likely=";")
    assert answer_end_of(pipe.tokenizer).strings == (";;",)
    assert answer_end_of(chat_pipe().tokenizer, ["x"]).strings == ("x",)
    answer = pipe.chat(HELLO, max_tokens=60, steps=2)
    generated = "".join(pipe.decoder(answer.generation.trace.tokens[-60:]))
    assert ";;" in generated and answer.text == generated.partition(";;")[0].strip()
    letter = answer.text.strip()[2]
    shorter = pipe.chat(HELLO, max_tokens=60, steps=2, stop=[letter])
    assert shorter.text == answer.text.partition(letter)[0].strip()


def conversation(turns: int) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": "Count."}]
    for i in range(turns):
        messages += [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": f"{i}!"}]
    return messages[:-1]


def test_the_oldest_turns_are_left_out():
    pipe = chat_pipe()
    encode = pipe.tokenizer.encode_with_special
    for turns in range(1, 8):
        messages = conversation(turns)
        answer = pipe.chat(messages, max_tokens=20, steps=1)
        assert answer.messages[:-1] == messages and answer.num_dropped % 2 == 0
        kept = [messages[0], *messages[1 + answer.num_dropped :]]
        prompt = encode(render_prompt(pipe.tokenizer, kept))
        assert list(answer.generation.trace.tokens[: len(prompt)]) == prompt
        assert len(answer.generation.trace.tokens) == len(prompt) + 20 <= CONTEXT
        if answer.num_dropped:  # one turn more would not fit
            more = [messages[0], *messages[answer.num_dropped - 1 :]]
            assert len(encode(render_prompt(pipe.tokenizer, more))) + 20 > CONTEXT
    assert answer.num_dropped > 0


def test_by_default_an_answer_has_what_fits():
    pipe = chat_pipe()
    answer = pipe.chat(HELLO, steps=1)
    assert len(answer.generation.trace.tokens) == CONTEXT
    long = [{"role": "user", "content": "a" * (CONTEXT - 30)}]
    tokens = pipe.chat(long, steps=1).generation.trace.tokens
    assert len(tokens) == CONTEXT
    with pytest.raises(DataError, match=f"context of {CONTEXT} tokens leaves after 229 given"):
        pipe.chat([{"role": "user", "content": "a" * 210}], steps=1)
    with pytest.raises(DataError, match=f"max_tokens must be at most 135.*{CONTEXT}.*got 150"):
        pipe.chat([{"role": "user", "content": "123456"}], max_tokens=150)


@pytest.mark.parametrize(
    ("messages", "settings", "error", "message"),
    [
        ([], {}, DataError, "list of messages"),
        ([{"role": "bot", "content": "a"}], {}, DataError, "role"),
        ([*HELLO, {"role": "assistant", "content": "a"}], {}, DataError, "last message must not"),
        ([{"role": "user", "content": "<|im_end|>"}], {}, DataError, r"special token <\|im_end"),
        (HELLO, {"max_tokens": 0}, ConfigError, "max_tokens must be an integer of at least 1"),
        (HELLO, {"seed": -1}, ConfigError, "seed must be"),
        (HELLO, {"stop": "a"}, ConfigError, "stop must be a list"),
        (HELLO, {"step": 3}, ConfigError, "chat.. has no option 'step'. Did you mean steps"),
    ],
)
def test_mistakes(messages, settings, error, message):
    with pytest.raises(error, match=message):
        chat_pipe().chat(messages, **settings)


def test_prompts_have_the_tokens_of_training():
    """Trained on pieces between answers, asked with the whole prompt."""
    words = ["User: 12 + 3\nAssistant: 15", "Be brief.", "It's – “ok”  fine\n\n now"]
    tokenizer = train_tokenizer(words, 290)
    messages = [{"role": "system", "content": "Be brief."}]
    for question, answer in (("12 + 3", "15"), (" It's ", "ok\n\n"), ("“fine” ", "now  ")):
        messages.append({"role": "user", "content": question})
        ending = [*messages, {"role": "assistant", "content": answer}]
        tokens, given = encode_chat(tokenizer, ending)
        prompt = tokenizer.encode_with_special(render_prompt(tokenizer, messages))
        assert tokens[: len(prompt)] == prompt and given[len(prompt) - 1] and not given[len(prompt)]
        messages = ending


WORDS = ["zero", "one", "two", "three", "four"]


@pytest.fixture(scope="module")
def counting(tmp_path_factory) -> Pipeline:
    """A model that has learnt to answer a digit with its name."""
    folder = tmp_path_factory.mktemp("counting")
    pairs = [{"prompt": str(i), "response": word} for i, word in enumerate(WORDS)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    torch.set_num_threads(1)
    pipe = gidd.train(
        folder / "run",
        data=folder / "chats.jsonl",
        format="chat",
        tokenizer=280,
        model=gidd.component("backbone", "dit", width=64, num_layers=2, num_heads=2, time_width=16),
        schedule="masked",
        steps=250,
        length=16,
        learning_rate=3e-3,
        global_batch=20,
        validation=0,
        evaluate_samples=1,
        generate_samples=0,
        autocast=False,
        device="cpu",
        quiet=True,
    )
    pipe.save(folder / "model")
    return gidd.from_pretrained(folder / "model", device="cpu")


@pytest.mark.slow
def test_a_model_trained_on_chats_answers(counting, capsys, monkeypatch):
    assert counting.source["data"] == {"format": "chat", "padding": "learned"}
    assert is_chat_model(counting) and not is_chat_model(chat_pipe(""))
    for digit, word in enumerate(WORDS):
        asked = [{"role": "user", "content": str(digit)}]
        for settings in ({}, {"block_length": 8}):
            answer = counting.chat(asked, steps=8, temperature=0.0, **settings)
            assert answer.text == word
    questions = b"3\n\n1\r\n4\n"
    words = ["chat", counting.source["name"], "--steps", "8", "--temperature", "0"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(questions)))
    main([*words, "--device", "cpu"])
    out, err = capsys.readouterr()
    assert out == "three\none\nfour\n"
    assert err.count("gidd: the oldest") == 2 == err.count("\n")

"""Patterns and JSON Schemas: automata and samples are what `re` and `jsonschema` accept."""

import json
import random
import re

import pytest
import torch
from support.cases import few
from support.small_model import write_model

import gidd
from gidd.errors import ConfigError, DataError
from gidd.pipeline.json_schema import schema_pattern
from gidd.pipeline.patterns import TokenTexts, compile_pattern
from gidd.sampling.automaton import MAX_EDGES

TEXTS = ["a", "b", "c", "ab", "bc", " a", " ", "0", "aa", "\n", "é"]


class Texts(TokenTexts):
    """Any texts of tokens; the last token is the mask."""

    def __init__(self, texts=TEXTS, *, drops_space: bool = False) -> None:
        self.size, self.texts = len(texts) + 1, dict(enumerate(texts))
        self.alphabet = "".join(sorted(set("".join(texts))))
        self.drops_space = drops_space


def random_pattern(rng: random.Random, depth: int) -> str:
    leaves = [
        "a",
        "b",
        "c",
        "[ab]",
        "[^a]",
        ".",
        r"\d",
        r"\w",
        r"\S",
        "ab",
        " ",
        "[a-c0]",
        r"[^\w]",
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    inner = random_pattern(rng, min(depth - 1, 1))  # `re` takes exponential time for deeper ones
    least = rng.randint(0, 3)
    return rng.choice(
        [
            inner + random_pattern(rng, depth - 1),
            f"(?:{inner}|{random_pattern(rng, depth - 1)})",
            f"({inner})*",
            f"(?:{inner})+?",
            f"({inner})?",
            f"({inner}){{{least},{least + rng.randint(0, 3)}}}",
            f"({inner}){{{least},}}",
        ]
    )


@pytest.mark.parametrize("seed", few(range(5), every=5))
def test_an_automaton_accepts_what_the_expression_matches(seed):
    """200 random expressions in CI, 1,000 at night."""
    rng, num_matches, num_texts = random.Random(seed), 0, 0
    for drops_space in (False, True):
        texts = Texts(drops_space=drops_space)
        for _ in range(100):
            pattern = random_pattern(rng, 4)
            automaton = compile_pattern(pattern, texts, at_start=drops_space)
            for _ in range(30):
                tokens = [rng.randrange(len(TEXTS)) for _ in range(rng.randint(0, 5))]
                state = automaton.state_after(tokens)
                is_accepted = state is not None and bool(automaton.is_accepting[state])
                text = "".join(TEXTS[token] for token in tokens)
                text = text[drops_space and text[:1] == " " :]
                assert is_accepted == (re.fullmatch(pattern, text) is not None), (pattern, text)
                num_matches, num_texts = num_matches + is_accepted, num_texts + 1
    assert num_texts / 20 < num_matches < num_texts / 1.1


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a{1000}){1000}", "too large"),
        ("((a{100}){100}){100}", "too large"),
        ("(a|b)*a(a|b){20}", "too large"),
        ("(.{1,200}){1,200}", "too large"),
        ("(){4000000000}", "too large"),
        ("(a{0}){4000000000}", "too large"),
        ("(.*)*a.{16}", "too large"),
        ("(" * 2000 + ")" * 2000, "parentheses"),
        ("(?=a)b", "lookahead"),
        (r"a\b", "anchor"),
        ("a$b", "anchor"),
        (r"(a)\1", "reference"),
        ("(?i:a)", "flag"),
        ("(?s)a", "flag"),
        ("a*+", "possessive"),
        ("(?>a)", "atomic"),
        ("[", "unterminated"),
        ("a{3,2}", "min repeat"),
        ("", "1 to 20,000 characters"),
        ("a" * 20_001, "1 to 20,000 characters"),
    ],
)
def test_what_no_small_automaton_recognizes_is_refused(pattern, words):
    """By its size, before or while the automaton is built; no clock is asked."""
    with pytest.raises(ConfigError, match=words):
        compile_pattern(pattern, Texts())


def test_an_automaton_has_a_limited_number_of_edges():
    texts = Texts([chr(97 + i % 26) * (i // 26 + 1) for i in range(26 * 50)])
    assert len(compile_pattern("[a-z]{0,1000}", texts).edges) < MAX_EDGES
    with pytest.raises(ConfigError, match="too large"):
        compile_pattern("|".join(f"{chr(97 + i)}{{0,190}}" for i in range(26)), texts)


def test_anchors_around_the_whole_expression_change_nothing():
    for pattern in ("^ab$", r"\Aab\Z", "^ab", "ab$"):
        automaton = compile_pattern(pattern, Texts())
        assert automaton.is_accepting[automaton.state_after([3])]


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "age": {"type": "integer", "minimum": 1, "maximum": 20},
        "tags": {"type": "array", "items": {"enum": ["a", None]}, "maxItems": 2},
    },
    "required": ["age"],
    "additionalProperties": False,
}
NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "valid", "other"),
    [
        (PERSON, ['{"age": 7}', '{"name": "Tom", "age":7, "tags": ["a",null]}'], ['{"age": 21}']),
        (PERSON, ['{"age": 7,"tags":[]}'], ["{}", '{"name":"","age":1}', '{"age": 7, }']),
        (NODE, ['{"value":1,"next":{"value":2,"next":null}}'], ['{"value":1}']),
        ({"type": "string", "maxLength": 2}, ['"é\\n"', '""'], ['"abc"', '"\n"', '"""']),
        ({"type": ["number", "null"]}, ["-1.5e-3", "null", "0"], ["01", "1.", "nul", "+1"]),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1}, ["[true, false]"], ["[]"]),
        ({"type": "object"}, ['{"a": {"b": 1}, "c": [null]}', "{}"], ["[]"]),
        ({"additionalProperties": {"const": 1}, "type": "object"}, ['{"x":1}'], ['{"x":2}']),
        ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
        (True, ["[1, null]", "2"], ["a"]),
    ],
)
def test_the_pattern_of_a_schema(schema, valid, other):
    pattern = schema_pattern(schema)
    for text in valid:
        assert re.fullmatch(pattern, text), text
    for text in other:
        assert not re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "format": "date"}, "format"),
        ({"type": "string", "pattern": "a"}, "pattern"),
        ({"oneOf": [{"type": "null"}]}, "oneOf"),
        ({"type": "integer", "minimum": 0}, "minimum"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "maxItems"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
        ({"anyOf": [{"type": "null"}], "type": "string"}, "type"),
        ({"$ref": "#/a"}, "#/a"),
        ({"$ref": "https://example.org/a.json"}, r"\$ref"),
        ({"$ref": "#"}, "5 objects"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "5 objects"),
        ({"type": "text"}, "type"),
        ({"enum": []}, "enum"),
        ({"enum": ["a" * 30_000]}, "characters"),
        ({"type": "string", "maxLength": 10**9}, "too large"),
        (False, "schema must be an object"),
        ({"a": {1, 2}}, "schema must be a JSON Schema"),
        (
            {
                "anyOf": [
                    {"type": "object", "properties": {f"{i}": {"$ref": "#"} for i in range(9)}},
                ]
            },
            "too large",
        ),
    ],
)
def test_schemas_that_are_refused(schema, words):
    with pytest.raises(ConfigError, match=words):
        schema_pattern(schema)


def schemas(strategies):
    """Schemas of what is supported, nested up to 3 deep."""
    st = strategies
    names = st.text('abc é"\\', min_size=1, max_size=3)
    values = st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\é\n', max_size=4)
    counts = st.integers(0, 2).flatmap(
        lambda n: st.integers(n, 4).map(lambda m: {"least": n, "most": m})
    )
    leaves = (
        st.sampled_from(["number", "integer", "boolean", "null", "string"]).map(
            lambda kind: {"type": kind}
        )
        | st.lists(values, min_size=1, max_size=3).map(lambda v: {"enum": v})
        | values.map(lambda v: {"const": v})
        | st.integers(-5, 5).map(lambda n: {"type": "integer", "minimum": n, "maximum": n + 9})
        | counts.map(lambda c: {"type": "string", "minLength": c["least"], "maxLength": c["most"]})
    )

    def nested(inner):
        objects = st.dictionaries(names, inner, max_size=3).flatmap(
            lambda properties: (
                st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                    lambda required: {
                        "type": "object",
                        "properties": properties,
                        "required": required,
                        "additionalProperties": False,
                    }
                )
                if properties
                else st.just({"type": "object", "additionalProperties": False})
            )
        )
        arrays = st.tuples(inner, counts).map(
            lambda pair: {
                "type": "array",
                "items": pair[0],
                "minItems": pair[1]["least"],
                "maxItems": pair[1]["most"],
            }
        )
        return (
            objects | arrays | st.lists(inner, min_size=1, max_size=3).map(lambda v: {"anyOf": v})
        )

    return st.recursive(leaves, nested, max_leaves=5)


def random_match(rng: random.Random, automaton, texts: TokenTexts) -> str | None:
    """A random text that an automaton accepts; None if the walk is longer than 80 tokens."""
    moves: dict[int, list[tuple[int, int]]] = {}
    for state, label, target in automaton.edges.tolist():
        moves.setdefault(state, []).append((label, target))
    members: dict[int, list[int]] = {}
    for token in texts.texts:
        members.setdefault(int(automaton.token_class[token]), []).append(token)
    state, text = 0, ""
    for _ in range(80):
        is_end = bool(automaton.is_accepting[state])
        if state not in moves or (is_end and rng.random() < 0.3):
            return text if is_end else None
        label, state = rng.choice(moves[state])
        text += texts.texts[rng.choice(members[label])]
    return None


def test_what_the_pattern_of_a_schema_accepts_is_valid():
    """300 random schemas at night: what the automaton accepts, `jsonschema` accepts."""
    hypothesis = pytest.importorskip("hypothesis")
    validate = pytest.importorskip("jsonschema").validate
    texts = Texts(
        list(json.dumps({"é": [-1.5e9, True, False, None]}, ensure_ascii=False))
        + [*"234567890abcénrtbfx \\/", '", "', '": ', "\n", "true"]
    )
    num_texts = [0, 0]

    @hypothesis.given(schemas(hypothesis.strategies), hypothesis.strategies.integers(0, 2**32))
    def accepted_is_valid(schema, seed):
        automaton = compile_pattern(schema_pattern(schema), texts)
        rng = random.Random(seed)
        for _ in range(4):
            text = random_match(rng, automaton, texts)
            num_texts[text is not None] += 1
            if text is not None:
                validate(json.loads(text), schema)

    accepted_is_valid()
    assert num_texts[1] > 20


# samples


@pytest.fixture(scope="module")
def pipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        p_uniform: gidd.from_pretrained(
            write_model(folder / str(p_uniform), p_uniform=p_uniform, context=64), device="cpu"
        )
        for p_uniform in (0.0, 0.2)
    }


CASES = [
    {"pattern": r"[a-e]{2,6}( [f-j]+)?", "max_tokens": 12},
    {"pattern": "and( all)*", "prompt": "Peace ", "max_tokens": 16},
    {"pattern": "[a-c]+", "suffix": " end.", "max_tokens": 5},
    {"pattern": "(ab|cd){1,4}", "prompt": "Peace ", "max_tokens": 9, "block_length": 3},
    {"schema": {"enum": ["yes", "no"]}, "max_tokens": 20},
    {"schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "max_tokens": 24},
]


@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
@pytest.mark.parametrize("case", few(CASES, every=1))
def test_samples_match(pipes, p_uniform, case):
    pipe = pipes[p_uniform]
    case = dict(case)
    pattern = case.get("pattern") or schema_pattern(case["schema"])
    sampler = "ancestral" if "block_length" in case else "threshold"
    for generation in pipe.generate(n=4, steps=3, sampler=sampler, **case):
        assert re.fullmatch(pattern, generation.filled[0]), generation.filled
    free = {k: v for k, v in case.items() if k not in ("pattern", "schema")}
    for generation in pipe.generate(n=4, steps=3, sampler=sampler, **free):
        assert not re.fullmatch(pattern, generation.filled[0]), generation.filled


def test_blanks_of_a_template_match(pipes):
    template, pattern = "Pe[MASK:4]e al[MASK:3].", {0: "[a-c]{3,6}", 1: "(xy|z)*"}
    (generation,) = pipes[0.2].infill(template, pattern=pattern, steps=3)
    for text, written in zip(generation.filled, pattern.values(), strict=True):
        assert re.fullmatch(written, text)
    with pytest.raises(ConfigError, match="blank 0 must have choices or a pattern"):
        pipes[0.2].infill(template, pattern={0: "a"}, choices={0: ["a"]})
    with pytest.raises(DataError, match="a text in 3 tokens"):
        pipes[0.2].infill(template, pattern={1: "x"})


def test_the_automaton_is_kept_between_requests(pipes):
    pipe = pipes[0.2]
    before = pipe.automaton.cache_info()
    for seed in range(3):
        pipe.generate(pattern="kept [ab]", max_tokens=10, steps=1, seed=seed)
    after = pipe.automaton.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)


def test_log_probabilities_are_those_of_the_prediction_before_the_first_step(pipes):
    """Of two texts of three tokens each, by hand from x_theta at time 1."""
    pipe = pipes[0.0]
    options = {"prompt": "Peace", "max_tokens": 3, "suffix": ".", "steps": 2}
    (generation,) = pipe.generate(pattern="abc|xyz", confidence=True, **options)
    texts = [tuple(pipe.decoder.encode(text, "a text", starts=False)) for text in ("abc", "xyz")]
    given = pipe.decoder.encode("Peace", "the prompt")
    mask = pipe.schedule.vocab.mask_id
    end = pipe.decoder.encode(".", "the suffix", starts=False)
    z = torch.tensor([[*given, mask, mask, mask, *end]])
    with torch.no_grad():
        hidden = pipe.network.hidden(z, torch.ones(1, dtype=torch.float64))
        p = pipe.network.distribution(hidden)[0, len(given) : len(given) + 3].double()
    p[:, sorted(pipe.tokenizer.terminator_ids | pipe.tokenizer.unknown_ids)] = 0
    p /= p.sum(-1, keepdim=True)
    log_p = torch.stack([p[range(3), list(text)].log().sum() for text in texts])
    index = ["abc", "xyz"].index(generation.filled[0])
    assert generation.log_constraint == pytest.approx(float(log_p.logsumexp(0)), abs=1e-4)
    assert generation.log_probability == pytest.approx(float(log_p.log_softmax(0)[index]), abs=1e-4)
    (by_text,) = pipe.choice_probabilities("Peace[MASK:3].", ["abc", "xyz"])
    assert list(by_text.values()) == pytest.approx(log_p.softmax(0).tolist(), abs=1e-4)
    assert pipe.generate(pattern="abc|xyz", **options)[0].log_probability is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pattern": "a", "schema": {}}, "pattern must be omitted with schema"),
        ({"pattern": "a", "stop": ["b"]}, "stop must be empty with a pattern"),
        ({"schema": {}, "stop": ["b"]}, "stop must be empty with a schema"),
        ({"pattern": 3}, "pattern must be"),
        ({"pattern": "("}, "pattern"),
        ({"schema": "{}"}, "schema"),
    ],
)
def test_wrong_patterns_are_refused(pipes, settings, words):
    with pytest.raises(ConfigError, match=words):
        pipes[0.2].generate(**settings)


def test_a_text_that_cannot_fit_is_refused(pipes):
    with pytest.raises(DataError, match="the pattern .* must accept a text in 3 tokens"):
        pipes[0.2].generate(pattern="abcdefgh", max_tokens=3)

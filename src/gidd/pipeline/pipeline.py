"""The pipeline: generate, chat, infill, correct and score text with a trained model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, overload

import torch

import gidd
from gidd.common.config.allowed import SEED, integer, require_allowed, require_arguments
from gidd.common.devices import resolve_device
from gidd.data.chat import Messages
from gidd.data.tokenizers import FastTokenizer, Tokenizer, as_tokenizer
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.error_rate import can_score_visible_tokens
from gidd.diffusion.likelihood import NUM_NODES, TOKENS_PER_BATCH, NelboEstimator, RankGroup
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.models import Denoiser, push_to_hub, save
from gidd.pipeline.chat import ChatAnswer, build_chat_request
from gidd.pipeline.correct import (
    CorrectSettings,
    OnCharacters,
    correct_texts,
    self_correct,
    windows_to_correct,
)
from gidd.pipeline.defaults import Examples, write_defaults
from gidd.pipeline.generate import (
    TextStream,
    build_constraints,
    build_requests,
    choice_probabilities,
    compile_automaton,
    constrained_text,
    pattern_of,
    require_no_blocks,
    run_requests,
)
from gidd.pipeline.noise_level import OnForwardPassesDone, estimate_noise, read_frequencies
from gidd.pipeline.options import (
    CorrectionOptions,
    LikelihoodOptions,
    SamplingOptions,
    SelfCorrectionOptions,
    WrongTokens,
    no_count_at,
    with_changes,
)
from gidd.pipeline.patterns import TokenTexts
from gidd.pipeline.precision import (
    Precision,
    choose_precision,
    in_precision,
    share_weights,
    with_float32_head,
)
from gidd.pipeline.results import (
    Correction,
    Generation,
    NoiseLevel,
    ResultManifest,
    Scores,
    SelfCorrection,
    describe_schedule,
)
from gidd.pipeline.score import TokenProbability, score_texts, token_probabilities
from gidd.pipeline.text import Span, TokenDecoder, ban_unwritten_tokens, require_stop, require_text
from gidd.sampling import (
    Automaton,
    CachedFeatures,
    Constraint,
    OnStep,
    Plan,
    Processor,
    Request,
    RequireAt,
    Session,
    Tokens,
    WindowReader,
    parse_template,
    run_sync,
)
from gidd.sampling.request import prompt as with_blanks

_CORRECTION = SelfCorrectionOptions()
_LIKELIHOOD = LikelihoodOptions()
_BLOCK_LENGTH = 32
"""Tokens of a block of a stream."""

_KEPT_AUTOMATA = 128
"""Patterns whose automata are kept."""

_LENGTHS = 64
"""Sequences are padded to a multiple of this many tokens, if a forward pass has several."""

_MAX_DEFAULT_LENGTH = 2048
"""The context of a model can be far longer than what a user expects to wait for."""

_Result = TypeVar("_Result", Generation, Correction, SelfCorrection, Scores)


def _rebuild(settings: dict[str, Any]) -> "Pipeline":
    return Pipeline(**settings)


class Pipeline:
    """A denoiser with its noise schedule, tokenizer and engine; `gidd.from_pretrained` loads one.

    Samples are bit-identical alone and in a batch, as long as device, precision and `batch_size`
    are the same.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        tokenizer: Tokenizer | FastTokenizer,
        *,
        context: int,
        device: torch.device | str = "cpu",
        precision: Precision | None = None,
        batch_size: int | None = None,
        source: dict[str, Any] | None = None,
        notes: Sequence[str] = (),
        times: tuple[float, float] = (TRAINING_EPS, 1 - TRAINING_EPS),
        sampling: SamplingOptions | None = None,
        correction: CorrectionOptions | None = None,
        examples: Examples | None = None,
        block_lengths: tuple[int, ...] = (),
    ) -> None:
        self.device = resolve_device(device)
        self.denoiser = share_weights(denoiser)
        """The model in evaluation mode, with the weights of the given one; a GPU has a copy."""
        self.schedule, self.tokenizer, self.context = schedule, as_tokenizer(tokenizer), context
        self.decoder = TokenDecoder(self.tokenizer)
        self.precision: Precision = choose_precision(precision, self.device)
        self.source, self.notes = source or {}, tuple(notes)
        self.times = times
        """The smallest and the largest time that the network was trained with."""
        self.sampling = sampling or SamplingOptions()
        """Sampling options that the model recommends: used where none are given, and saved."""
        self.correction = correction or CorrectionOptions()
        """Options of `correct` that the model recommends: used where none are given, and saved."""
        self.examples = examples or Examples()
        """Texts that show what the model does; saved."""
        self.block_lengths = block_lengths
        """Lengths of the blocks that the network was trained with, if it was trained in blocks."""
        default = 1 if self.device.type == "cpu" else 16
        rows = default if batch_size is None else batch_size
        self._network = in_precision(self.denoiser, self.precision, self.device)
        uses_time = getattr(denoiser.backbone, "uses_time", True)
        self.network = self._network if uses_time else CachedFeatures(self._network)
        accepts_padding = bool(getattr(self.network, "accepts_padding", False))
        self.session = Session(
            self.network,
            schedule,
            batch_size=rows,
            pad_to_multiple_of=_LENGTHS if rows > 1 and accepts_padding else 1,
            max_length=context,
            block_lengths=block_lengths,
            device=self.device,
        )
        self.canvas_length: int | None = getattr(
            getattr(denoiser.backbone, "config", None), "canvas_length", None
        )
        """Tokens that the network predicts together, if it predicts a sequence in canvases: `score`
        is given all tokens before a canvas."""
        self.default_block_length = next(iter(block_lengths), self.canvas_length)
        """The `block_length` of texts for which none is given; None: they are one block."""
        self.window: int = min(context, max(block_lengths, default=context))
        """Tokens that the network reads together at most: longer texts are read by windows."""
        self.automaton: Callable[..., Automaton] = lru_cache(_KEPT_AUTOMATA)(
            partial(compile_automaton, self)
        )
        """Returns the automaton of a pattern, and keeps it for further requests."""
        self.can_score_visible_tokens = can_score_visible_tokens(schedule)
        """Whether the network was trained with more noise than masking."""

    def __repr__(self) -> str:
        name = self.source.get("name", type(self.denoiser.backbone).__name__)
        noise = describe_schedule(self.schedule)
        settings = [f"{k} {v:g}" for k, v in noise.items() if isinstance(v, int | float)]
        return (
            f"<Pipeline {name}: {sum(p.numel() for p in self.denoiser.parameters()):,} parameters, "
            f"{' '.join([noise['kind'], 'noise', *settings])}, vocabulary of "
            f"{self.schedule.vocab.size:,} tokens, context of {self.context:,} tokens, "
            f"{self.device}, {self.precision}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the arguments: sessions have threads' locks."""
        return _rebuild, (self._arguments,)

    @property
    def _arguments(self) -> dict[str, Any]:
        names = ("denoiser", "schedule", "tokenizer", "context", "device", "precision")
        names = (*names, "source", "notes", "times", "sampling", "correction", "examples")
        names = (*names, "block_lengths")
        arguments = {name: getattr(self, name) for name in names}
        return arguments | {"batch_size": self.session.batch_size}

    def to(self, device: torch.device | str) -> "Pipeline":
        """Move the model to a device, such as "cuda:1", and return the pipeline itself.

        Precision and batch size stay as they are.
        """
        arguments = self._arguments
        arguments["device"] = device
        vars(self).update(vars(Pipeline(**arguments)))
        return self

    def __call__(
        self, prompt: str | Sequence[str] = "", **settings: Any
    ) -> list[Generation] | list[list[Generation]]:
        """Return `generate(prompt, **settings)`."""
        return self.generate(prompt, **settings)

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer to a folder that `gidd.from_pretrained` loads."""
        summary = {"source": self.source, "times": list(self.times)}
        summary |= {"block_lengths": list(self.block_lengths)} if self.block_lengths else {}
        save(folder, self.denoiser, self.schedule, summary)
        self.tokenizer.save(folder)
        write_defaults(Path(folder), self.sampling, self.correction, self.examples)

    def push_to_hub(self, name: str, *, private: bool = False) -> None:
        """Upload model and tokenizer to the Hugging Face hub as owner/name.

        Log in first, with `hf auth login` or the environment variable HF_TOKEN.
        """
        with TemporaryDirectory() as folder:
            self.save(folder)
            push_to_hub(name, folder, private=private)

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The texts of the tokens that a pattern may use."""
        return TokenTexts(self.decoder)

    def warm_up(self) -> None:
        """Compute the text of every token, which the first request would otherwise wait for."""
        ban_unwritten_tokens(self.schedule.vocab, self.decoder).allowed(self.device)

    @overload
    def generate(self, prompt: str = "", **settings: Any) -> list[Generation]: ...

    @overload
    def generate(self, prompt: Sequence[str], **settings: Any) -> list[list[Generation]]: ...

    @no_count_at(0)
    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        n: int = 1,
        suffix: str = "",
        length: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        pattern: str | None = None,
        schema: Mapping[str, Any] | None = None,
        seed: int = 0,
        start_index: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        confidence: bool = False,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> list[Generation] | list[list[Generation]]:
        """Return `n` texts that begin with `prompt` and end with `suffix`.

        For a list of prompts, return a list of `n` texts for each. They share forward passes, which
        changes no text.

        Args:
            prompt: Beginning of the texts, or a list of beginnings.
            n: Number of texts for each prompt, each with its own random numbers.
            suffix: End of every text. Without it, a text ends at its end-of-text token.
            length: Number of tokens, including prompt and suffix; by default the context of the
                model, but at most 2,048.
            max_tokens: Number of new tokens, in place of `length`.
            stop: Strings: a text ends before the first of them that is generated. In blocks
                (`block_length`) nothing is sampled after it; otherwise the result is cut.
            pattern: Regular expression that the new text matches as a whole. It may end before
                `max_tokens`, unless there is a suffix.
            schema: JSON Schema, in place of `pattern`: the new text is valid JSON of it.
            seed: With the index of a text, determines all its random numbers.
            start_index: Index of the first text; `generate(start_index=5)` returns the sixth
                text of `generate(n=6)`.
            plan: Custom plan of steps; replaces steps, sampler, corrector and correction.
            on_step: Called after each step of the batch.
            record_frames: Record the prediction before every step in `trace.frames`.
            confidence: Whether to compute `Generation.confidence`, which takes a forward pass per
                text (none for models trained with masking alone).
            processors: Further processors of x_theta, before those of the options, e.g.
                `gidd.sampling.LogitBias`.
            options: Sampling options; by default those that the model recommends.
            **changes: Fields of `options` to change, e.g. `steps=64, temperature=0.8`.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(prompts, list | tuple):
            raise ConfigError(f"prompt must be a string or a list of strings, got {prompt!r}.")
        require_stop(stop, suffix)
        pattern = pattern_of(pattern, schema, stop)
        ends = () if suffix else tuple(sorted(self.tokenizer.terminator_ids))
        options = with_changes(options or self.sampling, changes, self.generate)
        require_no_blocks(options.block_length if suffix else None, "a suffix")
        counts, requests = (n, seed, start_index), list[Request]()
        for text in prompts:
            tokens = self._with_blanks(length, max_tokens, text, suffix)
            constraints = constrained_text(self, tokens, ends, pattern)
            settings = options, plan, *counts, constraints, processors
            requests += build_requests(self, tokens, ends, *settings)
        is_whole = bool(suffix) or record_frames
        blocks = options.block_length or (None if is_whole else self.default_block_length)
        texts = self.run(
            requests,
            on_step=on_step,
            record_frames=record_frames,
            confidence=confidence,
            block_length=blocks,
            revise=options.revise,
            stop=stop,
        )
        if isinstance(prompt, str):
            return texts
        return [texts[i * n : (i + 1) * n] for i in range(len(prompts))]

    def stream(
        self,
        prompt: str = "",
        *,
        length: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        pattern: str | None = None,
        schema: Mapping[str, Any] | None = None,
        seed: int = 0,
        sample_index: int = 0,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> TextStream:
        """Sample one text in blocks, and return an iterator of its states after every step.

        `state.text` is the text as it is now, of which any token of the block may still change;
        `state.new` is what is finished since the state before. Together these are the text of
        `generate` with the same arguments, and so are the `pieces()` of the stream, one for each
        block. `block_length` is 32 unless it is given, or the canvas of a network that has one.
        """
        require_stop(stop)
        pattern = pattern_of(pattern, schema, stop)
        tokens = self._with_blanks(length, max_tokens, prompt)
        ends = tuple(sorted(self.tokenizer.terminator_ids))
        options = self._stream_options(options, changes, self.stream)
        constraints = constrained_text(self, tokens, ends, pattern)
        settings = options, None, 1, seed, sample_index, constraints, processors
        (request,) = build_requests(self, tokens, ends, *settings)
        block_length = options.block_length or len(tokens)
        return TextStream(self, request, block_length, stop)

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        pattern: str | None = None,
        schema: Mapping[str, Any] | None = None,
        on_step: OnStep | None = None,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> ChatAnswer:
        """Answer the last of some messages, such as [{"role": "user", "content": "2 + 3"}].

        The tokenizer's chat template writes the messages (a plain one if it has none); the answer
        ends as in the template, or at end-of-text. If the messages do not fit into the context,
        the oldest turns are left out, never a system message.

        Args:
            messages: Messages with the roles system (first, optional), user and assistant.
            max_tokens: Number of tokens that are sampled; by default what fits, at most 256. A
                model that was trained with `padding="learned"` fills the rest with end-of-text.
                With "ignored" (`pipe.source["data"]`) it takes the answer to have this length.
            seed: Random seed; another one gives another answer.
            stop: Texts before which the answer ends.
            pattern: Regular expression that the answer matches, without the space around it.
            schema: JSON Schema, in place of `pattern`.
            on_step: Called after each step.
            processors: Further processors of x_theta.
            options: Sampling options, by default those that the model recommends; with
                `block_length` nothing is sampled after the end.
            **changes: Fields of `options` to change, e.g. `steps=64, block_length=32`.
        """
        require_stop(stop)
        options = with_changes(options or self.sampling, changes, self.chat)
        settings = max_tokens, seed, stop, pattern, schema, options, processors
        request, stop, num_dropped = build_chat_request(self, messages, *settings)
        blocks = options.block_length or self.default_block_length
        (generation,) = self.run(
            [request], on_step=on_step, block_length=blocks, revise=options.revise, stop=stop
        )
        text = generation.filled[0].strip()
        return ChatAnswer(
            text=text,
            messages=[*messages, {"role": "assistant", "content": text}],
            num_dropped=num_dropped,
            generation=generation,
        )

    def stream_chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        pattern: str | None = None,
        schema: Mapping[str, Any] | None = None,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> TextStream:
        """Answer the last of some messages in blocks, and return an iterator of the states.

        Together its `pieces()` are the answer of `chat` with the same arguments, without the white
        space around it. For `block_length` see `stream`.
        """
        require_stop(stop)
        options = self._stream_options(options, changes, self.stream_chat)
        settings = max_tokens, seed, stop, pattern, schema, options, processors
        request, stop, _ = build_chat_request(self, messages, *settings)
        block_length = options.block_length or len(request.tokens)
        return TextStream(self, request, block_length, stop, is_answer=True)

    def _stream_options(
        self,
        options: SamplingOptions | None,
        changes: dict[str, Any],
        method: Callable[..., object],
    ) -> SamplingOptions:
        if options is None and self.sampling.block_length is None:
            changes = {"block_length": self.default_block_length or _BLOCK_LENGTH} | changes
        options = with_changes(options or self.sampling, changes, method)
        if options.revise:
            raise ConfigError(
                f"revise must be 0 in a stream, whose blocks do not change, got {options.revise}."
            )
        return options

    def _with_blanks(
        self, length: int | None, max_tokens: int | None, prompt: str, suffix: str = ""
    ) -> Tokens:
        before = self.decoder.encode(prompt, "the prompt")
        after = self.decoder.encode(suffix, "the suffix", starts=False)
        if max_tokens is not None:
            if length is not None:
                raise ConfigError(
                    f"max_tokens must be None if length is given, got {max_tokens} and {length}. "
                    "max_tokens counts new tokens, length also those of prompt and suffix."
                )
            length = self.length_with(max_tokens, len(before) + len(after))
        if length is None:
            length = min(self.context, _MAX_DEFAULT_LENGTH)
        return with_blanks(length, before, after)

    def length_with(self, max_tokens: int, num_given: int) -> int:
        """Return the length of a sample with this many new tokens; raise if it does not fit."""
        require_arguments(max_tokens=(max_tokens, integer(1, fix="It counts new tokens.")))
        if num_given + max_tokens > self.context and not self.block_lengths:
            raise DataError(
                f"max_tokens must be at most {max(0, self.context - num_given)}, which the model's "
                f"context of {self.context} tokens leaves after {num_given} given ones, got "
                f"{max_tokens}. Shorten the given text, or generate fewer tokens."
            )
        return num_given + max_tokens

    @no_count_at(1)
    def infill(
        self,
        template: str,
        *,
        n: int = 1,
        choices: Sequence[str] | Mapping[int, Sequence[str]] = MappingProxyType({}),
        pattern: str | Mapping[int, str] = "",
        seed: int = 0,
        start_index: int = 0,
        plan: Plan | None = None,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        confidence: bool = False,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> list[Generation]:
        """Return `n` texts with the blanks of a template such as "The capital of[MASK:3] is Paris".

        [MASK] stands for one token and [MASK:n] for n tokens; everything else is kept. The space
        before a blank is part of it, if tokens of the model begin with their space. `choices`
        are texts of which a blank becomes one: `choices=[" yes", " no"]` if there is one blank,
        else `choices={0: [" yes", " no"]}` by its index. `pattern` is a regular expression that a
        blank matches, or several by index. The other arguments are the same as for `generate`.
        """
        options = with_changes(options or self.sampling, changes, self.infill)
        require_no_blocks(options.block_length, "a template")
        if options.revise:
            raise ConfigError(f"revise must be 0 with a template, got {options.revise}.")
        template_tokens, processors, slots, _ = self._template(
            template, choices, pattern, processors
        )
        counts = n, seed, start_index
        settings = options, plan, *counts, slots, processors
        requests = build_requests(self, template_tokens, (), *settings)
        return self.run(
            requests, on_step=on_step, record_frames=record_frames, confidence=confidence
        )

    def choice_probabilities(
        self,
        template: str,
        choices: Sequence[str] | Mapping[int, Sequence[str]],
        *,
        processors: Sequence[Processor] = (),
        options: SamplingOptions | None = None,
        **changes: Any,
    ) -> list[dict[str, float]]:
        """Return the probability of each choice of a blank, for each blank with choices.

        They are computed from one prediction, before any blank is filled, in which the tokens of a
        choice are independent: of a blank of one token they are x_theta, normalised. The arguments
        are those of `infill`.
        """
        options = with_changes(options or self.sampling, changes, self.choice_probabilities)
        tokens, processors, slots, texts = self._template(template, choices, "", processors)
        (request,) = build_requests(self, tokens, (), options, None, 1, 0, 0, slots, processors)
        by_blank = choices if isinstance(choices, Mapping) else {0: choices}
        names = [list(by_blank[index]) for index in sorted(by_blank)]
        rows = run_sync(choice_probabilities(self, request, texts))
        return [dict(zip(texts, row, strict=True)) for texts, row in zip(names, rows, strict=True)]

    def _template(
        self,
        template: str,
        choices: Sequence[str] | Mapping[int, Sequence[str]],
        pattern: str | Mapping[int, str],
        processors: Sequence[Processor],
    ) -> tuple[Tokens, Sequence[Processor], tuple[Constraint, ...], list[list[tuple[int, ...]]]]:
        """Return the tokens of a template, processors, constraints, and the tokens of choices."""
        require_text(template, "a template")
        tokens, spaced = parse_template(
            template,
            lambda text, starts: self.decoder.encode(text, "the text around blanks", starts=starts),
            takes_space=self.decoder.begins_with_space is not None,
        )
        if None not in tokens:
            raise DataError(
                f"a template must have a blank, got {template[:60]!r}. Write [MASK] for one token "
                "or [MASK:3] for three; use correct() for a text without blanks."
            )
        slots, texts = build_constraints(self, tokens, choices, pattern, spaced)
        if spaced and self.decoder.begins_with_space is not None:
            processors = (RequireAt(self.decoder.begins_with_space, spaced), *processors)
        return tokens, processors, slots, texts

    def run(
        self,
        requests: Sequence[Request],
        *,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        confidence: bool = False,
        block_length: int | None = None,
        stop: Sequence[str] = (),
        revise: int = 0,
    ) -> list[Generation]:
        """Sample any requests in one batch: mixed lengths, plans, seeds and processors."""
        start = time.perf_counter()
        if revise and block_length is None:
            raise ConfigError(f"revise must be 0 without block_length, got {revise}.")
        settings = requests, block_length, on_step, record_frames, confidence, stop, revise
        return self._complete(start, run_sync(run_requests(self, *settings)))

    @overload
    def correct(
        self,
        text: str | Generation,
        *,
        protected: Sequence[Span] = (),
        **settings: Unpack[CorrectSettings],
    ) -> Correction: ...

    @overload
    def correct(
        self,
        text: list[str] | list[Generation],
        *,
        protected: Sequence[Sequence[Span]] | None = None,
        **settings: Unpack[CorrectSettings],
    ) -> list[Correction]: ...

    def correct(
        self,
        text: str | Generation | list[str] | list[Generation],
        *,
        error_rate: float | None = None,
        min_confidence: float | None = None,
        wrong_tokens: WrongTokens | None = None,
        protected: Any = (),
        on_progress: OnCharacters | None = None,
    ) -> Correction | list[Correction]:
        """Correct one or several texts: replace the tokens that are probably wrong.

        Each token is scored by its posterior probability at the error rate of the text
        (`gidd.sampling.correctors.posterior`), and the number of tokens does not change. Line
        breaks and other control characters are neither written nor replaced, and all that is not
        changed is preserved byte by byte. For typos, which also add and drop letters, see the
        distribution `gidd-proof`.

        Several texts share forward passes, which changes no result. If a text fails, its error is
        raised and no result is returned.

        Where `error_rate`, `min_confidence` and `wrong_tokens` are None, they are those that the
        model recommends (`self.correction`), else as follows.

        Args:
            text: A text that the tokenizer restores exactly, a sample, or a list of them. What a
                sample was given, such as its prompt, does not change.
            error_rate: Fraction of wrong tokens; by default estimated as by `noise_level`.
            min_confidence: Least probability of a change; by default, the most likely text is
                chosen, which minimises the expected number of mistakes.
            wrong_tokens: Which tokens are written by mistake: "noise", those of the model's noise,
                or "frequent", each as often as it occurs (`token_frequencies`).
            protected: Spans (start, stop) of characters that do not change; of several texts, a
                list of spans for each.
            on_progress: Called with the number of characters done, and of all characters.
        """
        given = {
            "error_rate": error_rate,
            "min_confidence": min_confidence,
            "wrong_tokens": wrong_tokens,
        }
        options = replace(self.correction, **{k: v for k, v in given.items() if v is not None})
        require_allowed(options)
        self.require_visible_scores("correction")
        start, texts = time.perf_counter(), text if isinstance(text, list | tuple) else [text]
        spans = protected or [()] * len(texts) if texts is text else [protected]
        corrections = self._complete(start, correct_texts(self, texts, spans, options, on_progress))
        return corrections if texts is text else corrections[0]

    def self_correct(
        self,
        text: str | Generation,
        *,
        protected: Sequence[Span] = (),
        seed: int = 0,
        on_step: OnStep | None = None,
        record_frames: bool = False,
        options: SelfCorrectionOptions = _CORRECTION,
        **changes: Any,
    ) -> SelfCorrection:
        """Correct a sample of the model by self-correction (Algorithm 1, App. C).

        Every token for which the model prefers another one may be replaced. That improves samples
        of the model; for other texts use `correct`. Give the sample itself, so that its prompt, and
        all else that it was given, does not change: as a string, all of it may. A text longer than
        the context is corrected in overlapping windows. `changes` are fields of `options`, e.g.
        `temperature=0.2`. For the other arguments see `correct` and `generate`.
        """
        require_arguments(seed=(seed, SEED))
        start, plan = time.perf_counter(), with_changes(options, changes, self.self_correct).plan()
        self.require_visible_scores("self-correction")
        settings = text, protected, plan, seed, on_step, record_frames
        return self._complete(start, [run_sync(self_correct(self, *settings))])[0]

    def noise_level(
        self,
        text: str | Generation,
        *,
        protected: Sequence[Span] = (),
        on_forward_passes: OnForwardPassesDone | None = None,
    ) -> NoiseLevel:
        """Estimate the fraction of wrong tokens of a text, with a 95% interval.

        It is the noise level at which the text is most likely under the model
        (`gidd.pipeline.noise_level`).
        """
        self.require_visible_scores("the noise level")
        reader, (_, cut) = self.window_reader(), windows_to_correct(self, text, protected)
        return run_sync(estimate_noise(reader, cut, on_forward_passes=on_forward_passes))

    @overload
    def score(self, text: str, **settings: Any) -> Scores: ...

    @overload
    def score(self, text: list[str], **settings: Any) -> list[Scores]: ...

    def score(
        self,
        text: str | list[str],
        *,
        prompt: str = "",
        confidence: bool = True,
        on_forward_passes: OnForwardPassesDone | None = None,
        options: LikelihoodOptions = _LIKELIHOOD,
        **changes: Any,
    ) -> Scores | list[Scores]:
        """Return an upper bound on -log p(text), the confidence in every token and the noise level.

        Several texts share forward passes. A text longer than the context is split into parts that
        are scored independently and added up. `gidd.diffusion.likelihood` describes the estimator.

        Args:
            text: A text that the tokenizer restores exactly, or a list of texts.
            prompt: The condition of p(text | prompt). Both together must fit into the context.
            confidence: Whether to compute confidence and noise level, which take forward passes.
            on_forward_passes: Called with the forward passes done and expected.
            options: Times, noise and budget of the estimate.
            **changes: Fields of `options` to change, e.g. `repeats=8, max_se=0.01`.
        """
        start, options = time.perf_counter(), with_changes(options, changes, self.score)
        texts = text if isinstance(text, list | tuple) else [text]
        prompt_tokens = self.decoder.encode(prompt, "the prompt")
        tokens = [self.encode(t, "the text to score", starts=not prompt) for t in texts]
        settings = options, confidence, on_forward_passes
        scores = self._complete(start, score_texts(self, texts, tokens, prompt_tokens, *settings))
        return scores if texts is text else scores[0]

    def token_probabilities(self, tokens: Sequence[int], top: int = 5) -> list[TokenProbability]:
        """Return x_theta at each position of a text, and its most likely tokens there.

        Tokens are predicted given all others, at the lowest noise level.
        """
        self.require_visible_scores("the probability of tokens")
        return token_probabilities(self, tokens, top)

    @cached_property
    def token_frequencies(self) -> torch.Tensor:
        """How often each token occurs, [V]: the mean prediction from noise alone."""
        return run_sync(
            read_frequencies(self.window_reader(), self.window, self.decoder.never_written)
        )

    def window_reader(self, batch_size: int | None = None) -> WindowReader:
        """Return a `WindowReader`, which reads predictions and posteriors for windows of texts.

        `batch_size` is the smallest batch size of a forward pass, e.g. for many short texts.
        """
        is_larger = batch_size is not None and batch_size > self.session.batch_size
        is_posterior = bool(getattr(self.denoiser.backbone, "predicts_posterior", False))
        return WindowReader(
            self.session,
            *self.times,
            predicts_posterior=is_posterior,
            batch_size=batch_size if is_larger else None,
        )

    def nelbo_estimator(
        self,
        *,
        grid: str = "sine",
        nodes: int = NUM_NODES,
        seed: int = 0,
        tokens_per_batch: int | None = None,
        ranks: RankGroup | None = None,
    ) -> NelboEstimator:
        """Return the estimator of likelihoods under this model; see `estimate_nelbo`.

        By default a forward pass has 2,048 tokens on a CPU and 32,768 on other devices.
        """
        if tokens_per_batch is None:
            tokens_per_batch = (1 if self.device.type == "cpu" else 16) * TOKENS_PER_BATCH
        network, noise = with_float32_head(self._network), self.schedule
        settings = grid, nodes, seed, tokens_per_batch, ranks, self.device
        block_length = next(iter(self.block_lengths), None)
        return NelboEstimator(
            network, noise, *settings, block_length=block_length, run=self._compute
        )

    def _compute(self, function: Callable[[], torch.Tensor], cost: int) -> torch.Tensor:
        return run_sync(self.session.compute(function, cost))

    def require_visible_scores(self, feature: str) -> None:
        """Raise `ConfigError` if the network was trained with masking alone."""
        if not self.can_score_visible_tokens:
            raise ConfigError(
                f"{feature} needs a model trained with uniform noise (p_uniform > 0), got one "
                "trained with masking alone, which cannot score visible tokens. Infill [MASK] "
                "instead."
            )

    def encode(self, text: str, name: str = "the text", *, starts: bool = True) -> list[int]:
        """Return the tokens of a text, which must not be empty; errors call it `name`.

        `starts` is False if other tokens are before it.
        """
        tokens = self.decoder.encode(text, name, starts=starts)
        if not tokens:
            raise DataError(f"{name} must not be empty, got {text!r}.")
        return tokens

    def describe(self) -> dict[str, Any]:
        """Return versions, model, tokenizer, noise and precision as plain data."""
        return {
            "gidd": gidd.__version__,
            "torch": str(torch.__version__),
            "model": self.source,
            "notes": list(self.notes),
            "tokenizer": self.tokenizer.fingerprint,
            "schedule": describe_schedule(self.schedule),
            "device": str(self.device),
            "precision": self.precision,
            "batch_size": self.session.batch_size,
        }

    def manifest(self, start: float, task: ResultManifest, forward_passes: int) -> ResultManifest:
        """Return the manifest of a task that began at `start`: model, versions and settings."""
        return {
            **self.describe(),
            **task,
            "forward_passes": forward_passes,
            "pad_to_multiple_of": self.session.pad_to_multiple_of,
            "seconds": round(time.perf_counter() - start, 3),
        }

    def _complete(self, start: float, results: Sequence[_Result]) -> list[_Result]:
        """Return the results with complete manifests."""
        return [
            replace(result, manifest=self.manifest(start, result.manifest, result.forward_passes))
            for result in results
        ]

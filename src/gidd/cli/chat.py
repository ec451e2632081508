"""Chat with a model that was trained on conversations.

Examples:
  gidd chat models/assistant
  gidd chat models/assistant --system "Answer in one word." --steps 64 --max-tokens 100
  gidd chat models/assistant --block-length 32 --temperature 0.7
  gidd chat models/assistant < questions.txt > answers.txt
  echo "2 + 3" | gidd chat models/assistant --jsonl

In a terminal, Ctrl-C during an answer keeps what is there, Ctrl-D or /quit ends; /help lists the
commands. In a pipe, each line of standard input is a message, and each answer is printed as a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_checked
from gidd.cli.output import CliConsole, decode_utf8, print_json, print_text
from gidd.common.config.allowed import SEED, integer, problems_of
from gidd.common.messages import print_message
from gidd.errors import ConfigError, GiddError
from gidd.pipeline.options import STOP, SamplingOptions

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline
    from gidd.sampling import OnStep

_HELP = """\
/again     another answer, with the next seed
/undo      remove the last message and its answer
/steps N   number of denoising steps of the next answers
/help      this list
/quit      end (also Ctrl-D)"""


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of `gidd chat`."""

    model: ModelName
    system: str = ""
    """System message, before all others."""
    max_tokens: Annotated[int, integer(1)] | None = None
    """Tokens sampled for an answer, end and padding included; None is what fits, at most 256."""
    stop: Annotated[tuple[str, ...], STOP] = ()
    """Texts: an answer ends before the first of them."""
    seed: Annotated[int, SEED] = 0
    """Random seed; the same seed gives the same answers."""
    jsonl: bool = False
    """Print the conversation after each answer, as a JSON object per line."""
    sampling: Flat[SamplingOptions] = field(default_factory=SamplingOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)


def main(arguments: Sequence[str]) -> None:
    """Parse, load, answer."""
    options = parse_checked(ChatOptions, "gidd chat", __doc__, arguments)
    pipe = options.runtime.load(options.model)
    from gidd.pipeline.chat import is_chat_model

    if not is_chat_model(pipe):
        print_message(
            f"{options.model} has no chat template and no record of training on chats "
            "(data.format): it continues text, and its answers will be poor."
        )
    chat = Conversation(pipe, options)
    if sys.stdin.isatty() and sys.stdout.isatty() and not options.jsonl:
        _run_terminal(chat)
        return
    for line_number, line in enumerate(sys.stdin.buffer, start=1):
        if message := decode_utf8(line, f"line {line_number} of standard input").strip():
            answer = chat.ask(chat.messages, message)
            if options.jsonl:
                print_json(messages=chat.messages)
            else:
                print_text(" ".join(answer.splitlines()))


class Conversation:
    """The messages so far, and how the next answer is sampled."""

    def __init__(self, pipe: Pipeline, options: ChatOptions) -> None:
        from gidd.pipeline.chat import answer_end_of

        self.pipe, self.options = pipe, options
        self.sampling, self.seed = options.sampling, options.seed
        self.stop = answer_end_of(pipe.tokenizer, options.stop).strings
        system = {"role": "system", "content": options.system}
        self.messages: list[dict[str, str]] = [system] if options.system else []

    def ask(self, before: list[dict[str, str]], message: str, on_step: OnStep | None = None) -> str:
        """Answer a message after others; then the conversation is these, it and the answer."""
        answer = self.pipe.chat(
            [*before, {"role": "user", "content": message}],
            max_tokens=self.options.max_tokens,
            seed=self.seed,
            stop=self.options.stop,
            on_step=on_step,
            options=self.sampling,
        )
        if answer.num_dropped:
            print_message(
                f"the oldest {answer.num_dropped} messages do not fit into the context of "
                f"{self.pipe.context} tokens, and were left out."
            )
        self.messages = answer.messages
        return answer.text

    def show_answer(self, before: list[dict[str, str]], message: str, console: CliConsole) -> None:
        """Show an answer while it forms, and print it; Ctrl-C keeps what is there."""
        from gidd.pipeline.text import end_of_text
        from gidd.viz.terminal import AnswerView

        view = AnswerView(console, self.pipe.decoder, self.pipe.schedule.vocab.mask_id)
        try:
            with view:
                answer = self.ask(before, message, view)
        except KeyboardInterrupt:
            answer = view.text[: end_of_text(view.text, self.stop)].strip()
            pair = ("user", message), ("assistant", answer)
            self.messages = [*before, *({"role": role, "content": text} for role, text in pair)]
            print_message("stopped; what was written is kept.")
        print_text(answer)

    def set_steps(self, value: str) -> None:
        """Change the number of steps of the next answers."""
        sampling = replace(self.sampling, steps=int(value) if value.isdecimal() else value)
        if problems := list(problems_of(sampling)):
            raise ConfigError(problems[0])
        self.sampling = sampling
        print_text(f"{value} steps per answer.")


def _run_terminal(chat: Conversation) -> None:
    """Read messages and commands until the end."""
    with suppress(ImportError):
        import readline as _  # edits lines, and remembers them
    console = CliConsole()
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        except UnicodeDecodeError:
            print_message("a message must be UTF-8 text.")
            continue
        command, _, value = line.partition(" ")
        try:
            if command == "/quit":
                return
            has_answer = any(message["role"] == "assistant" for message in chat.messages)
            if command in ("/again", "/undo") and not has_answer:
                print_message(f"{command} needs an answer, and there is none.")
            elif command == "/again":
                chat.seed += 1
                chat.show_answer(chat.messages[:-2], chat.messages[-2]["content"], console)
            elif command == "/undo":
                *chat.messages, removed, _ = chat.messages
                print_text(f"removed: {removed['content']}")
            elif command == "/steps":
                chat.set_steps(value)
            elif line.startswith("/"):
                print_text(_HELP)
            elif line:
                chat.show_answer(chat.messages, line, console)
        except GiddError as error:
            print_message(str(error))

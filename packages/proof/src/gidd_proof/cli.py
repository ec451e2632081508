"""Find and fix typos in English text.

- Fixes letters that were replaced, dropped, added or swapped, dropped spaces, doubled words, a/an,
  and confused words (its/it's, then/than) where the words around them show it.
- Never touches code, URLs, e-mail addresses, paths, words with digits or capitals inside.
- A terminal shows changed lines with confidences, and doubtful places that are left for you. A pipe
  gets the corrected text. Files are changed only with --in-place.
- Other commands, each with --help: check (as linters), serve (for editors that use a LanguageTool
  server), lsp (a language server), demo, learn-errors, count-words. `fix` is the default.
- Words of .gidd-proof-words (here or in a folder above) and ~/.config/gidd-proof/words are right.

Examples:
  gidd-proof letter.txt
  gidd-proof letter.txt --in-place --protect "[A-Z][a-z]+"
  gidd-proof letter.txt --in-place --interactive
  gidd-proof letter.txt --diff > letter.patch
  gidd-proof - < letter.txt > corrected.txt
  gidd-proof scan.txt --errors ocr --suggest > suggestions.jsonl
  gidd-proof --text "The peopel of the Untied States"
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gidd.cli import (
    TextSource,
    describe_edits,
    matching_spans,
    parse,
    print_correction,
    print_json,
    print_message,
    print_text,
    read_source,
    read_sources,
    replace_file,
    require_patterns,
    require_writable,
    run_command,
    show_changes,
    show_counts,
    show_patch,
    summary,
    write_stdout,
)
from gidd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from gidd.pipeline import Correction
    from gidd_proof.proofreader import Proofreader


@dataclass(frozen=True, kw_only=True)
class ProofCommand:
    """Options of `gidd-proof`."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")] = ()
    """Text files in UTF-8, or - for standard input."""

    text: Annotated[str | None, tyro.conf.DisallowNone] = None
    """The text itself, instead of a file."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters (`gidd export`); by default the packaged English model."""

    min_confidence: float = 0.4
    """Smallest probability of a change; 0 changes every place to its most likely text."""

    error_rate: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Mistakes per character, e.g. 0.02; by default estimated for each text."""

    words: Annotated[
        tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")
    ] = ()
    """File with words that are right, one per line."""

    errors: Annotated[
        str | None, tyro.conf.DisallowNone, tyro.conf.arg(metavar="keyboard|ocr|FILE")
    ] = None
    """What mistakes look like: of typing, of scanned text, or a file of `gidd-proof learn-errors`.
    By default every other character is equally likely."""

    protect: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="REGEX")
    ] = ()
    """Regular expression; matching text is never changed."""

    in_place: bool = False
    """Replace the files by the corrected texts; each write is atomic."""

    interactive: bool = False
    """Review every doubtful place in the terminal. Files are written at the end."""

    diff: bool = False
    """Print the changes as a patch (unified diff)."""

    suggest: bool = False
    """Print one JSON object per doubtful place, with its position in characters and alternatives
    with probabilities; no file is changed."""

    jsonl: bool = False
    """Print one JSON object per text, with all edits and settings."""

    device: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Device to run on: cpu, cuda or mps; by default the fastest available."""

    def check(self) -> None:
        """Raise `ConfigError` if options are invalid or exclude each other."""
        if not 0 <= self.min_confidence <= 1:
            raise ConfigError(f"--min-confidence must be in [0, 1], got {self.min_confidence}.")
        if self.error_rate is not None and not 0 <= self.error_rate < 1:
            raise ConfigError(f"--error-rate must be in [0, 1), got {self.error_rate}.")
        if sum((self.diff, self.suggest, self.jsonl)) > 1:
            raise ConfigError("--diff, --suggest and --jsonl exclude each other. Give one of them.")
        if self.suggest and (self.in_place or self.interactive):
            raise ConfigError("--suggest only prints. Omit --in-place and --interactive.")
        require_patterns(self.protect)

    def load(self) -> Proofreader:
        """Load the model."""
        import gidd_proof
        from gidd_proof.error_models import error_model
        from gidd_proof.user_words import read_user_words, word_files

        errors = None if self.errors is None else error_model(self.errors)
        words = read_user_words([*word_files(Path.cwd()), *self.words])
        loaded = gidd_proof.load(self.model, device=self.device).with_words(words)
        return replace(loaded, error_model=errors)


def proofread(arguments: Sequence[str]) -> None:
    """Parse, correct, review with --interactive, write with --in-place, and show."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    command = parse(ProofCommand, arguments, prog="gidd-proof", description=__doc__, config=flags)
    command.check()
    if command.interactive:
        from gidd_proof.review import require_terminal

        require_terminal()
    sources = read_sources(
        command.files,
        command.text,
        in_place=command.in_place,
        is_printed=command.diff or command.suggest or command.jsonl,
    )
    proofreader = command.load()
    for source in sources:
        start = time.perf_counter()
        with show_counts("proofreading") as on_progress:
            correction = proofreader.correct(
                source.text,
                error_rate=command.error_rate,
                min_confidence=command.min_confidence,
                protected=matching_spans(command.protect, source.text),
                file_name=source.path and source.path.name,
                on_progress=on_progress,
            )
        if command.interactive:
            from gidd_proof.review import review

            correction = review(source.name, correction)
        _finish(command, source, correction, alone=len(sources) == 1)
        name = "" if len(sources) == 1 else f"{source.name}: "
        print_message(f"{name}{summary(correction, time.perf_counter() - start)}")


def _finish(
    command: ProofCommand, source: TextSource, correction: Correction, *, alone: bool
) -> None:
    """Write the file with --in-place, and print the result."""
    try:
        if command.in_place and source.path is not None:
            replace_file(source.path, source.text, correction.text)
    except (OSError, DataError):
        write_stdout(correction.text)  # the work is not lost
        raise
    if command.jsonl:
        print_correction(source.name, correction)
    elif command.suggest:
        for edit in describe_edits(correction):
            print_json(file=source.name, **edit)
    elif command.diff:
        show_patch(source, correction, alone=alone)
    elif sys.stdout.isatty() and not (command.interactive and not command.in_place):
        show_changes(None if alone else source.name, correction)
    elif command.text is not None:
        print_text(correction.text)
    elif not command.in_place:
        write_stdout(correction.text)


def learn_errors_command(
    pairs: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PAIRS")], /, *, out: Path
) -> None:
    """Learn what mistakes look like from pairs of wrong and right text.

    Example: gidd-proof learn-errors pairs.tsv --out mine.json

    Args:
        pairs: File with wrong<TAB>right on each line, words or sentences; - is standard input.
        out: JSON file to write the error model to, for `gidd-proof --errors FILE`.
    """
    from gidd_proof.error_models import learn_errors, read_pairs

    require_writable(out, "--out")
    learnt = learn_errors(read_pairs(pairs), name=out.stem)
    learnt.save(out)
    kinds = ", ".join(f"{value:.0%} {kind}" for kind, value in learnt.kinds.items())
    print_text(f"{out}: replacements of {len(learnt.by_right)} characters; mistakes: {kinds}")


def count_words_command(
    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")],
    /,
    *,
    out: Path,
) -> None:
    """Count the words of texts, as the words that a model of your own knows.

    Example: gidd-proof count-words texts/*.txt --out models/mine/words.txt

    Args:
        files: Text files in UTF-8, or - for standard input.
        out: File to write, `words.txt` in the folder of a model.
    """
    from gidd_proof.words import WordList

    require_writable(out, "--out")
    words = WordList.of_texts(read_source(file).text for file in files)
    words.save(out)
    print_text(f"{out}: {len(words):,} words")


def _demo(arguments: Sequence[str]) -> None:
    from gidd_proof.demo import main as show_demo

    show_demo(arguments)


def _check(arguments: Sequence[str]) -> None:
    from gidd_proof.check import check

    check(arguments)


def _serve(arguments: Sequence[str]) -> None:
    from gidd_proof.serve import serve

    serve(arguments)


def _lsp(arguments: Sequence[str]) -> None:
    from gidd_proof.lsp import main as serve_editor

    serve_editor(arguments)


_COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "check": _check,
    "fix": proofread,
    "serve": _serve,
    "lsp": _lsp,
    "demo": _demo,
    "learn-errors": partial(parse, learn_errors_command, prog="gidd-proof learn-errors"),
    "count-words": partial(parse, count_words_command, prog="gidd-proof count-words"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; without the name of one, `fix`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = _COMMANDS.get(words[0]) if words else None
    if command is None:
        run_command(proofread, words or ["--help"])
    else:
        run_command(command, words[1:])

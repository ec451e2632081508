"""A language server for editors: mistakes as diagnostics, corrections as quick fixes.

It speaks the Language Server Protocol on standard input and output. Needs the extra `lsp`.

Example: gidd-proof lsp
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from gidd.cli import parse
from gidd.errors import ConfigError, DataError, GiddError
from gidd_proof.user_words import require_word, user_file

if TYPE_CHECKING:
    from gidd.pipeline import TextEdit

ADD_WORD = "gidd-proof.addWord"
SOURCE = "gidd-proof"
_MAX_FIXES = 5
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, kw_only=True)
class LspCommand:
    """Options of `gidd-proof lsp`."""

    model: Annotated[str | None, tyro.conf.DisallowNone] = None
    """Folder of a model of characters; by default the packaged English model."""

    words: Path | None = None
    """File to which the editor adds words; by default ~/.config/gidd-proof/words."""


def main(arguments: Sequence[str]) -> None:
    """Parse, and serve standard input until it ends."""
    command = parse(LspCommand, arguments, prog="gidd-proof lsp", description=__doc__)
    try:
        server = make_server(command)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'the package {error.name} is missing. Install it: pip install "gidd-proof[lsp]".'
        ) from error
    server.start_io()


class Places(NamedTuple):
    """Where the lines of a text begin, and how many units of the client precede each character."""

    lines: list[int]
    units: list[int]

    @classmethod
    def of(cls, text: str, num_units: Callable[[str], int]) -> Places:
        """Return the places of a text: each character is counted once, however many are asked."""
        lines = [0, *(match.end() for match in _LINE_END.finditer(text))]
        return cls(lines, [0, *accumulate(map(num_units, text))])

    def at(self, index: int) -> tuple[int, int]:
        """Return the line of a character, and the units before it in the line."""
        line = bisect_right(self.lines, index) - 1
        return line, self.units[index] - self.units[self.lines[line]]


def make_server(command: LspCommand) -> Any:
    """Return the language server; the model is loaded with the first text."""
    from lsprotocol import types
    from pygls.lsp.server import LanguageServer

    import gidd_proof
    from gidd_proof.serve import Checker

    whole_texts = types.TextDocumentSyncKind.Full  # pygls also ends lines at U+2028, editors do not
    server = LanguageServer(SOURCE, gidd_proof.__version__, text_document_sync_kind=whole_texts)
    loaded: list[Checker] = []

    def checker() -> Checker:
        if not loaded:
            loaded.append(Checker(gidd_proof.load(command.model), command.words or user_file()))
        return loaded[0]

    def show(error: GiddError | OSError) -> None:
        server.window_show_message(types.ShowMessageParams(types.MessageType.Error, str(error)))

    def publish(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        edits: list[TextEdit] = []
        places = Places.of(document.source, document.position_codec.client_num_units)
        try:
            edits = checker().edits(document.source, file_name=document.filename)
        except (GiddError, OSError) as error:
            show(error)
        diagnostics = [diagnostic(places, edit) for edit in edits]
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(
                uri=uri, diagnostics=diagnostics, version=document.version
            )
        )

    def diagnostic(places: Places, edit: TextEdit) -> types.Diagnostic:
        fixes = [a.text for a in edit.alternatives if a.text != edit.old][:_MAX_FIXES]
        kind = types.DiagnosticSeverity
        return types.Diagnostic(
            range=types.Range(
                start=types.Position(*places.at(edit.start)),
                end=types.Position(*places.at(edit.stop)),
            ),
            message=f"{edit.old}: {', '.join(fixes)}?",
            severity=kind.Warning if edit.is_change else kind.Hint,
            source=SOURCE,
            code="spelling",
            data={"old": edit.old, "fixes": fixes},
        )

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    def code_action(params: types.CodeActionParams) -> list[types.CodeAction | types.Command]:
        uri, actions = params.text_document.uri, list[types.CodeAction | types.Command]()
        for problem in params.context.diagnostics:
            match (problem.source, problem.data):
                case (source, {"old": str(old), "fixes": [*fixes]}) if source == SOURCE:
                    texts = [fix for fix in fixes if isinstance(fix, str)]
                case _:  # of another server, or changed by the editor
                    continue
            for index, fix in enumerate(texts):
                change = types.TextEdit(range=problem.range, new_text=fix)
                actions.append(
                    types.CodeAction(
                        title=f"Replace by {fix!r}",
                        kind=types.CodeActionKind.QuickFix,
                        diagnostics=[problem],
                        is_preferred=index == 0,
                        edit=types.WorkspaceEdit(changes={uri: [change]}),
                    )
                )
            title = f"Add {old!r} to the dictionary"
            actions.append(types.Command(title=title, command=ADD_WORD, arguments=[old, uri]))
        return actions

    @server.command(ADD_WORD)
    def add_word(*arguments: Any) -> None:
        try:
            match arguments:
                case (word, str(uri)):
                    checker().change_words(add=require_word(word))
                    publish(uri)
                case _:
                    raise DataError(
                        f"{ADD_WORD} must have a word and a URI, got {arguments!r:.99}."
                    )
        except (GiddError, OSError) as error:
            show(error)

    return server

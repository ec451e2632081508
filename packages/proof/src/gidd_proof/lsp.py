"""A language server for editors: mistakes as diagnostics, corrections as quick fixes.

It speaks the Language Server Protocol on standard input and output. Needs the extra `lsp`.

Example: gidd-proof lsp
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gidd.cli import parse
from gidd.errors import ConfigError
from gidd_proof.user_words import user_file

if TYPE_CHECKING:
    from gidd.pipeline import TextEdit

ADD_WORD = "gidd-proof.addWord"
SOURCE = "gidd-proof"
_MAX_FIXES = 5


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


def make_server(command: LspCommand) -> Any:
    """Return the language server; the model is loaded with the first text."""
    from lsprotocol import types
    from pygls.lsp.server import LanguageServer
    from pygls.workspace import TextDocument

    import gidd_proof
    from gidd_proof.serve import Checker

    server = LanguageServer(SOURCE, gidd_proof.__version__)
    loaded: list[Checker] = []

    def checker() -> Checker:
        if not loaded:
            loaded.append(Checker(gidd_proof.load(command.model), command.words or user_file()))
        return loaded[0]

    def publish(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        found = [diagnostic(document, edit) for edit in checker().edits(document.source)]
        server.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=document.version)
        )

    def diagnostic(document: TextDocument, edit: TextEdit) -> types.Diagnostic:
        fixes = [a.text for a in edit.alternatives if a.text != edit.old][:_MAX_FIXES]
        kind = types.DiagnosticSeverity
        return types.Diagnostic(
            range=types.Range(
                start=position(document, edit.start), end=position(document, edit.stop)
            ),
            message=f"{edit.old}: {', '.join(fixes)}?",
            severity=kind.Warning if edit.is_change else kind.Hint,
            source=SOURCE,
            code="spelling",
            data={"old": edit.old, "fixes": fixes},
        )

    def position(document: TextDocument, index: int) -> types.Position:
        before = document.source[:index]
        line = before.count("\n")
        inside = types.Position(line=line, character=index - (before.rfind("\n") + 1))
        return document.position_codec.position_to_client_units(document.lines, inside)

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
        for found in params.context.diagnostics:
            if found.source != SOURCE or not isinstance(found.data, dict):
                continue
            data: dict[str, Any] = found.data
            for number, fix in enumerate(data["fixes"]):
                change = types.TextEdit(range=found.range, new_text=fix)
                actions.append(
                    types.CodeAction(
                        title=f"Replace by {fix!r}",
                        kind=types.CodeActionKind.QuickFix,
                        diagnostics=[found],
                        is_preferred=number == 0,
                        edit=types.WorkspaceEdit(changes={uri: [change]}),
                    )
                )
            title = f"Add {data['old']!r} to the dictionary"
            actions.append(
                types.Command(title=title, command=ADD_WORD, arguments=[data["old"], uri])
            )
        return actions

    @server.command(ADD_WORD)
    def add_word(word: str, uri: str) -> None:
        checker().change_words(add=word)
        publish(uri)

    return server

"""`gidd-proof lsp` with a client of the protocol: open, read mistakes, fix, add a word."""

import asyncio
import sys

import pytest

pytest.importorskip("pygls", reason="needs the extra lsp")
from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402

URI = "file:///letter.txt"
TEXT = "A 🙂 line.\n🙂🙂 The peopel came.\n"


async def session(words):
    client, published = LanguageClient("test", "1"), asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def receive(params: types.PublishDiagnosticsParams) -> None:
        published.put_nowait(params.diagnostics)

    async def diagnostics():
        return await asyncio.wait_for(published.get(), 120)

    command = ["-m", "gidd_proof", "lsp", "--words", str(words)]
    await client.start_io(sys.executable, *command)
    await client.initialize_async(
        types.InitializeParams(capabilities=types.ClientCapabilities(), root_uri=None)
    )
    client.initialized(types.InitializedParams())
    document = types.TextDocumentItem(uri=URI, language_id="text", version=1, text=TEXT)
    client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=document))
    (found,) = await diagnostics()
    # two emoji are four UTF-16 units
    assert (found.range.start.line, found.range.start.character) == (1, 9)
    assert found.range.end.character == 15
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(
            text_document=types.TextDocumentIdentifier(uri=URI),
            range=found.range,
            context=types.CodeActionContext(diagnostics=[found]),
        )
    )
    *fixes, add = actions
    preferred = next(action for action in fixes if action.is_preferred)
    (change,) = preferred.edit.changes[URI]
    assert change.new_text == "people"
    fixed = types.TextDocumentContentChangePartial(range=change.range, text=change.new_text)
    client.text_document_did_change(
        types.DidChangeTextDocumentParams(
            text_document=types.VersionedTextDocumentIdentifier(uri=URI, version=2),
            content_changes=[fixed],
        )
    )
    assert not await diagnostics()
    await client.workspace_execute_command_async(
        types.ExecuteCommandParams(command=add.command, arguments=add.arguments)
    )
    assert not await diagnostics()
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def test_a_client_opens_fixes_and_adds_a_word(tmp_path):
    asyncio.run(session(tmp_path / "words"))
    assert (tmp_path / "words").read_text() == "peopel\n"

"""`gidd-proof lsp` with a client of the protocol: open, read mistakes, fix, add a word."""

import asyncio
import sys

import gidd_proof
import pytest

pytest.importorskip("pygls", reason="needs the extra lsp")
from gidd_proof.lsp import ADD_WORD, LspCommand, Places, make_server  # noqa: E402
from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402

URI = "file:///letter.txt"
TEXT = "A 🙂 line.\r🙂\u2028🙂 The peopel came.\n"


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
    # two emoji are four UTF-16 units, and U+2028 ends no line of this protocol
    assert (found.range.start.line, found.range.start.character) == (1, 10)
    assert found.range.end.character == 16
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
    fixed = types.TextDocumentContentChangeWholeDocument(TEXT.replace("peopel", change.new_text))
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


@pytest.fixture
def server(proofreader, monkeypatch, tmp_path):
    monkeypatch.setattr(gidd_proof, "load", lambda *_, **__: proofreader, raising=False)
    server = make_server(LspCommand(words=tmp_path / "words"))
    server.shown = []
    monkeypatch.setattr(server, "window_show_message", server.shown.append)
    return server


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"old": "a"},
        {"fixes": ["a"]},
        {"old": 1, "fixes": []},
        {"old": "a", "fixes": 1},
    ],
)
def test_a_diagnostic_of_another_form_has_no_actions(server, data):
    place = types.Range(types.Position(0, 0), types.Position(0, 1))
    params = types.CodeActionParams(
        types.TextDocumentIdentifier(URI),
        place,
        types.CodeActionContext([types.Diagnostic(place, "x", source="gidd-proof", data=data)]),
    )
    assert server.protocol.fm.features[types.TEXT_DOCUMENT_CODE_ACTION](params) == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("a",), ("a", 1), (["a"], URI), ("evil\nwords", URI), ("a\u200b", URI), ("a", URI, "b")],
)
def test_what_is_not_one_word_is_refused_with_a_message(server, tmp_path, arguments):
    server.protocol.fm.commands[ADD_WORD](*arguments)
    assert [shown.type for shown in server.shown] == [types.MessageType.Error]
    assert not (tmp_path / "words").exists()


def test_each_character_is_counted_once_however_many_places_are_asked(server):
    counted = []
    places = Places.of("a🙂\nbb" * 99, lambda text: counted.append(text) or 1 + (text > "\uffff"))
    assert [places.at(index) for index in (0, 2, 3, 5, 7)] == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 2),
        (1, 5),
    ]
    assert len("".join(counted)) == 5 * 99


def test_damaged_words_are_a_message(server, tmp_path):
    (tmp_path / "words").write_bytes(b"\xff")
    server.protocol.fm.commands[ADD_WORD]("word", URI)
    assert "cannot be read as a list of words" in server.shown[0].message

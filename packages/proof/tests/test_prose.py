"""Code and other languages are not proofread."""

import ast

import pytest
from gidd_proof.prose import Languages, code_spans, find_sentences, main_language, read_languages
from gidd_proof.words import MODEL_FOLDER, WordList

WORDS = WordList.of_model(MODEL_FOLDER)
ENGLISH = "Thank you for your letter, I recieved it on Monday. "
SENTENCES = {
    "de": "Wir kommen im Juli nach Hamburg und bleiben zwei Wochen.",
    "fr": "Tous les êtres humains sont libres et égaux en dignité et en droits.",
    "es": "Toda persona tiene derecho a la vida y a la libertad de su persona.",
    "nl": "Een ieder heeft recht op leven en op vrijheid van zijn persoon.",
    "sv": "Var och en har rätt till liv och frihet.",
    "pl": "Każdy człowiek ma prawo do życia i do wolności.",
    "tr": "Herkes bir ve özgür olarak yaşama hakkı için buradadır.",
}


def languages(text, words=WORDS):
    return [sentence.language[:2] for sentence in read_languages(text, words)]


@pytest.mark.parametrize("code", SENTENCES)
def test_other_languages_are_left_alone(proofreader, code):
    assert languages(SENTENCES[code]) == [code]
    assert proofreader.correct(SENTENCES[code]).text == SENTENCES[code]


def test_only_the_english_of_a_mixed_letter_is_corrected(proofreader):
    german = SENTENCES["de"]
    text = f"{ENGLISH}\n\n{german} {german}\n\nIt was a wierd week."
    assert languages(text) == ["en", "de", "de", "en"]
    corrected = text.replace("recieved", "received").replace("wierd", "weird")
    assert proofreader.correct(text).text == corrected
    assert main_language(read_languages(german * 3 + ENGLISH, WORDS))[0] == "de German"


def test_sentences_with_many_mistakes_are_english():
    assert languages("In 1976, se was diagnosd howith canaer and the tretment faild.") == ["en"]
    assert languages("teh") == languages("") * 1 + ["en"]


def test_with_words_of_another_language_every_sentence_is_read():
    assert languages(SENTENCES["de"], WordList({"wir": 1, "kommen": 1})) == ["en"]


def test_no_frequent_word_of_another_language_is_one_of_english():
    assert not Languages.packaged().foreign & Languages.packaged().english


def test_sentences_cover_the_text():
    text = "One. Two!\nthree e.g. x.y"
    assert "".join(text[a:b] for a, b in find_sentences(text)) == text


PYTHON = '''\
#!/usr/bin/python
"""Retreive a file, and chek it."""
import os, sys  # standart modules

def retreive_cfg(pth, defualt=None):
    """Return the lenght."""
    return pth.split(defualt), "a mesage of peopel"  # the defualt is right
'''


def test_comments_and_documentation_of_code_are_read(proofreader):
    corrected = proofreader.correct(PYTHON, file_name="a.py").text
    for wrong, right in (("chek", "check"), ("standart", "standard"), ("lenght", "length")):
        assert wrong not in corrected and right in corrected
    for line in ("import os, sys", "def retreive_cfg(pth, defualt=None):", "a mesage of peopel"):
        assert line in corrected
    assert "# the defualt is right" in corrected  # the name of an argument

    def code(text):
        return ast.dump(ast.parse(text.replace('"""', "#")))

    assert code(corrected) == code(PYTHON)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("a.c", "int pth; /* the peopel */ // more pth\n", ["the peopel", "more"]),
        ("a.yaml", "titel: the peopel\n# a mesage\n", ["the peopel", "# a mesage"]),
        ("script", "#!/bin/sh\npeopel=1 # the peopl\n", ["# the peopl"]),
        ("a.txt", "int peopel;", ["int peopel;"]),
        ("a.md", "The peopel", ["The peopel"]),
        ("a.unknown", "The peopel", ["The peopel"]),
        ("a.json", '{"peopel": "the peopel"}', []),
    ],
)
def test_what_is_read_of_files(name, text, read):
    shown = list(text)
    for start, stop in code_spans(name, text):
        shown[start:stop] = "\0" * (stop - start)
    parts = "".join(shown)
    assert all(part in parts for part in read)
    assert len(parts.replace("\0", "").split()) <= sum(len(part.split()) for part in read) + 3

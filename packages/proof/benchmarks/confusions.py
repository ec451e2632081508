"""English words that are written in place of one another, though both are words."""

from __future__ import annotations

from typing import Final

_GROUPS = """
to/too/two of/off form/from there/their/they're then/than its/it's were/where/we're
lose/loose your/you're who's/whose affect/effect accept/except advice/advise
principal/principle weather/whether quiet/quite desert/dessert past/passed peace/piece
right/write/rite know/no new/knew hear/here for/four/fore by/buy/bye one/won our/hour/are
some/sum son/sun sea/see meet/meat week/weak great/grate break/brake fair/fare hole/whole
plain/plane rain/reign role/roll sail/sale steal/steel tail/tale wait/weight waist/waste
war/wore way/weigh wear/ware would/wood not/knot night/knight made/maid mail/male
be/bee been/bean/being bear/bare board/bored cell/sell cent/sent/scent dear/deer die/dye
ensure/insure feet/feat capital/capitol council/counsel complement/compliment course/coarse
cite/site/sight lead/led later/latter least/lest lessen/lesson moral/morale might/mite
united/untied trail/trial county/country on/no is/his as/has/is at/hat and/an/any this/his
the/then/them how/who now/know/not can/an had/has will/well must/most more/mere
though/thought/through threw/through think/thing was/saw or/our in/inn/on if/is it/is
he/her we/he so/sow do/due than/that choose/chose breath/breathe cloths/clothes
conscience/conscious device/devise elicit/illicit eminent/imminent farther/further
personal/personnel precede/proceed stationary/stationery statue/statute
"""

CONFUSED_WORDS: Final[tuple[tuple[str, ...], ...]] = tuple(
    tuple(words.split("/")) for words in _GROUPS.split()
)
"""Groups of words: each may be written for another of its group."""


def confusions_of(groups: tuple[tuple[str, ...], ...] = CONFUSED_WORDS) -> dict[str, list[str]]:
    """Return the words that may be written for each word, in the order of the groups."""
    found: dict[str, list[str]] = {}
    for words in groups:
        for word in words:
            others = found.setdefault(word, [])
            others += [other for other in words if other != word and other not in others]
    return found

"""A page for `gidd demo`: part of a message to Congress, without and with typos."""

from __future__ import annotations

from typing import Final

PAGE_TITLE: Final = "President Cleveland's message to Congress of December 3, 1888"
"""Source of the page, in the public domain; models of the corpus `sotu` do not train on it."""

CLEAN_PAGE: Final = (
    "A century has passed. Our cities are the abiding places of wealth and luxury; our "
    "manufactories yield fortunes never dreamed of by the fathers of the Republic; our "
    "business men are madly striving in the race for riches, and immense aggregations of "
    "capital outrun the imagination in the magnitude of their undertakings.\n"
    "\n"
    "We view with pride and satisfaction this bright picture of our country's growth and "
    "prosperity, while only a closer scrutiny develops a somber shading. Upon more careful "
    "inspection we find the wealth and luxury of our cities mingled with poverty and "
    "wretchedness and unremunerative toil. A crowded and constantly increasing urban "
    "population suggests the impoverishment of rural sections and discontent with "
    "agricultural pursuits. The farmer's son, not satisfied with his father's simple and "
    "laborious life, joins the eager chase for easily acquired wealth.\n"
    "\n"
    "We discover that the fortunes realized by our manufacturers are no longer solely the "
    "reward of sturdy industry and enlightened foresight, but that they result from the "
    "discriminating favor of the Government and are largely built upon undue exactions from "
    "the masses of our people."
)
"""The page as it was printed."""

TYPED_PAGE: Final = (
    "A century has passed. Our cities arj the abiding places of wealth and luxury; our "
    "manufactories yield fortunes never dreamed of by the fathers of teh Republic; our "
    "business men are madly striving in the race fo riches, and immense aggregations of "
    "capital outrun the imagination in the magnitude of their undertakings.\n"
    "\n"
    "We view witl pride and satisfaction thist bright picture of our country's growth and "
    "prosperity, while only a closer scrutiny develxops a somber shading. Upon more careful "
    "inspection we find the wealth and lnxury of our citiws mingled with poverty and "
    "wretchedness and unremunerative toil. A crowded and constantly increasing urban "
    "population suggests the impoverishment of rural sections and disconent with agricultural"
    " pursits. The farmer's son, not satisfied wqth his father's simpjle and laborious life, "
    "joins the eager chase for easily acquired wealth.\n"
    "\n"
    "We discovers that the fortunes realized by our manufacturers are no longer solely the "
    "reward of sturdy industry and enlightened foresight, but that tey result from ohe "
    "discrieinating favor of the Government and are largely built upon undue exactios from "
    "the mases of our poeple."
)
"""The page with typos: `add_noise(CLEAN_PAGE, "typos", rate=0.022, seed=8)`."""

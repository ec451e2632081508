"""Characters that optical character recognition takes for one another.

Confusions that change the number of characters, such as rn and m, are not listed: a channel
replaces one character by one other.
"""

from __future__ import annotations

_FREQUENT = (
    "ec eo ao as hb nu il i1 l1 lI I1 oc o0 O0 O6 tf ij rt uv vy gq g9 q9 5S 5s 8B 2Z 2z 6b 6G "
    "17 38 UV CG DO OQ EF PR MN VY .,"
)
_RARE = (
    "an ar ci cr da do db es fi hk hn kx ku mn mw np nr pg ps rn sz tl tr ty ui wv xz yg zs jy vw "
    "AR BR BE BP CO DG FP GO GQ HN HM HK IJ IT IL JU KX KR LI LE MH NW PF QO RB SB S8 TY T7 TI UO "
    "VW WM XK XY YT Z7 ZS Z2 01 06 08 09 12 14 27 35 36 39 41 49 53 56 68 69 71 79 83 89 90 96 98 "
    ":; ;, ,' '` \"' !l !1 |l |I |1 ([ )] -_ -~"
)

_WEIGHT = 3
"""How much more often frequent confusions occur than rare ones."""


def ocr_look_alikes() -> dict[str, dict[str, float]]:
    """Return the weight of each character that each character is taken for; pairs go both ways."""
    weights: dict[str, dict[str, float]] = {}
    for pairs, weight in ((_RARE, 1.0), (_FREQUENT, float(_WEIGHT))):
        for one, other in pairs.split():
            weights.setdefault(one, {})[other] = weight
            weights.setdefault(other, {})[one] = weight
    return weights

"""A drawing as a part of a web page: nothing that it would share with others there, and words for who cannot see it.

Must not know what is drawn.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

AREA = "area"  # the id of the place of the data, which stays as a class
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HREF = f"{{{XLINK}}}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline(text: str, name: str, title: str, about: str) -> str:
    """An SVG file as an element that scales to the width it is given.

    Several stand on one page, where an id names one thing only: those that something refers to begin with `name`, all
    others are left out. So are metadata, and rules of style, which would be the whole page's.
    """
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    _rename(root, name)
    for unwanted in ("width", "height", "version"):
        root.attrib.pop(unwanted, None)
    words = {f"{name}-title": ("title", title), f"{name}-about": ("desc", about)}
    root.attrib |= {"role": "img", "aria-labelledby": " ".join(words), "stroke-linejoin": "round"}
    for at, (key, (tag, said)) in enumerate(words.items()):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": key})
        element.text = said
        root.insert(at, element)
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _rename(root: ElementTree.Element, name: str) -> None:
    """Ids that are referred to get a prefix, others go; references are those of SVG 2, without a namespace."""
    used = set()
    for element in root.iter():
        if (target := element.attrib.pop(_HREF, None)) is not None:
            if target.startswith("#"):
                used.add(target[1:])
                target = f"#{name}-{target[1:]}"
            element.set("href", target)
        for key, value in element.attrib.items():
            used |= set(_REFERENCE.findall(value))
            element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    for element in root.iter():
        own = element.attrib.pop("id", None)
        if own in used:
            element.set("id", f"{name}-{own}")
        elif own == AREA:
            element.set("class", AREA)

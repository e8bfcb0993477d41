from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ckptmorph.schema.expr import ExprError, Unknown
from ckptmorph.schema.template import template

TEXTS = st.text("abc._", min_size=1, max_size=6)
BRACES = st.sampled_from(["i", "j", "i+1", "i + 2", "1+j", "j-1", "2*i"])


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Pieces of text with a brace between each two, the first and last maybe a brace."""
    pieces = draw(st.lists(TEXTS, min_size=1, max_size=4))
    text = "{" + draw(BRACES) + "}" if draw(st.booleans()) else ""
    for piece in pieces:
        text += piece + "{" + draw(BRACES) + "}"
    if draw(st.booleans()):
        text += draw(TEXTS) + ("*" if draw(st.booleans()) else "")
    return text


@given(templates(), st.integers(1, 200), st.integers(1, 200), st.text("abc.7_", max_size=5))
def test_matching_undoes_filling(text: str, i: int, j: int, rest: str) -> None:
    parsed = template(text)
    env = {name: value for name, value in (("i", i), ("j", j)) if name in parsed.indices}
    rest = rest if parsed.tail else ""
    assert parsed.match(parsed.fill(env, rest)) == (env, rest)


@given(templates(), st.data())
def test_filling_undoes_matching(text: str, data: st.DataObject) -> None:
    parsed = template(text)
    digits = st.sampled_from(["0", "1", "2", "7", "12", "007", "01", "-1", "+1", "", "x", "9" * 10, "１"])
    name = "".join(part if isinstance(part, str) else data.draw(digits) for part in parsed.parts)
    name += data.draw(st.sampled_from(["", "", "tail", ".7"]))
    found = parsed.match(name)
    if found is not None:
        assert parsed.fill(*found) == name


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_a_template_or_an_error(text: str, name: str) -> None:
    try:
        found = template(text).match(name)
    except ExprError:
        return
    assert found is None or template(text).fill(*found) == name


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("a.{i}.w", "a.0.w", ({"i": 0}, "")),
        ("a.{i}.w", "a.12.w", ({"i": 12}, "")),
        ("a.{i}.w", "a.01.w", None),
        ("a.{i}.w", "a.00.w", None),
        ("a.{i}.w", "a.-1.w", None),
        ("a.{i}.w", "a.+1.w", None),
        ("a.{i}.w", "a..w", None),
        ("a.{i}.w", "a.１.w", None),
        ("a.{i}.w", "a.²․w", None),
        ("a.{i}.w", "a.1.w.x", None),
        ("a.{i}.w", "xa.1.w", None),
        ("a.{i}.w", "a.1234567890.w", None),
        ("a.{i+1}.w", "a.1.w", ({"i": 0}, "")),
        ("a.{i+1}.w", "a.0.w", None),
        ("a.{i-1}.w", "a.0.w", ({"i": 1}, "")),
        ("a.{2*i}.w", "a.4.w", ({"i": 2}, "")),
        ("a.{2*i}.w", "a.5.w", None),
        ("a.{i}.b.{i}", "a.3.b.3", ({"i": 3}, "")),
        ("a.{i}.b.{i}", "a.3.b.4", None),
        ("a.{i}.b.{i+1}", "a.3.b.4", ({"i": 3}, "")),
        ("a.{i}.b.{j}", "a.3.b.4", ({"i": 3, "j": 4}, "")),
        ("a.{i+j}.b.{j}", "a.7.b.4", None),
        ("a.{j}.b.{i+j}", "a.4.b.7", ({"j": 4, "i": 3}, "")),
        ("a.*", "a.b.c", ({}, "b.c")),
        ("a.*", "a.", ({}, "")),
        ("a.*", "a", None),
        ("*", "anything.9", ({}, "anything.9")),
        ("*", "", ({}, "")),
        ("a.{i}.*", "a.3.b", ({"i": 3}, "b")),
        ("plain", "plain", ({}, "")),
        ("plain", "plainer", None),
    ],
)
def test_matches(text: str, name: str, found: Any) -> None:
    assert template(text).match(name) == found


def test_known_dimensions_are_compared_not_bound() -> None:
    parsed = template("a.{n-i}.w")
    assert parsed.fill({"n": 5, "i": 2}) == "a.3.w"
    assert parsed.match("a.3.w", {"n": 5}) == ({"i": 2}, "")
    assert parsed.match("a.9.w", {"n": 5}) is None
    assert template("a.{n}.w").match("a.4.w", {"n": 5}) is None


@pytest.mark.parametrize(
    "text",
    [
        "a.{i",
        "a.i}",
        "a.{}",
        "a.{ }",
        "a*b",
        "**",
        "a.{i}{j}",
        "a.{i}5",
        "a.{i}*",
        "{*}",
        "a.{i*}",
        "{i}}",
        "{{i}}",
        "a.{f(i)}",
        "a.{i.__class__()}",
        "a.{i if }",
    ],
)
def test_what_cannot_be_told_apart_is_no_template(text: str) -> None:
    with pytest.raises(ExprError):
        template(text)


@pytest.mark.parametrize("env", [{"i": 0}, {"i": "x"}, {"i": None}, {"i": 10**12}, {"i": [1]}])
def test_filling_with_what_is_no_index_is_an_error(env: dict[str, Any]) -> None:
    with pytest.raises(ExprError):
        template("a.{i-1}.w").fill(env)


def test_filling_without_a_value() -> None:
    with pytest.raises(Unknown):
        template("a.{i}.w").fill({})


@given(st.integers(0, 10**8))
def test_two_indices_never_share_a_name(i: int) -> None:
    assume(i > 0)
    parsed = template("l.{i}.w")
    assert parsed.fill({"i": i}) != parsed.fill({"i": i - 1})

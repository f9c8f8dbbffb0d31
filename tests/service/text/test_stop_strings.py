"""Stop strings against an obvious reference, in every way to cut the text into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.stop_strings import StopMatcher

stops_of_few_letters = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)
pieces_of_few_letters = st.lists(st.text(alphabet="abc", max_size=4), max_size=10)


def first_stop(text, stops):
    """(end, stop) of the stop that is complete first; the longest of several that end there."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def scan(pieces, stops, **settings):
    matcher = StopMatcher(stops, **settings)
    sent = ""
    for index, piece in enumerate(pieces):
        text, matched = matcher.push(piece)
        sent += text
        if matched is not None:
            return sent, matched, index
    return sent + matcher.flush(), None, None


@given(pieces_of_few_letters, stops_of_few_letters)
def test_the_first_completed_stop_ends_the_text_in_the_piece_that_completes_it(pieces, stops):
    whole = "".join(pieces)
    sent, matched, index = scan(pieces, stops)
    expected = first_stop(whole, stops)
    if expected is None:
        assert (sent, matched) == (whole, None)
        return
    end, stop = expected
    assert (sent, matched) == (whole[: end - len(stop)], stop)
    assert len("".join(pieces[:index])) < end <= len("".join(pieces[: index + 1]))
    assert not any(stop in sent for stop in stops)


@given(pieces_of_few_letters, stops_of_few_letters)
def test_only_what_may_become_a_stop_is_held_back(pieces, stops):
    matcher = StopMatcher(stops)
    seen = sent = ""
    for piece in pieces:
        text, matched = matcher.push(piece)
        if matched is not None:
            return
        seen, sent = seen + piece, sent + text
        suffixes = [seen[start:] for start in range(len(seen) + 1)]
        held = next(
            suffix for suffix in suffixes if any(s.startswith(suffix) for s in [*stops, ""])
        )
        assert sent + held == seen


@given(pieces_of_few_letters, stops_of_few_letters)
def test_the_stop_can_be_kept_in_the_text(pieces, stops):
    whole = "".join(pieces)
    sent, matched, _ = scan(pieces, stops, include_stop=True)
    expected = first_stop(whole, stops)
    assert sent == (whole if expected is None else whole[: expected[0]])
    assert matched == (None if expected is None else expected[1])


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["Hello\n", "\nUser:"], ["\nUser:"], "Hello\n"),
        (["one STO", "OP STOP two"], ["STOP"], "one STOOP "),
        (["x🙂", "y"], ["🙂y"], "x"),
        (["abc"], ["bc", "abc"], ""),
        (["no stop here"], [], "no stop here"),
    ],
)
def test_cases(pieces, stops, expected):
    assert scan(pieces, stops)[0] == expected


def test_nothing_follows_a_match():
    matcher = StopMatcher(["b"])
    assert matcher.push("abc") == ("a", "b")
    assert matcher.push("ddd") == ("", "b")
    assert matcher.flush() == ""


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])

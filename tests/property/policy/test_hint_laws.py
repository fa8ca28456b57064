"""Laws of the hint store: what is saved comes back, and no content of a file raises."""

import dataclasses
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from burstgate_policy.core.hint import Hint
from burstgate_policy.core.types import PolicyKey, Verdict
from burstgate_policy.hints.files import FileHintStore

texts = st.text(max_size=20)
keys = st.builds(
    PolicyKey,
    **{
        field.name: st.integers(0, 2**32 - 1) if field.name == "draft_width" else texts
        for field in dataclasses.fields(PolicyKey)
    },
)
hints = st.builds(
    Hint,
    key=keys,
    verdict=st.sampled_from([Verdict.ENABLE, Verdict.DECLINE]),
    acceptance_rate=st.floats(0.0, 1.0),
    samples=st.integers(1, 2**31),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(hints)
def test_every_hint_comes_back_equal(hint: Hint) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FileHintStore(Path(folder))
        store.save(hint)
        assert store.load(hint.key).hint == hint


@given(hints, keys)
def test_a_hint_is_never_loaded_for_another_key(hint: Hint, other: PolicyKey) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FileHintStore(Path(folder))
        store.save(hint)
        written = Path(folder, f"{hint.key.hash}.json")
        written.rename(Path(folder, f"{other.hash}.json"))  # as if their digests collided
        assert (store.load(other).hint is None) == (other != hint.key)


@given(hints, st.binary(max_size=200))
def test_no_bytes_raise(hint: Hint, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{hint.key.hash}.json").write_bytes(content)
        loaded = FileHintStore(Path(folder)).load(hint.key)
        assert loaded.hint is None
        assert loaded.reason


@given(hints, st.data())
def test_no_value_of_any_field_raises(hint: Hint, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FileHintStore(Path(folder))
        store.save(hint)
        path = Path(folder, f"{hint.key.hash}.json")
        document = json.loads(path.read_bytes())
        document[data.draw(st.sampled_from(sorted(document)))] = data.draw(values)
        path.write_text(json.dumps(document))
        loaded = store.load(hint.key)
        assert (loaded.hint is None) == (loaded.reason is not None)

"""Laws of hints: what is saved comes back, no content of a file raises, and replicas come to agree."""

import dataclasses
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from burstgate_policy.core.types import PolicyKey
from burstgate_policy.hints.document import HintDocument, StoredPin, StoredVerdict, encode, merge
from burstgate_policy.hints.files import FileHintStore

texts = st.text(max_size=20)
keys = st.builds(
    PolicyKey,
    **{
        field.name: st.integers(1, 64) if field.name == "draft_width" else texts
        for field in dataclasses.fields(PolicyKey)
    },
)
times = st.integers(0, 5).map(float)
verdicts = st.builds(
    StoredVerdict,
    verdict=st.sampled_from(["enable", "decline"]),
    acceptance_rate=st.floats(0.0, 1.0),
    samples=st.integers(1, 2**31 - 1),
    evidence=st.none(),
    settled_at=times,
    expires_at=st.just(4e9),
    policy_version=st.integers(1, 2**40),
)
pins = st.builds(
    StoredPin,
    speculate=st.booleans(),
    reason=st.text(min_size=1, max_size=500),
    author=st.text(min_size=1, max_size=100),
    pinned_at=times,
    expires_at=st.none() | st.just(4e9),
)


def documents_of(key: st.SearchStrategy[PolicyKey]) -> st.SearchStrategy[HintDocument]:
    return st.builds(
        HintDocument,
        revision=st.integers(0, 9),
        key=key,
        settled=st.none() | verdicts,
        verdict_at=times,
        pin=st.none() | pins,
        pin_at=times,
    )


documents = documents_of(keys)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
ONE_KEY = PolicyKey("t", "d", "h", 4, "", "", "", "", "", "")
of_one_key = documents_of(st.just(ONE_KEY))


def store_in(folder: str) -> FileHintStore:
    return FileHintStore(Path(folder), clock=lambda: 5.0)


@given(documents)
def test_every_document_comes_back_equal(document: HintDocument) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert store_in(folder).save(document, replaces=0)
        loaded = store_in(folder).load(document.key_hash).document
        assert loaded == document.model_copy(update={"revision": 1})


@given(documents, keys)
def test_a_document_is_never_loaded_for_another_key(document: HintDocument, other: PolicyKey) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(folder)
        store.save(document, replaces=0)
        written = Path(folder, f"{document.key_hash}.json")
        written.rename(Path(folder, f"{other.hash}.json"))  # as if somebody had copied it
        assert (store.load(other.hash).document is None) == (other != document.key)


@given(st.binary(max_size=200))
def test_no_bytes_raise(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{ONE_KEY.hash}.json").write_bytes(content)
        loaded = store_in(folder).load(ONE_KEY.hash)
        assert loaded.document is None
        assert loaded.reason


@given(documents, st.data())
def test_no_value_of_any_field_raises(document: HintDocument, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stored = json.loads(encode(document))
        place = data.draw(st.sampled_from([one for one in (stored, stored["key"], stored["settled"]) if one]))
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
        Path(folder, f"{document.key_hash}.json").write_text(json.dumps(stored))
        loaded = store_in(folder).load(document.key_hash)
        assert (loaded.document is None) == (loaded.reason is not None)


@given(st.lists(of_one_key, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_replicas_agree_in_whatever_order_they_hear_of_each_other(said: list[HintDocument], random: object) -> None:
    def together(documents: list[HintDocument]) -> HintDocument:
        known = documents[0]
        for document in documents[1:]:
            known = merge(known, document)
        return known

    shuffled = list(said)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert together(shuffled + said).says_the_same_as(together(said))


@given(of_one_key, of_one_key)
def test_the_later_word_holds_for_verdict_and_pin_each(one: HintDocument, other: HintDocument) -> None:
    merged = merge(one, other)
    assert merged.verdict_at == max(one.verdict_at, other.verdict_at)
    assert merged.pin_at == max(one.pin_at, other.pin_at)
    assert merged.settled in (one.settled, other.settled)

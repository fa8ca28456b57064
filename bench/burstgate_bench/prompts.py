"""The prompts that are measured and compared, as data.

`STANDARD` holds the three kinds that speed is reported by: text that a drafter guesses almost always, often
and sometimes. `MIXED` adds others, for text that changes kind. `EQUALITY` holds sixty of mixed kind, ordered by
kind so that an even sample meets many of them.
Knows no tokeniser: a case says what to encode, not how.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PromptCase:
    """One prompt: a conversation, or bare text, or tokens as they are. Exactly one of the three is given."""

    kind: str
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content of each, for the chat template."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    fill_tokens: int = 0
    """Repeat the encoded prompt up to exactly so many tokens; 0 leaves it as it is."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.messages, self.text, self.token_ids))) != 1:
            raise ValueError(f"a {self.kind} prompt must have either messages, text or token_ids")


def _ask(kind: str, *questions: str) -> tuple[PromptCase, ...]:
    return tuple(PromptCase(kind, messages=(("user", question),)) for question in questions)


def _text(kind: str, *texts: str) -> tuple[PromptCase, ...]:
    return tuple(PromptCase(kind, text=text) for text in texts)


STANDARD: tuple[PromptCase, ...] = (
    *_ask("enumeration", "Count from 1 to 200. Write one number per line and nothing else."),
    *_ask(
        "code",
        "Write a Python function that returns the nth Fibonacci number. Give it type hints and a docstring"
        " that describes its argument, its result and the error it raises for a negative n.",
    ),
    *_ask("prose", "Explain in a few paragraphs how rivers shape the landscapes they flow through."),
)

_COUNTING = _ask(
    "enumeration",
    *(f"Count from {first} to {first + 200}. Write one number per line and nothing else." for first in range(1, 9)),
)

_LISTS = _ask(
    "list",
    "List the months of the year, one per line.",
    "Count down from 60 to 1, separated by commas.",
    "Write the multiplication table of 7 from 7 x 1 to 7 x 20.",
    "List twenty vegetables as a numbered list.",
    "Write the letters of the alphabet, each followed by an animal that begins with it.",
    "List the even numbers from 2 to 120, one per line.",
    "Make a packing list for a week of hiking, grouped by purpose.",
    "List the planets in order from the sun with one fact each.",
    "Write a markdown table of ten countries and their capitals.",
    "Repeat the line 'The bell rings at noon.' fifteen times.",
)

_CODE = _ask(
    "code",
    "Write a Python class for a stack with push, pop and peek.",
    "Write a JavaScript function that reverses the words of a sentence.",
    "Write an SQL query that lists customers who ordered more than three times last year.",
    "Write a C function that computes the greatest common divisor of two integers.",
    "Write a bash script that renames every .txt file in a folder to .md.",
    "Write a Python generator of prime numbers and explain how it works.",
    "Write a JSON document that describes a library with three books.",
    "Write HTML for a form with a name, an email address and a submit button.",
    "Write a Rust function that counts the vowels of a string slice.",
    "Write a Python unit test for a function add(a, b) that covers negative numbers.",
)

_PROSE = _ask(
    "prose",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Describe the taste of an orange to somebody who has never eaten one.",
    "Why does bread rise? Explain it to a child.",
    "Write a polite letter to a neighbour about a barking dog.",
    "Discuss the advantages and drawbacks of working from home.",
    "Explain how vaccines train the immune system.",
    "Write a poem of four stanzas about the first snow.",
    "Describe a busy market square early in the morning.",
    "Give advice to somebody who wants to learn the violin at forty.",
    "Summarise why the Roman Republic became an empire.",
)

_LANGUAGES = _ask(
    "language",
    "Erzähle eine kurze Geschichte über einen Fuchs und einen Raben.",
    "Explique en quelques phrases comment fonctionne un moteur à vapeur.",
    "Escribe una lista de diez frutas con su color.",
    "Scrivi una ricetta semplice per la pasta al pomodoro.",
    "Расскажи, почему небо голубое.",
    "请用中文介绍一下长城。",
    "日本の四季について短く説明してください。",
    "한국의 전통 음식 세 가지를 소개해 주세요.",
    "اكتب فقرة قصيرة عن البحر.",
    "हिमालय के बारे में कुछ वाक्य लिखिए।",
)

_CHATS = (
    PromptCase(
        "chat",
        messages=(
            ("system", "You are a terse assistant who answers in one sentence."),
            ("user", "What is a glacier?"),
        ),
    ),
    PromptCase(
        "chat",
        messages=(
            ("user", "My favourite colour is green. Remember it."),
            ("assistant", "I will remember that your favourite colour is green."),
            ("user", "Which colour should I paint my kitchen, and why?"),
        ),
    ),
    PromptCase(
        "chat",
        messages=(
            ("user", "Give me three names for a cat."),
            ("assistant", "1. Pepper\n2. Juniper\n3. Mochi"),
            ("user", "Now give me ten more in the same format."),
        ),
    ),
    PromptCase(
        "chat",
        messages=(
            ("system", "You are a pirate. Stay in character."),
            ("user", "How do I make a good cup of tea?"),
            ("assistant", "Arr, first ye boil the water, matey!"),
            ("user", "And then?"),
        ),
    ),
    PromptCase("chat", messages=(("user", "hi"),)),
    PromptCase("chat", messages=(("user", "🙂🙃🚀 ... what do these three mean?"),)),
)

_RAW = _text(
    "raw",
    "Once upon a time, in a village at the edge of the forest,",
    "def quicksort(items):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "<html>\n<head>\n<title>",
    "   \n\n\t  ",
    "Q: What is the capital of France?\nA: Paris\nQ: What is the capital of Italy?\nA:",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)

# Ids that stand for very different things: control tokens at the start of the table, bytes, whole words.
_ONE_TOKEN = tuple(PromptCase("one token", token_ids=(token,)) for token in (0, 1, 33, 1000))

_PASSAGE = (
    "The harbour wakes before the town does. Boats come in with the tide, crates are counted and carried, and"
    " the gulls argue over what is left. By the time the shops open, the best of the catch is already on its"
    " way inland, and the quay is washed and empty again. "
)
# The longest context of the default target is 8192 tokens: one answer that ends by itself, one that the
# context cuts short.
_NEAR_LIMIT = (
    PromptCase("near limit", text=_PASSAGE, fill_tokens=8100),
    PromptCase("near limit", text=_PASSAGE, fill_tokens=8185),
)

# The standard kinds and one of each other kind of conversation: answered in turn, a text that changes kind.
MIXED: tuple[PromptCase, ...] = (*STANDARD, *(kind[3] for kind in (_LISTS, _CODE, _PROSE, _LANGUAGES, _CHATS)))
BY_KIND: Mapping[str, tuple[PromptCase, ...]] = MappingProxyType(
    {"enumeration": _COUNTING, "code": _CODE, "prose": _PROSE}
)
"""At least eight of each kind that speed is reported by, of different lengths where the kind allows."""

EQUALITY: tuple[PromptCase, ...] = (
    *_LISTS,
    *_CODE,
    *_PROSE,
    *_LANGUAGES,
    *_CHATS,
    *_RAW,
    *_ONE_TOKEN,
    *_NEAR_LIMIT,
)

EQUALITY_GROUP = 8
"""So many of a sample of them are answered together: with as many plain answers the engine's places are all taken."""


def even_sample(cases: Sequence[PromptCase], count: int) -> list[tuple[int, PromptCase]]:
    """`count` cases spread evenly over all of them, each with its place; all of them if there are no more."""
    if count < 1:
        raise ValueError(f"a sample must have at least 1 prompt, not {count}")
    count = min(count, len(cases))
    return [(place, cases[place]) for place in (part * len(cases) // count for part in range(count))]
